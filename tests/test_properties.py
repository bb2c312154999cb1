"""Whatever comes in: a fit with finite results, or an error that names the argument; the input stays as it was."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse as sp
import torch
from helpers import closed_form_detector, quick_detector, skorch_net
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, DivergenceError, NoisySetDetector

quickly = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f4", ">f8", "c8", "O"]
SCALES = [0.0, 1e-300, 1e-42, 1e-30, 1e-6, 1.0, 1e4, 1e18, 1e30, 3e38, 1e300, np.nan, np.inf]
LABELS = {
    "integers": np.array([0, 1, 2]),
    "far apart": np.array([-(10**12), 7, 10**12]),
    "bool": np.array([False, True, True]),
    "words": np.array(["a", "b", "c"]),
    "objects": np.array(["a", "b", "c"], dtype=object),
    "floats": np.array([0.0, 1.0, 2.0]),
    "half": np.array([0.5, 1.5, 3.0]),
    "mixed": np.array(["a", 1, None], dtype=object),
    "missing": np.array([0.0, 1.0, np.nan]),
    "huge": np.array([0.0, 1e300, -1e300]),
    "large": np.array([0.1, 3e38, -3e38]),
    "tiny": np.array([0.1, 1e-42, -1e-42]),
}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


ROW_FORMS = {
    "array": lambda X: X,
    "Fortran": np.asfortranarray,
    "backwards": lambda X: X[::-1],
    "read-only": read_only,
    "list": lambda X: X.tolist(),
    "frame": lambda X: pd.DataFrame(X, columns=[f"c{n}" for n in range(X.shape[1])]),
    "polars": lambda X: pl.DataFrame({f"c{n}": column.tolist() for n, column in enumerate(X.T)}),
    "sparse": sp.csr_array,
    "tensor": torch.tensor,
    "one axis": lambda X: X[:, 0],
    "three axes": lambda X: X[:, :, None],
}
TARGET_FORMS = {
    "array": lambda y: y,
    "read-only": read_only,
    "list": lambda y: y.tolist(),
    "series": pd.Series,
    "category": lambda y: pd.Series(y, dtype="category"),
    "nullable": lambda y: pd.Series(y).convert_dtypes(),
    "polars": lambda y: pl.Series(y.tolist(), strict=False),
    "column": lambda y: y[:, None],
    "two columns": lambda y: np.stack([y, y[::-1]], axis=1),
}


def formed(form, array):
    """Return the array in another form, or as it is where there is no such form of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return form(array)
        except (TypeError, ValueError, RuntimeError, NotImplementedError, pl.exceptions.PolarsError):
            return array


@st.composite
def rows(draw, n_rows, n_columns):
    rng = np.random.RandomState(draw(st.integers(0, 9)))
    X = rng.randn(n_rows, n_columns) * draw(st.sampled_from([1.0, 100.0, *SCALES[:-3]]))
    if draw(st.booleans()):
        X[:, draw(st.integers(0, n_columns - 1))] = draw(st.sampled_from([0.0, 1.0, -1e6]))
    if draw(st.booleans()):
        X = X[rng.randint(max(1, n_rows // 3), size=n_rows)]  # equal rows
    if draw(st.integers(0, 7)) == 7:
        X[rng.randint(n_rows), rng.randint(n_columns)] = draw(st.sampled_from([*SCALES, -np.inf, -3e38]))
    with np.errstate(all="ignore"):
        return X.astype(draw(st.sampled_from(["f4", "f8", "i4", "f4", "f8", *DTYPES])))


@st.composite
def targets(draw, n_rows, kind):
    rng = np.random.RandomState(draw(st.integers(0, 9)))
    if kind == "numbers":
        return rng.randn(n_rows) * draw(st.sampled_from(SCALES))
    return LABELS[kind][rng.randint(draw(st.sampled_from([3, 2, 1])), size=n_rows)]


@st.composite
def problems(draw):
    """Draw the arguments of a fit: most cases are sound, many are not."""
    n_columns, n_noisy, n_clean = draw(st.integers(1, 4)), draw(st.integers(2, 50)), draw(st.integers(1, 20))
    row_form, target_form = (draw(st.sampled_from(["array", *forms])) for forms in (ROW_FORMS, TARGET_FORMS))
    kind = draw(st.sampled_from(["integers", "words", "numbers", "integers", *LABELS]))
    X, X_clean = (formed(ROW_FORMS[row_form], draw(rows(n, n_columns))) for n in (n_noisy, n_clean))
    y, y_clean = (formed(TARGET_FORMS[target_form], draw(targets(n, kind))) for n in (n_noisy, n_clean))
    return (X, y) if draw(st.integers(0, 4)) == 4 else (X, y, X_clean, y_clean)


def bits(data):
    """Return all bits that the caller's object holds."""
    if sp.issparse(data):
        return [part.tobytes() for part in (data.data, data.indices, data.indptr)]
    if isinstance(data, np.ndarray):
        return data.tolist() if data.dtype == object else data.tobytes()
    if isinstance(data, torch.Tensor):
        return data.numpy().tobytes()
    if isinstance(data, pd.DataFrame | pd.Series):
        return repr(data.to_dict())
    return repr(data.to_dict(as_series=False) if isinstance(data, pl.DataFrame) else list(data))


class Flat(nn.Module):
    """A module for rows of any shape, and tokens: it takes whatever X is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(3)

    def forward(self, X):
        return self.linear(X.flatten(1))


NET = skorch_net(Flat, lr=0.01, max_epochs=2, batch_size=20)

ABOUT_ARGUMENTS = (
    *("X: ", "y: ", "X_clean: ", "y_clean: ", "X and y ", "X_clean and y_clean ", "X_clean has ", "y_clean has "),
    *("y holds ", "y and y_clean ", "net could not be applied to two rows of X"),
)


def fitted(detector, arguments):
    """Return the error of a fit, if there is one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            detector.fit(*arguments)
    except (ValueError, TypeError) as error:
        return error
    return None


def check(detector, arguments):
    before = [bits(a) for a in arguments]
    error = fitted(detector, arguments)
    assert [bits(a) for a in arguments] == before
    if error is not None:
        event(f"refused: {str(error)[:40]}")
        # Only a net of the user's, which does not scale X, may find it too large.
        diverged = isinstance(error, DivergenceError) and detector.net is not None
        assert str(error).startswith(ABOUT_ARGUMENTS) or (diverged and "scale X" in str(error)), error
        return
    event("fitted")
    scores = detector.decision_function()
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()
    assert np.isfinite(detector.loss_).all()
    assert detector.predict().dtype == bool
    assert sorted(detector.ranked_indices()) == list(range(len(scores)))


@settings(quickly, max_examples=50)
@given(problems())
def test_corruption_detector(arguments):
    check(quick_detector(net=NET), arguments)


@settings(quickly, max_examples=60)
@given(problems())
def test_corruption_detector_in_closed_form(arguments):
    check(closed_form_detector(), arguments)


@settings(quickly, max_examples=8)
@given(problems())
def test_corruption_detector_by_default(arguments):
    check(CorruptionDetector(random_state=0), arguments)


@settings(quickly, max_examples=80)
@given(problems())
def test_noisy_set_detector(arguments):
    check(NoisySetDetector(random_state=0), arguments)


@settings(quickly, max_examples=40)
@given(problems())
def test_clean_set_detector(arguments):
    check(CleanSetDetector(NET, random_state=0), arguments)
