"""Sphinx extension: the picture of the layers and the tables of the benchmarks, from the files that decide them."""

from __future__ import annotations

import ast
import html
import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Layers(SphinxDirective):
    """Draw the first layer contract of a pyproject.toml: one row per layer, one box per module."""

    required_arguments = 1

    def run(self):
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        contracts = tomllib.loads(Path(path).read_text())["tool"]["importlinter"]["contracts"]
        layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
        rows = [[module.strip() for module in layer.split("|")] for layer in layers]
        body = "".join(
            f'<div class="layer">{"".join(self.box(Path(path).parent, module) for module in row)}</div>' for row in rows
        )
        return [nodes.raw("", f'<div class="layers">{body}</div>', format="html")]

    def box(self, root, module):
        source = root.joinpath(*module.split("."))
        source = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
        self.env.note_dependency(str(source))
        first_line = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]
        first_line = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`|`+", r"\1", first_line)  # markup has no place in a box
        name = module.rpartition(".")[2]
        return f"<div><b>{html.escape(name)}</b><span>{html.escape(first_line)}</span></div>"


class ResultTables(SphinxDirective):
    """Include every rendered table of a folder."""

    required_arguments = 1

    def run(self):
        _, folder = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(folder)
        content = []
        for path in sorted(Path(folder).glob("*.rst")):
            self.env.note_dependency(str(path))
            # Figures lie beside the tables.
            text = path.read_text().replace(".. image:: ", f".. image:: {self.arguments[0]}/")
            content += self.parse_text_to_nodes(text, allow_section_headings=True)
        return content or [nodes.paragraph("", "No table has been rendered yet.")]


def setup(app):
    app.add_directive("layers", Layers)
    app.add_directive("result-tables", ResultTables)
    return {"parallel_read_safe": True}
