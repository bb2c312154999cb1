"""
Images and a convolution of your own
====================================

Any network that torch can train goes in, with its own criterion, optimiser and schedule: as a skorch net. Images stay
four-dimensional.
"""

# %%
# 500 digits of 8 x 8 pixels; in 40 % of them the label is that of the mirrored class: 9 for 0, 8 for 1, and so on. Such
# errors are systematic, so a network that is trained on them learns them. 100 images were checked.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_cdgd.datasets import flip_labels

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
X, X_clean, y, y_clean = train_test_split(X, y, train_size=500, test_size=100, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.4, kind="mirror", random_state=0)
print("noisy set:", X.shape, "clean set:", X_clean.shape)

# %%
# The network. It returns logits, so the criterion is the cross-entropy. The detector trains it from scratch again and
# again, so it should be as small as the task allows, and its learning rate should train it stably.

import torch
from skorch import NeuralNetClassifier
from torch import nn


def small_convolution():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


net = NeuralNetClassifier(
    small_convolution,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=0.02,
    batch_size=250,
    max_epochs=20,
)

# %%
# Fit, and compare the flags with the truth.

from sklearn.metrics import f1_score

from sklearn_cdgd import CorruptionDetector

detector = CorruptionDetector(net, random_state=0).fit(X, y_noisy, X_clean, y_clean)
flags = detector.predict()
print(f"F1 {f1_score(is_corrupted, flags):.2f}; flagging everything has {f1_score(is_corrupted, flags | True):.2f}")

# %%
# The images that a person should look at first:

from sklearn_cdgd import ReviewSheetDisplay

ReviewSheetDisplay.from_estimator(detector, X, y_noisy, n_images=15)

# %%
# The cleaned-up model
# --------------------
# ``net_`` is the network that was trained on the noisy set, every row weighted by its probability of being right, and
# on the clean set. On digits that nobody has seen it does much better than the same network trained on the noisy set
# as it came.

from sklearn_cdgd import NoisySetDetector

X_all, y_all = load_digits(return_X_y=True)
X_all = (X_all / 16).astype(np.float32).reshape(-1, 1, 8, 8)
seen = {row.tobytes() for row in np.concatenate([X, X_clean])}
new = np.array([row.tobytes() not in seen for row in X_all])
plain = NoisySetDetector(net, random_state=0).fit(X, y_noisy, X_clean, y_clean)
for name, fitted in [("as it came", plain), ("cleaned up", detector)]:
    accuracy = np.mean(fitted.classes_[fitted.net_.predict(X_all[new])] == y_all[new])
    print(f"trained on the noisy set {name}: {accuracy:.1%} of {new.sum()} new digits are right")
