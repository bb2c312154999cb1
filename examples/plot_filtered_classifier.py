"""
Train any classifier on noisy labels
====================================

Two in five of the digits below carry the label of the mirrored class (0 for 9, 1 for 8, ...); 150 others were checked
by hand. :class:`~sklearn_cdgd.FilteredClassifier` finds the wrong labels and fits a plain logistic regression to what
is left. Is that better than to fit all rows as they come, or the checked rows alone?
"""

# %%
# The data
# --------
# 600 noisy rows, 150 clean ones, and the rest to test on, with their true labels.

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from sklearn_cdgd import CorruptionDetector, FilteredClassifier
from sklearn_cdgd.datasets import flip_labels

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, train_size=750, stratify=y, random_state=0)
X, X_clean, y, y_clean = train_test_split(X, y, test_size=150, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.4, random_state=0)

# %%
# Drop, weight or relabel
# -----------------------
# The three modes differ in what becomes of suspicious rows, not in how they are found: with ``memory`` the detector
# is trained once.

classifier = LogisticRegression(max_iter=300)
accuracy = {
    "noisy rows": classifier.fit(X, y_noisy).score(X_test, y_test),
    "clean rows": classifier.fit(X_clean, y_clean).score(X_test, y_test),
    "noisy and clean rows": classifier.fit(np.r_[X, X_clean], np.r_[y_noisy, y_clean]).score(X_test, y_test),
}
with tempfile.TemporaryDirectory() as folder:
    detector = CorruptionDetector(memory=folder, random_state=0)
    for mode in ("drop", "weight", "relabel"):
        filtered = FilteredClassifier(classifier, detector, mode=mode)
        filtered.fit(X, y_noisy, X_clean, y_clean)
        accuracy[f'filtered, mode="{mode}"'] = filtered.score(X_test, y_test)
accuracy["all rows, true labels"] = classifier.fit(np.r_[X, X_clean], np.r_[y, y_clean]).score(X_test, y_test)

# %%
# Accuracy on rows with true labels
# ---------------------------------

colors = ["tab:gray"] * 3 + ["tab:blue"] * 3 + ["tab:green"]
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
bars = ax.barh(list(accuracy), list(accuracy.values()), color=colors)
ax.bar_label(bars, fmt="{:.3f}", padding=3)
ax.invert_yaxis()
ax.set(
    xlim=(0.5, 1.03), xlabel="accuracy on test rows", title="Logistic regression on digits, 40 % of the labels wrong"
)

# %%
# What was found
# --------------
# ``detector_`` is the fitted detector. Its most suspicious rows, with the label that they came with and the one that it
# suggests:

detector = filtered.detector_
table = detector.to_frame()
figure, axes = plt.subplots(2, 6, figsize=(7, 3), layout="constrained")
for ax, row in zip(axes.flat, detector.ranked_indices(), strict=False):
    ax.imshow(X[row].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"{table['given_label'].iloc[row]}, rather {table['suggested_label'].iloc[row]}", fontsize=9)
    ax.set_axis_off()

flags = detector.predict()
print(f"{flags.sum()} rows flagged, {is_corrupted[flags].mean():.1%} of them are wrong")
print(f"{flags[is_corrupted].mean():.1%} of the wrong rows are flagged")
plt.show()
