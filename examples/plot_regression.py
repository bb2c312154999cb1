"""
Regression: targets that belong to other rows
=============================================

A lookup that slipped, a table that was sorted in one column only: the targets of some rows are those of other rows.
Each value looks right on its own. Only together with the features can one see that it is wrong.
"""

# %%
# 500 rows of Friedman's first problem (ten features, five of them useful); the targets of one row in five are shuffled
# among each other. 100 rows were checked.

from sklearn.datasets import make_friedman1

from sklearn_cdgd.datasets import corrupt_targets

X, y = make_friedman1(600, noise=1.0, random_state=0)
X, y, X_clean, y_clean = X[:500], y[:500], X[500:], y[500:]
y_noisy, is_corrupted = corrupt_targets(y, 0.2, kind="shuffle", random_state=0)

# %%
# Nothing changes in the call. That this is regression follows from the targets; say ``task="regression"`` if yours are
# whole numbers.

from sklearn_cdgd import CorruptionDetector

detector = CorruptionDetector(random_state=0).fit(X, y_noisy, X_clean, y_clean)
flags = detector.predict(X)
print(f"{flags.sum()} rows are flagged, {(flags & is_corrupted).sum()} of the {is_corrupted.sum()} wrong ones")

# %%
# Given and predicted targets
# ---------------------------
# A row is flagged when its loss, under members that did not see it, lowered or raised a little by alpha,
# looks more like the loss of a target that belongs to another row than like that of a clean row: when it is above
# ``loss_limit_``. Good rows for which the ensemble is poor, or the noise large, are flagged too, and a wrong target
# that happens to be near the right one is not.

import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(5.5, 5), layout="constrained")
for wrong, color, name in [(False, "#0072b2", "right"), (True, "#d55e00", "wrong")]:
    for flagged, marker in [(False, "o"), (True, "x")]:
        rows = (is_corrupted == wrong) & (flags == flagged)
        label = f"{name}, {'flagged' if flagged else 'kept'}: {rows.sum()}"
        ax.scatter(y_noisy[rows], detector.predictions_[rows], c=color, marker=marker, s=25, label=label)
ax.axline((15, 15), slope=1, color="gray", linewidth=1)
ax.set(xlabel="given target", ylabel="predicted target", aspect="equal")
ax.legend(fontsize="small")
plt.show()

# %%
# To be stricter or laxer, set the limit; this needs no new fit.

for factor in (0.5, 1, 2):
    flags = detector.set_params(loss_limit=factor * detector.loss_limit_).predict()
    print(f"limit {detector.loss_limit:.3f}: {flags.sum()} flagged, {(flags & is_corrupted).sum()} of them wrong")
