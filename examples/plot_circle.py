"""
Two circles with 40 % of the labels flipped
===========================================

The toy problem of the paper (`arXiv 1905.05843 <https://arxiv.org/abs/1905.05843>`_) in the plane: 100 points on two
circles of radius 1 and 1.3, 40 of them with the wrong label, and 20 points that were checked. No classifier is told
that the classes are circles.
"""

# %%
# We use the outer loop of the paper here, which moves every inclusion variable at the same speed and sees the whole
# clean set, in fewer steps: in closed form it takes a second or two, and drives nearly every variable to 0 or to 1.
# The defaults are made for larger sets.

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

X, y = make_concentric_spheres(120, 2, random_state=0)
X, y, X_clean, y_clean = X[:100], y[:100], X[100:], y[100:]
y_noisy, is_corrupted = flip_labels(y, 0.4, random_state=0)

detector = CorruptionDetector(outer_lr=0.2, outer_eps=0, max_iter=60, clean_cv=None, average=False, random_state=0)
detector.fit(X, y_noisy, X_clean, y_clean)

# %%
# Before and after
# ----------------
# Colours are the given labels. Rings mark the points whose label is wrong, which the detector was not told.

from sklearn_cdgd import CleanupDisplay

CleanupDisplay.from_estimator(detector, X, y_noisy, is_corrupted)

# %%
# Inclusion variables
# -------------------
# Each point has a number alpha in [0, 1], learnt by gradient descent through the training of the model: 1 means that
# training on this point helps on the clean points, 0 that it hurts.

import numpy as np

from sklearn_cdgd import InclusionDisplay

saturated = np.mean((detector.alpha_ < 0.05) | (detector.alpha_ > 0.95))
print(f"{saturated:.0%} of the inclusion variables are within 0.05 of 0 or 1")
InclusionDisplay.from_estimator(detector, is_corrupted)

# %%
# The outer loss
# --------------
# What is minimised is the clean loss of the model that is trained with the inclusion variables.

from sklearn_cdgd import OuterLossDisplay

OuterLossDisplay.from_estimator(detector)
