"""
Text with TF-IDF
================

Documents were filed under the wrong subject. Which? Text goes through a pipeline: words are counted, the counts are
compressed to a few dozen columns, and the detector sees numbers.
"""

# %%
# The documents are the docstrings of SciPy's functions and classes; their subject is the part of SciPy that they come
# from. The name of that part is taken out, and of each docstring only the beginning is kept.

import importlib
import inspect
import re

SUBJECTS = ["stats", "signal", "linalg", "ndimage"]


def beginnings(subject, n_words=80):
    module = importlib.import_module(f"scipy.{subject}")
    for name in module.__all__:
        thing = getattr(module, name)
        text = (inspect.getdoc(thing) or "") if callable(thing) else ""
        words = re.findall(r"[a-z]{3,}", text.lower().replace(subject, "").replace(name.lower(), ""))
        if len(words) >= 20:
            yield " ".join(words[:n_words])


pairs = sorted({(text, subject) for subject in SUBJECTS for text in beginnings(subject)})
texts, subjects = zip(*pairs, strict=True)
print(len(texts), "documents, for instance:", texts[0][:70], "...")

# %%
# One document in five is misfiled. 100 were checked.

import numpy as np
from sklearn.model_selection import train_test_split

from sklearn_cdgd.datasets import flip_labels

texts, texts_clean, y, y_clean = train_test_split(
    np.array(texts, dtype=object), np.array(subjects), test_size=100, stratify=subjects, random_state=0
)
y_noisy, is_corrupted = flip_labels(y, 0.2, kind="uniform", random_state=0)

# %%
# The pipeline. Metadata routing lets the checked documents pass through the same steps; see :doc:`/guide/pipelines`.

import sklearn
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from sklearn_cdgd import CorruptionDetector

sklearn.set_config(enable_metadata_routing=True)
pipeline = make_pipeline(
    TfidfVectorizer(stop_words="english", sublinear_tf=True),
    TruncatedSVD(40, random_state=0),
    CorruptionDetector(random_state=0),
    transform_input=["X_clean"],
)
pipeline.fit(texts, y_noisy, X_clean=texts_clean, y_clean=y_clean)
sklearn.set_config(enable_metadata_routing=False)

# %%
# What was found
# --------------

detector = pipeline[-1]
flags = detector.predict()
print(f"{flags.sum()} documents are flagged, {(flags & is_corrupted).sum()} of the {is_corrupted.sum()} misfiled ones")

# %%
# The table that a reviewer works through, beside the beginning of each document:

frame = detector.to_frame().assign(text=[text[:60] for text in texts])
frame.iloc[detector.ranked_indices()].head(8)[["given_label", "suggested_label", "loss", "text"]]

# %%
# Where do the misfiled documents stand in the order of suspicion?

import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(7, 1.8), layout="constrained")
place = np.flatnonzero(is_corrupted[detector.ranked_indices()]) + 1
ax.eventplot(place, colors="#d55e00", lineoffsets=0)
ax.axvline(flags.sum(), color="gray", linestyle=":")
ax.set(xlabel="order of suspicion", yticks=[], xlim=(0, len(texts)), title="every stroke is a misfiled document")
plt.show()
