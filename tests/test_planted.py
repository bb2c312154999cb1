"""Planted errors are found in tokens, images, text, tables of mixed types, and in features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import skorch_net
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_wine
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd.datasets import corrupt_features, flip_labels

RATE = 0.3
# Flagging every row finds all errors with a precision of RATE.
FLOOR = 2 * RATE / (1 + RATE)


def split(X, y, n_clean, seed):
    """Return X, noisy y, clean X, clean y and the truth about the noisy rows."""
    X, X_clean, y, y_clean = train_test_split(X, y, test_size=n_clean, stratify=y, random_state=seed)
    y_noisy, is_corrupted = flip_labels(y, RATE, random_state=seed)
    return X, y_noisy, X_clean, y_clean, is_corrupted


def check_found(is_corrupted, detector):
    f1 = f1_score(is_corrupted, detector.predict())
    ap = average_precision_score(is_corrupted, -detector.decision_function())
    print(f"F1 {f1:.3f}, average precision of alpha {ap:.3f}; flagging all rows: {FLOOR:.3f}, {RATE:.3f}")
    assert f1 > FLOOR + 0.2
    assert ap > RATE + 0.2


class LastState(nn.Module):
    """Embedding, LSTM, and a linear layer on its last state."""

    def __init__(self, n_tokens=10, n_classes=2):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 8)
        self.recurrent = nn.LSTM(8, 16, batch_first=True)
        self.output = nn.Linear(16, n_classes)

    def forward(self, tokens):
        return self.output(self.recurrent(self.embedding(tokens))[0][:, -1])


def token_sequences(n_rows, seed):
    """Sequences that walk up or down a circle of ten tokens, with stumbles: only their order tells the class."""
    rng = np.random.RandomState(seed)
    y = np.arange(n_rows) % 2
    steps = np.where(rng.rand(n_rows, 8) < 0.8, 2 * y[:, None] - 1, rng.randint(-3, 4, (n_rows, 8)))
    return (rng.randint(10, size=(n_rows, 1)) + steps.cumsum(axis=1)) % 10, y


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_lstm_on_token_sequences(seed):
    X, y, X_clean, y_clean, is_corrupted = split(*token_sequences(400, seed), 100, seed)
    net = skorch_net(LastState, optimizer=torch.optim.Adam, lr=0.03, batch_size=64, max_epochs=10)
    detector = CorruptionDetector(net, max_iter=4, cv=3, random_state=0)
    check_found(is_corrupted, detector.fit(X, y, X_clean, y_clean))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_convolution_on_images(seed):
    images, y = load_digits(return_X_y=True)
    images = images[:500].reshape(-1, 1, 8, 8) / 16
    X, y, X_clean, y_clean, is_corrupted = split(images, y[:500], 100, seed)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10))
    net = skorch_net(module, lr=0.2, optimizer__momentum=0.9, batch_size=64, max_epochs=15)
    detector = CorruptionDetector(net, max_iter=4, cv=3, random_state=0)
    check_found(is_corrupted, detector.fit(X, y, X_clean, y_clean))


def reviews(n_rows, seed):
    """Short texts: four words of eight speak for the class, the others mean nothing."""
    rng = np.random.RandomState(seed)
    y = np.array(["bad", "good"])[np.arange(n_rows) % 2]
    verdicts = {
        "bad": ["broke", "refund", "useless", "slow", "torn", "rude"],
        "good": ["lovely", "sturdy", "quick", "perfect", "kind", "neat"],
    }
    filler = [f"word{n}" for n in range(200)]
    texts = [" ".join([*rng.choice(verdicts[label], 4), *rng.choice(filler, 4)]) for label in y]
    return np.array(texts, dtype=object), y


@pytest.mark.parametrize("seed", [0])
def test_text_in_a_pipeline(seed):
    texts, y, clean_texts, y_clean, is_corrupted = split(*reviews(400, seed), 80, seed)
    words = TfidfVectorizer().fit(texts)
    pipeline = make_pipeline(words, CorruptionDetector(random_state=seed))
    clean = {"corruptiondetector__X_clean": words.transform(clean_texts), "corruptiondetector__y_clean": y_clean}
    pipeline.fit(texts, y, **clean)
    check_found(is_corrupted, pipeline[-1])
    np.testing.assert_array_equal(pipeline.predict(texts), pipeline[-1].predict())


@pytest.mark.parametrize("seed", [0])
def test_table_of_mixed_types_in_a_pipeline(seed):
    wine = load_wine(as_frame=True)
    table = wine.data[["alcohol", "flavanoids", "color_intensity"]].copy()
    table["hue"] = pd.cut(wine.data["hue"], 4, labels=["red", "ruby", "garnet", "brown"])
    table["proline"] = np.where(wine.data["proline"] > 700, "high", "low")
    X, y, X_clean, y_clean, is_corrupted = split(table, wine.target_names[wine.target], 40, seed)
    columns = make_column_transformer(
        (StandardScaler(), ["alcohol", "flavanoids", "color_intensity"]), (OneHotEncoder(), ["hue", "proline"])
    ).fit(table)
    pipeline = make_pipeline(columns, CorruptionDetector(random_state=seed))
    # The transformer is fitted again in the pipeline, on the noisy rows: the clean rows must be scaled as they are.
    clean = {"corruptiondetector__X_clean": columns.fit(X).transform(X_clean), "corruptiondetector__y_clean": y_clean}
    pipeline.fit(X, y, **clean)
    check_found(is_corrupted, pipeline[-1])


@pytest.mark.parametrize("seed", [0])
def test_wrong_features_with_right_labels(seed):
    """Better than both baselines."""
    X, y = load_digits(return_X_y=True)
    X, X_clean, y, y_clean = train_test_split(X[:700], y[:700], test_size=80, stratify=y[:700], random_state=seed)
    X_noisy, is_corrupted = corrupt_features(X, RATE, random_state=seed)
    ap = {}
    for cls in (CorruptionDetector, NoisySetDetector, CleanSetDetector):
        options = {"witnesses": "networks"} if cls is CorruptionDetector else {}
        detector = cls(random_state=seed, **options).fit(X_noisy, y, X_clean, y_clean)
        ap[cls.__name__] = average_precision_score(is_corrupted, detector.loss_)
    print(ap)
    assert ap["CorruptionDetector"] > max(ap["NoisySetDetector"], ap["CleanSetDetector"])
    assert ap["CorruptionDetector"] > 2 * RATE
