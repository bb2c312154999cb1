"""P2: MNIST and CIFAR-10 with mirrored labels, experiment 2 of arXiv 1905.05843.

10 % or 40 % of the labels are flipped, y to 9 - y. The network is the paper's: six convolutions, dropout 0.2 after
each of the first five, batches of 80, truncation after every epoch; weights are drawn after Kaiming, as with torch's
own smaller ones six layers hardly begin to learn. The size for two cores is 5,000 noisy and 1,000 clean rows, 10
epochs and 8 outer steps. So few steps have to be larger ones: the network trains with momentum 0.9 and lr 0.03, alpha
moves by our outer defaults, and T is read out as in the paper, by one network trained on all rows. ``--full`` is the
paper's size for a GPU: 50,000 noisy rows, 5,000 clean ones from the test set, 130 epochs of plain SGD with lr 0.12,
Adam with lr 0.05 for 150 outer steps, plateaus after 20; there is no inner plateau rule. S_n and S_c train the same
network for as many epochs. Beside S_n stands what a perfect alpha would give: the F1 of what the network gets wrong
when it is trained on the right rows only. The figure shows F1 of alpha against the threshold, the appendix figure of
the paper.
"""

from __future__ import annotations

import functools
import sys

import numpy as np
import torch
from sklearn.metrics import f1_score
from skorch import NeuralNetClassifier
from torch import nn

from _data import IMAGES
from _peers import PAPER_READ_OUT
from _run import Benchmark, Task, main
from sklearn_cdgd.datasets import flip_labels

load = functools.cache(lambda name: IMAGES[name]())

# Rows, clean rows, how the network is trained, and what ours gets beside its defaults.
SMALL = dict(
    n_noisy=5000,
    n_clean=1000,
    training=dict(max_epochs=10, lr=0.03, optimizer__momentum=0.9),
    options=dict(max_iter=8),
)
FULL = dict(
    n_noisy=50_000,
    n_clean=5000,
    training=dict(max_epochs=130, lr=0.12),
    options=dict(max_iter=150, outer_lr=0.05, outer_eps=0, outer_patience=20, average=False),
)
QUICK = dict(n_noisy=400, n_clean=200, training=dict(max_epochs=3, lr=0.12), options=dict(max_iter=2))
COMMON = PAPER_READ_OUT | dict(truncation=1, clean_every="epoch")


class PaperConvolution(nn.Module):
    """The six convolutions of the paper."""

    def __init__(self, n_channels: int, n_outputs: int = 10):
        super().__init__()
        # Channels, kernel, stride, padding.
        plan = [(48, 5, 2, 1), (64, 3, 2, 1), (96, 3, 1, 0), (128, 3, 2, 1), (168, 3, 1, 0), (n_outputs, 3, 2, 1)]
        layers = []
        for channels, kernel, stride, padding in plan:
            layers += [nn.Conv2d(n_channels, channels, kernel, stride, padding), nn.ReLU(), nn.Dropout(0.2)]
            n_channels = channels
        self.convolutions = nn.Sequential(*layers[:-2])
        for convolution in layers[::3]:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)

    def forward(self, X):
        return self.convolutions(X).mean(dim=(2, 3))


def net_of(n_channels: int, device: str, **training):
    return lambda n_outputs: NeuralNetClassifier(
        PaperConvolution,
        module__n_channels=n_channels,
        module__n_outputs=n_outputs,
        criterion=nn.CrossEntropyLoss,
        batch_size=80,
        device=device,
        train_split=None,
        verbose=0,
        **training,
    )


def configurations(options) -> list[dict]:
    sets = ["mnist"] if options.quick else options.sets
    return [dict(set=name, rate=rate) for name in sets for rate in ((0.4,) if options.quick else (0.1, 0.4))]


def make_task(configuration: dict, seed: int, options) -> Task:
    size = QUICK if options.quick else FULL if options.full else SMALL
    images = load(configuration["set"])
    rng = np.random.RandomState(seed)
    noisy = rng.permutation(50_000)[: size["n_noisy"]]
    # The paper shuffles the test set once for all.
    clean = np.random.RandomState(0).permutation(10_000)[: size["n_clean"]]
    y_noisy, is_corrupted = flip_labels(images.y[noisy], configuration["rate"], random_state=rng)
    network = net_of(images.X.shape[1], options.device, **size["training"])

    def judge(method, verdict) -> dict:
        if method == "alpha":
            return at_thresholds(verdict, is_corrupted)
        if method == "S_n":
            return {"f1_of_right_rows": ceiling(network(10), images.X[noisy], y_noisy, is_corrupted)}
        return {}

    return Task(
        (images.X[noisy], y_noisy),
        (images.X_test[clean], images.y_test[clean]),
        is_corrupted,
        net_of=network,
        options=COMMON | size["options"],
        judge=judge,
    )


def ceiling(net, X, y, is_corrupted) -> float:
    """Return the F1 of what the network gets wrong once it is trained on the right rows only, as by a perfect alpha."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net.fit(X[~is_corrupted], y[~is_corrupted])
    return f1_score(is_corrupted, net.predict(X) != y)


def at_thresholds(verdict, is_corrupted) -> dict:
    """Return the F1 of flagging alphas below each of many thresholds."""
    thresholds = np.linspace(0.05, 0.95, 19)
    return {f"f1_at_{t:.2f}": f1_score(is_corrupted, verdict.scores < t, zero_division=0) for t in thresholds}


def arguments(parser) -> None:
    parser.add_argument("--full", action="store_true", help="the paper's size; for a GPU")
    parser.add_argument("--device", default="cpu", help="of torch; default: cpu")
    parser.add_argument(
        "--sets", nargs="+", choices=IMAGES, default=["mnist", "cifar10"], help="default: mnist cifar10"
    )


def benchmark(name: str) -> Benchmark:
    return Benchmark(
        name=name,
        about=__doc__,
        configurations=configurations,
        make_task=make_task,
        seeds=4,
        methods=("CDGD", "S_n", "S_c"),
        tables={
            "F1 / average precision": ("f1", "average_precision"),
            "F1 of what the network gets wrong when it is trained on the right rows only": ("f1_of_right_rows",),
        },
        figures=(dict(threshold="alpha"),),
        arguments=arguments,
    )


if __name__ == "__main__":
    sys.exit(main(benchmark("images_full" if "--full" in sys.argv else "images")))
