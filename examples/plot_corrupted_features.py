"""
Right label, wrong features
===========================

A label is not the only thing that can be wrong with a row: a sensor drifts, a scan is damaged, two files are swapped.
Here every digit carries its right label, but three images in ten are spoilt by noise. A hundred digits have been
checked by hand. Alpha does not care where the error is: a row that makes a network worse on the clean set loses its
weight. Forests do care, so they are left out here.
"""

# %%
# Spoil the images
# ----------------
# :func:`~sklearn_cdgd.datasets.corrupt_features` adds noise of three standard deviations to half of the pixels of a
# chosen row, and says which rows it chose.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import PrecisionRecallDisplay
from sklearn.model_selection import train_test_split

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd.datasets import corrupt_features

X, y = load_digits(return_X_y=True)
X, X_clean, y, y_clean = train_test_split(X[:1000], y[:1000], test_size=100, stratify=y[:1000], random_state=0)
X_noisy, is_corrupted = corrupt_features(X, 0.3, kind="noise", random_state=0)

# %%
# Find them
# ---------
# The baselines train on one of the two sets alone: ``NoisySetDetector`` learns the noise along with the digits,
# ``CleanSetDetector`` has a hundred digits to learn from. All three rank rows by how badly the given label fits.
# ``witnesses="networks"`` leaves out forests, which look past the noise and read the digit: good where labels are
# wrong, but here we want to know of the noise.

detectors = {
    "CorruptionDetector": CorruptionDetector(witnesses="networks", random_state=0),
    "NoisySetDetector": NoisySetDetector(random_state=0),
    "CleanSetDetector": CleanSetDetector(random_state=0),
}
for detector in detectors.values():
    detector.fit(X_noisy, y, X_clean, y_clean)

# %%
# Look at the result
# ------------------
# Left, how many of the rows at the top of each ranking are spoilt: no ranking finds them all, since a network reads
# many a digit through the noise. Right, the rows that a person would be shown first, as they are in the noisy set, with
# their labels, which are all right.

figure = plt.figure(figsize=(11, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2)
ax = left.subplots()
for name, detector in detectors.items():
    PrecisionRecallDisplay.from_predictions(is_corrupted, detector.loss_, name=name, ax=ax)
ax.axhline(is_corrupted.mean(), color="gray", linestyle="--", label="any order")
ax.set(
    xlabel="share of the spoilt rows that are found", ylabel="share of the found rows that are spoilt", ylim=(0, 1.03)
)
ax.legend(loc="lower left", fontsize=8)

first = detectors["CorruptionDetector"].ranked_indices()[:20]
for ax, row in zip(right.subplots(4, 5).flat, first, strict=True):
    ax.imshow(X_noisy[row].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
    ax.set_title(f"labelled {y[row]}", fontsize=8, color="black" if is_corrupted[row] else "tab:red")
    ax.set_axis_off()
right.suptitle(f"The 20 most suspicious rows: {np.sum(is_corrupted[first])} are spoilt (others in red)", fontsize=10)
plt.show()
