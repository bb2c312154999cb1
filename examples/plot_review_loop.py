"""
Review in rounds
================

A person who checks suspicious rows makes new clean rows all the time. So do not check a whole list in one go: check
its top, move the checked rows to the clean set, and fit again. The clean set grows exactly where the labels are
doubtful, and the next list is better.

Here 40 of scikit-learn's handwritten digits have been checked; of 500 others two in five carry the label of the
mirrored class (0 for 9, 1 for 8, ...). We play the person: we know the truth.
"""

# %%
# The data
# --------
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd.datasets import flip_labels

X, y = load_digits(return_X_y=True)
X, X_clean, y, y_clean = train_test_split(X, y, train_size=500, test_size=40, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.4, kind="mirror", random_state=0)

# %%
# The loop
# --------
# In every round the detector is fitted on what nobody has looked at yet, and the 40 most suspicious rows are checked.
# A checked row joins the clean set with its true label, whether it was wrong or not. Few outer steps and two folds are
# enough for a list of candidates, and keep a round short.
rows_per_round, n_rounds = 40, 5
detector = CorruptionDetector(random_state=0)
unchecked, checked, rankings = np.arange(len(X)), np.array([], dtype=int), []

for _ in range(n_rounds):
    detector.fit(
        X[unchecked],
        y_noisy[unchecked],
        np.concatenate([X_clean, X[checked]]),
        np.concatenate([y_clean, y[checked]]),
    )
    rankings.append(unchecked[detector.ranked_indices()])
    checked = np.concatenate([checked, rankings[-1][:rows_per_round]])
    unchecked = np.setdiff1d(unchecked, checked)

print(f"{len(checked)} rows checked, {is_corrupted[checked].sum()} of {is_corrupted.sum()} errors found")

# %%
# What the person sees
# --------------------
# :meth:`~sklearn_cdgd.CorruptionDetector.to_frame` shows the given label, the one that is suggested, and how
# probable that is. These are the rows that would be checked next.
table = detector.to_frame().assign(true_label=y[np.sort(rankings[-1])])
shown = ["given_label", "suggested_label", "suggested_probability", "true_label"]
print(table[shown].iloc[detector.ranked_indices()[rows_per_round:][:10]].round(2))

# %%
# Was it worth the fits?
# ----------------------
# The list of the first fit, worked off to its end, finds nearly as many errors here: the first fit is good already. A
# random order finds two in five.
n_checked = np.arange(len(checked) + 1)


def errors_found(order):
    return np.concatenate([[0], is_corrupted[order[: len(checked)]].cumsum()])


fig, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
lines = {
    "every check a hit": (np.minimum(n_checked, is_corrupted.sum()), dict(color="0.7", linestyle=":")),
    f"fit again every {rows_per_round} rows": (errors_found(checked), dict(color="C0", linewidth=2)),
    "list of the first fit": (errors_found(rankings[0]), dict(color="C1")),
    "random order": (n_checked * is_corrupted.mean(), dict(color="0.4", linestyle="--")),
}
for name, (found, style) in lines.items():
    ax.plot(n_checked, found, label=name, **style)
ax.plot(n_checked[::rows_per_round], errors_found(checked)[::rows_per_round], "o", color="C0", markersize=5)
ax.set(xlabel="rows checked", ylabel="errors found", xlim=(0, None), ylim=(0, None))
ax.set_title(
    f"{is_corrupted.sum()} wrong labels among {len(X)} digits, {len(X_clean)} clean rows to begin with", loc="left"
)
ax.legend(loc="upper left", frameon=False)
ax.margins(x=0)
ax.spines[["top", "right"]].set_visible(False)
plt.show()
