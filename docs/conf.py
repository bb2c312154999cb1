"""Configuration of the documentation; built by `make docs`."""

import sys
from pathlib import Path

import sklearn_cdgd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "sklearn_cdgd"
author = "The sklearn_cdgd developers"
copyright = author
version = release = sklearn_cdgd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "drawn_from_files",
    "every_public_name",
    "public_members",
]
exclude_patterns = ["_build"]
# Text in single backquotes is code, unless it names something that the reference documents.
default_role = "obj"

# --- API reference ----------------------------------------------------------------------------------------------------
autosummary_generate = True
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
templates_path = ["_templates"]
numpydoc_show_class_members = False
# A missing docstring, a parameter that is left out, and one that does not exist fail the build.
numpydoc_validation_checks = {"GL08", "PR01", "PR02", "RT01", "SS01"}
numpydoc_validation_exclude = {r"\.__init__$", r"\.__call__$", r"\.set_\w+_request$"}

# --- gallery ----------------------------------------------------------------------------------------------------------
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"demo_",
    "within_subsection_order": "gallery_order.FirstThingsFirst",
    "abort_on_example_error": True,
    "parallel": 2,
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": ("_repr_html_",),
    "copyfile_regex": r"^$",
    "backreferences_dir": None,
    "write_computation_times": False,
    "image_srcset": ["2x"],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# --- pages ------------------------------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "sklearn_cdgd"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
# A page without pages below it needs no list of those.
single_pages = ["index", "install", "benchmarks", "comparison", "inside", "contributing", "changelog"]
html_sidebars = {page: [] for page in single_pages}
html_theme_options = {
    "show_prev_next": True,
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
