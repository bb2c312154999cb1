"""P5: errors that people made, in CIFAR-10N's labels and in the test sets of MNIST and CIFAR-10.

CIFAR-10N: 5,000 training rows with the label sets aggregate (9 % wrong), random1 (17 %) and worse (40 %); 500 other
rows with their original labels are the clean set. Test errors: 5,000 test rows, among them all that people voted down
(15 of MNIST's 10,000, 54 of CIFAR-10's), and 500 training rows as clean set; every row that was not put to the vote
counts as right, so precision is a lower bound. Precision at the number of errors is also the F1 of whoever knows how
many rows are wrong, and flags as many. CIFAR-10 is seen through a fixed embedding without training: 400 patches of 6 x
6 pixels drawn from the images, whitened, as the filters of one convolution, rectified, summed over the quadrants and
reduced to 200 principal components; MNIST by 100 principal components of its pixels. No label is used for either. Every
method has the default network and its defaults, save that ours takes half of its outer steps, with one initialisation
each, for the time. The label files are read from the folder that ``--labels`` names.
"""

from __future__ import annotations

import functools
import sys

import numpy as np
import torch
from sklearn.decomposition import PCA

from _data import IMAGES, LABELS_VARIABLE, load_cifar10n, load_voted_errors
from _run import Benchmark, Task, main

OPTIONS = dict(max_iter=12, n_inits=1)

load = functools.cache(lambda name: IMAGES[name]())


def embed(images: np.ndarray, n_filters: int, n_components: int) -> np.ndarray:
    """Return features of images by one convolution with whitened random patches; the same on every run."""
    rng = np.random.RandomState(0)
    size, step = 6, images.shape[-1] - 5
    n, at = rng.randint(len(images), size=20_000), rng.randint(step, size=(20_000, 2))
    patches = np.stack([images[i, :, r : r + size, c : c + size].ravel() for i, (r, c) in zip(n, at, strict=True)])
    patches = patches[np.ptp(patches, axis=1) > 0]  # a patch of one colour has no direction
    patches = (patches - patches.mean(axis=1, keepdims=True)) / np.sqrt(patches.var(axis=1, keepdims=True) + 0.01)
    values, vectors = np.linalg.eigh(np.cov(patches.T))
    whiten = vectors @ np.diag(1 / np.sqrt(values + 0.1)) @ vectors.T
    filters = patches[:n_filters] @ whiten
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    kernel = torch.as_tensor((filters @ whiten).reshape(n_filters, *images.shape[1:2], size, size), dtype=torch.float32)
    kernel -= kernel.mean(dim=(1, 2, 3), keepdim=True)
    features = []
    with torch.no_grad():
        for chunk in torch.as_tensor(images).split(250):
            # Patches differ in contrast: each is measured against the mean of the image.
            contrast = chunk.std(dim=(1, 2, 3), keepdim=True) + 0.1
            answer = torch.relu(torch.nn.functional.conv2d(chunk / contrast, kernel) - 0.25)
            features.append(torch.nn.functional.adaptive_avg_pool2d(answer, 2).flatten(1).sqrt().numpy())
    return PCA(n_components, whiten=True, random_state=0).fit_transform(np.concatenate(features))


def features(name: str, images: np.ndarray, options) -> np.ndarray:
    if name == "mnist":
        return PCA(100, random_state=0).fit_transform(images.reshape(len(images), -1))
    return embed(images, *((50, 50) if options.quick else (400, 200)))


def configurations(options) -> list[dict]:
    if options.quick:
        return [dict(set="cifar10", labels="worse")]
    people = [dict(set="cifar10", labels=name) for name in ("aggregate", "random1", "worse")]
    return [*people, dict(set="mnist", labels="test"), dict(set="cifar10", labels="test")]


def make_task(configuration: dict, seed: int, options) -> Task:
    name, labels = configuration["set"], configuration["labels"]
    n_noisy, n_clean = (600, 150) if options.quick else (5000, 500)
    images, rng = load(name), np.random.RandomState(seed)
    drawn = rng.permutation(len(images.X))[: n_noisy + n_clean]
    if labels == "test":
        errors = load_voted_errors(name, options.labels)
        noisy = np.concatenate([errors, rng.permutation(np.setdiff1d(np.arange(len(images.X_test)), errors))])[:n_noisy]
        noisy.sort()
        X, y, is_corrupted = images.X_test[noisy], images.y_test[noisy], np.isin(noisy, errors)
    else:
        noisy = drawn[n_clean:]
        y = load_cifar10n(options.labels)[labels][noisy]
        X, is_corrupted = images.X[noisy], y != images.y[noisy]
    clean = drawn[:n_clean]
    Z = features(name, np.concatenate([X, images.X[clean]]), options)
    return Task(
        (Z[: len(X)], y),
        (Z[len(X) :], images.y[clean]),
        is_corrupted,
        options=OPTIONS,
        judge=functools.partial(precision_at, is_corrupted),
    )


def precision_at(is_corrupted: np.ndarray, method: str, verdict) -> dict:
    """Return the share of errors among the most suspicious rows: as many as there are errors, 50, and 200."""
    order = np.argsort(verdict.scores, kind="stable")
    sizes = {"errors": int(is_corrupted.sum()), "50": 50, "200": 200}
    return {f"precision_at_{name}": float(is_corrupted[order[:k]].mean()) for name, k in sizes.items()}


def arguments(parser) -> None:
    parser.add_argument("--labels", metavar="FOLDER", help=f"of the label files; default: ${LABELS_VARIABLE}")


BENCHMARK = Benchmark(
    name="real_errors",
    about=__doc__,
    configurations=configurations,
    make_task=make_task,
    seeds=3,
    tables={
        "F1 / average precision": ("f1", "average_precision"),
        "Precision at the number of errors / at 50 / at 200": (
            "precision_at_errors",
            "precision_at_50",
            "precision_at_200",
        ),
        "Share of the rows that are flagged": ("flagged",),
    },
    compare=("f1", "average_precision", "precision_at_errors"),
    arguments=arguments,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
