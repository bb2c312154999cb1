"""
Find wrong labels in your own data: the first ten minutes
=========================================================

You have rows with labels, some of them wrong, and a hundred rows that somebody checked. Four lines find the wrong ones.
Handwritten digits stand in for your data here. One label in ten is replaced on purpose, so that we can count what was
found.
"""

# %%
# The data
# --------
# 500 rows with doubtful labels, the **noisy set**, and 100 that were checked, the **clean set**. No row is in both.

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_cdgd.datasets import flip_labels

X, y = load_digits(return_X_y=True)
X, X_clean, y, y_clean = train_test_split(X, y, train_size=500, test_size=100, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.1, kind="uniform", random_state=0)
print(f"{is_corrupted.sum()} of {len(y)} labels are wrong")

# %%
# Fit and flag
# ------------
# ``predict`` returns a mask, True for rows that are held to be wrong, so ``X[~flags]`` is the rest.

from sklearn_cdgd import CorruptionDetector

detector = CorruptionDetector(random_state=0)
detector.fit(X, y_noisy, X_clean, y_clean)
flags = detector.predict(X)
print(f"{flags.sum()} rows are flagged, {(flags & is_corrupted).sum()} of them are wrong")

# %%
# Look at the most suspicious rows
# --------------------------------
# A flag is a suspicion. The sheet shows what a person should look at first: the label that was given, and the one that
# the detector would give.

from sklearn_cdgd import ReviewSheetDisplay

ReviewSheetDisplay.from_estimator(detector, X, y_noisy, n_images=15, image_shape=(8, 8))

# %%
# The same as a table, for any kind of data:

detector.to_frame().iloc[detector.ranked_indices()].head()

# %%
# How far down the list is it worth reading?
# ------------------------------------------
# Read in this order, a reviewer meets the wrong rows early. In any other order one would have to read everything.

import matplotlib.pyplot as plt
import numpy as np

found = np.cumsum(is_corrupted[detector.ranked_indices()])
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(np.arange(1, len(found) + 1), found, label="most suspicious first")
ax.plot([1, len(found)], [0, found[-1]], color="gray", linestyle=":", label="in any order")
ax.set(xlabel="rows that were read", ylabel="wrong labels found")
ax.legend()
plt.show()

# %%
# The first 50 rows of the list hold most of the wrong labels:

print(f"reading 50 rows finds {found[49]} of {found[-1]} wrong labels")
