"""
Flags with a guarantee
======================

How many good rows do you lose if you drop all that is flagged? ``method="conformal"`` lets you say: with ``fdr=0.1`` no
more than one flagged row in ten is right, on average over sets like yours. Every noisy row is compared with the clean
rows, so this rests on one condition: the clean set is drawn like the right rows of the noisy set.
"""

# %%
# Digits that are hard to read
# ----------------------------
# A bad scanner: noise on the pixels of handwritten digits. 800 rows have a wrong label in five; 300 rows were drawn at
# random from the same source and checked. Some right labels look wrong here, so flags cannot all be good.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_cdgd.datasets import flip_labels

X, y = load_digits(return_X_y=True)
X = X + np.random.RandomState(0).normal(0, 5, X.shape)
X, X_clean, y, y_clean = train_test_split(X, y, train_size=800, test_size=300, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.2, kind="uniform", random_state=0)

# %%
# One fit. ``fdr`` is read when ``predict`` is called, so it can be changed afterwards.

from sklearn_cdgd import CorruptionDetector

detector = CorruptionDetector(method="conformal", fdr=0.1, random_state=0)
detector.fit(X, y_noisy, X_clean, y_clean)
flags = detector.predict(X)
print(f"{flags.sum()} rows are flagged, {(flags & ~is_corrupted).sum()} of them have a right label")

# %%
# What was asked for, and what came
# ---------------------------------
# The share of right rows among the flagged is the *false discovery proportion*, and the share of wrong rows that are
# flagged is the *power*. The guarantee is about the mean of the first over many sets; on a single set, as here, it may
# lie on either side of the line. A rate that is too small for 300 clean rows flags nothing at all.

import matplotlib.pyplot as plt

rates = np.linspace(0.02, 0.4, 39)
masks = [detector.set_params(fdr=fdr).predict() for fdr in rates]
proportions = [(mask & ~is_corrupted).sum() / max(1, mask.sum()) for mask in masks]
powers = [mask[is_corrupted].mean() for mask in masks]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
left.plot(rates, proportions, ".-", color="#0072b2", label="this set")
left.plot(rates, rates, color="gray", linestyle=":", label="as asked for")
left.set(xlabel="fdr", ylabel="false discovery proportion", ylim=(-0.02, 0.42))
left.legend()
right.plot(rates, powers, ".-", color="#d55e00")
right.set(xlabel="fdr", ylabel="power", ylim=(-0.02, 1.02))
plt.show()

# %%
# Why it works
# ------------
# The p-value of a row is the share of clean rows that look as bad. A right row is as likely to stand at any place
# among them, so the p-values of right rows are spread evenly; those of wrong rows crowd at 0. From the right half
# of the picture one can read how many right rows there are, and so how many of them a limit at the left lets through.

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
parts = [detector.p_values_[~is_corrupted], detector.p_values_[is_corrupted]]
ax.hist(parts, np.linspace(0, 1, 21), stacked=True, color=["#0072b2", "#d55e00"], label=["right label", "wrong label"])
ax.axhline(2 * (detector.p_values_ >= 0.5).sum() / 20, color="gray", linestyle=":", label="right rows, estimated")
ax.set(xlabel="p-value", ylabel="rows")
ax.legend()
plt.show()

# %%
# The whole in words
# ------------------
# ``report`` says what there is without knowing the truth.

print(detector.set_params(fdr=0.1).report())

# %%
# When not to trust it
# --------------------
# A clean set of rows that somebody picked because they are easy to read would have made right rows of the noisy set
# look bad beside them, and nothing in the fit can tell. :doc:`The limits </guide/limits>` say more, and
# :doc:`/guide/clean_sets` how many clean rows a rate needs.
