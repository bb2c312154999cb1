"""
Search for a threshold without training again
=============================================

``CorruptionDetector(method="alpha")`` flags the rows whose inclusion variable alpha is below a threshold. Which one?
Two scorers answer in a search: :func:`~sklearn_cdgd.metrics.make_clean_scorer` asks how well the classifier that was
trained on the kept rows does on clean rows, which is what can be had in practice;
:func:`~sklearn_cdgd.metrics.make_detection_scorer` asks how many errors are found, which takes data whose errors are
known. The threshold is read when ``predict`` is called, so with ``memory`` everything is learnt for the first
candidate only.
"""

# %%
# Noisy rows, and two clean sets
# ------------------------------
# One clean set is for the detector. The other is for the scorer: on the rows that alpha was fitted to, a score would
# flatter.

import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, train_test_split

from sklearn_cdgd import CorruptionDetector, FilteredClassifier
from sklearn_cdgd.datasets import flip_labels
from sklearn_cdgd.metrics import make_clean_scorer, make_detection_scorer

X, y = load_digits(return_X_y=True)
X, X_checked, y, y_checked = train_test_split(X / 16, y, train_size=700, test_size=400, stratify=y, random_state=0)
X_clean, X_valid, y_clean, y_valid = train_test_split(
    X_checked, y_checked, test_size=200, stratify=y_checked, random_state=0
)
y_noisy, is_corrupted = flip_labels(y, 0.4, random_state=0)

# %%
# Twenty thresholds
# -----------------
# A detector judges the very rows that it was fitted to, so one fold holds them all. The clean set is passed as a tuple
# of one: whatever is as long as ``X``, cross-validation would split.

everything = np.arange(len(X))
thresholds = np.linspace(0.05, 1, 20)
scoring = {
    "accuracy": make_clean_scorer("accuracy", X_valid, y_valid),
    "F1": make_detection_scorer(f1_score, truth=(X, y_noisy, is_corrupted)),
}
with tempfile.TemporaryDirectory() as folder:
    detector = CorruptionDetector(method="alpha", cv=None, memory=folder, random_state=0)
    search = GridSearchCV(
        FilteredClassifier(LogisticRegression(max_iter=300), detector, use_clean=False),
        {"detector__threshold": thresholds},
        scoring=scoring,
        refit="accuracy",
        cv=[(everything, everything)],
    )
    start = time.perf_counter()
    search.fit(X, y_noisy, X_clean=(X_clean,), y_clean=(y_clean,))
    seconds = time.perf_counter() - start

fit_times = search.cv_results_["mean_fit_time"]
print(f"{seconds:.0f} s in all: {fit_times[0]:.1f} s for the first threshold, {fit_times[1:].mean():.2f} s for another")

# %%
# Do the scorers agree?
# ---------------------
# Both rise steeply, and from about 0.4 on the threshold matters little. Only F1 falls again near 1, where many right
# rows are flagged: logistic regression can do without these. Accuracy on clean rows needs no truth about the noisy
# rows.

figure, (top, bottom) = plt.subplots(2, sharex=True, figsize=(6.5, 4.5), layout="constrained")
for name, color in [("accuracy", "tab:blue"), ("F1", "tab:orange")]:
    top.plot(thresholds, search.cv_results_[f"mean_test_{name}"], ".-", color=color, label=name)
top.axvline(search.best_params_["detector__threshold"], color="tab:blue", linestyle=":", label="best accuracy")
top.set(ylabel="score", title="Accuracy on clean rows, and F1 of the flags")
top.legend()
alpha = search.best_estimator_.detector_.alpha_
bins = np.linspace(0, 1, 41)
bottom.hist([alpha[~is_corrupted], alpha[is_corrupted]], bins, stacked=True, color=["tab:green", "tab:red"])
bottom.legend(["right label", "wrong label"])
bottom.set(xlabel="threshold, alpha", ylabel="rows")
plt.show()
