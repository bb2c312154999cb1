"""
A pipeline that scales, and what happens to the clean set
=========================================================

A network of your own usually wants scaled columns. In a pipeline the scaler has to be applied to the clean set too, and
scikit-learn does so only if it is asked to.
"""

# %%
# The columns of scikit-learn's breast cancer set range from thousandths to thousands. One label in five is flipped.

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from sklearn_cdgd.datasets import flip_labels

X, y = load_breast_cancer(return_X_y=True)
X, X_clean, y, y_clean = train_test_split(X, y, test_size=80, stratify=y, random_state=0)
y_noisy, is_corrupted = flip_labels(y, 0.2, random_state=0)

# %%
# The network: a torch module without any scaling of its own, and how to train it.

from skorch import NeuralNetClassifier
from torch import nn

net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 2)),
    criterion=nn.CrossEntropyLoss,
    optimizer__momentum=0.9,
    lr=0.1,
    batch_size=-1,
    max_epochs=100,
)

# %%
# Two things ask for a scaled clean set
# -------------------------------------
# * metadata routing is switched on; the detector then asks for ``X_clean`` and ``y_clean`` by itself,
# * ``transform_input`` names what the steps before it have to transform.

import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_cdgd import CorruptionDetector

sklearn.set_config(enable_metadata_routing=True)
detector = CorruptionDetector(net, max_iter=8, random_state=0)
pipeline = make_pipeline(StandardScaler(), detector, transform_input=["X_clean"])
pipeline.fit(X, y_noisy, X_clean=X_clean, y_clean=y_clean)

# %%
# The pipeline takes raw rows, as any pipeline does:

flags = pipeline.predict(X)
print(f"{flags.sum()} rows are flagged, {(flags & is_corrupted).sum()} of the {is_corrupted.sum()} wrong ones")

# %%
# It does what we would have done by hand
# ---------------------------------------

scaler = StandardScaler().fit(X)
by_hand = CorruptionDetector(net, max_iter=8, random_state=0)
by_hand.fit(scaler.transform(X), y_noisy, scaler.transform(X_clean), y_clean)
print("same flags:", (by_hand.predict() == flags).all())

# %%
# Where the wrong rows ended up
# -----------------------------
# The last step holds everything that was learnt.

from sklearn_cdgd import InclusionDisplay

InclusionDisplay.from_estimator(pipeline[-1], is_corrupted)
sklearn.set_config(enable_metadata_routing=False)

# %%
# .. warning::
#    Without routing, ``pipeline.fit(X, y_noisy, corruptiondetector__X_clean=X_clean, ...)`` runs as well, but hands the
#    clean set to the last step *as it is*, unscaled; a warning tells of it. See :doc:`/guide/pipelines` for
#    this and other traps.
