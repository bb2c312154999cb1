"""Rows and targets in every form that people bring them in."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from helpers import quick_detector, skorch_net
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from skorch import NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector, _inputs
from sklearn_cdgd._default_network import robust_scaling, stable_lr
from sklearn_cdgd._lookup import find_rows, same_rows

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]
RNG = np.random.RandomState(0)
# Whole numbers from 0 to 7, which every numeric type holds exactly; some zeros.
X = RNG.randint(8, size=(40, 3)) * (RNG.rand(40, 3) < 0.8)
Y = (X[:, 0] + X[:, 1] > 6).astype(int)
X, X_CLEAN, Y, Y_CLEAN = X[:30], X[30:], Y[:30], Y[30:]


def scores(*data, net=None, cls=NoisySetDetector):
    return quick_detector(cls, net=net).fit(*data).decision_function()


def mapped(array, folder, mode):
    np.save(folder / "rows.npy", array)
    return np.load(folder / "rows.npy", mmap_mode=mode)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def with_duplicates(array):
    """Store every value in two halves, and some zeros."""
    rows, columns = np.indices(array.shape).reshape(2, -1)
    halves = np.r_[array.ravel(), array.ravel()] / 2
    return sp.csr_array((halves, (np.r_[rows, rows], np.r_[columns, columns])), array.shape)


DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", ">i4", ">f8", ">u2", "O"]
ROWS = {
    **{f"dtype {dtype}": lambda X, dtype=dtype: X.astype(dtype) for dtype in DTYPES},
    "Fortran order": lambda X: np.asfortranarray(X.astype(np.float32)),
    "negative strides": lambda X: X[::-1, ::-1].copy()[::-1, ::-1],
    "strided": lambda X: X.repeat(2, axis=1)[:, ::2],
    "read-only": read_only,
    "read-only float32": lambda X: read_only(X.astype(np.float32)),
    "lists": lambda X: X.tolist(),
    "tuples": lambda X: tuple(map(tuple, X.tolist())),
    **{
        f"torch {dtype}": lambda X, dtype=dtype: torch.tensor(X, dtype=dtype)
        for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    },
    "torch with gradient": lambda X: torch.tensor(X, dtype=torch.float32, requires_grad=True),
    "torch transposed": lambda X: torch.tensor(X.T.copy()).T,
    "pandas": lambda X: pd.DataFrame(X, columns=list("abc")),
    "pandas mixed": lambda X: pd.DataFrame({"a": X[:, 0].astype("f2"), "b": X[:, 1].astype("u8"), "c": X[:, 2]}),
    "pandas nullable": lambda X: pd.DataFrame(X, columns=list("abc")).astype({"a": "Int64", "b": "Float32"}),
    "pandas categorical": lambda X: pd.DataFrame(X, columns=list("abc")).astype({"a": "category"}),
    "pandas strings": lambda X: pd.DataFrame(X.astype(str), columns=list("abc"), dtype="string"),
    "pandas sparse": lambda X: pd.DataFrame(X, columns=list("abc")).astype(pd.SparseDtype("float64", 0)),
    "pandas arrow": lambda X: pd.DataFrame(X, columns=list("abc")).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda X: pl.DataFrame(X, schema=list("abc")),
    "polars mixed": lambda X: pl.DataFrame({"a": X[:, 0].astype("f4"), "b": X[:, 1].astype("u1"), "c": X[:, 2]}),
    **{f"sparse {form}": lambda X, form=form: sp.coo_array(X).asformat(form) for form in ("csr", "csc", "coo", "lil")},
    "sparse matrix": sp.csr_matrix,
    "sparse of bytes": lambda X: sp.csr_array(X.astype(np.int8)),
    "sparse with duplicates": with_duplicates,
}


def bits(data):
    """Return what a caller's object holds, to compare before and after."""
    if sp.issparse(data):
        parts = [getattr(data, name, None) for name in ("data", "indices", "indptr")]
        return [data.shape, *(part.tolist() for part in parts if part is not None)]
    if isinstance(data, torch.Tensor):
        return data.detach().clone().tolist()
    if isinstance(data, pd.DataFrame | pd.Series):
        return data.copy().to_dict()
    return copy.deepcopy(data.tolist() if isinstance(data, np.ndarray) else data)


@functools.cache
def expected_scores(default):
    return scores(
        X.astype(float), Y, X_CLEAN.astype(float), Y_CLEAN, net=None if default else skorch_net(nn.Linear(3, 2))
    )


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("default", [True, False], ids=["default", "skorch"])
@pytest.mark.parametrize("form", ROWS)
def test_the_form_of_rows_does_not_matter(form, default):
    rows, clean_rows = ROWS[form](X), ROWS[form](X_CLEAN)
    before = bits(rows)
    net = None if default else skorch_net(nn.Linear(3, 2))
    detector = quick_detector(NoisySetDetector, net=net).fit(rows, Y, clean_rows, Y_CLEAN)
    np.testing.assert_allclose(detector.decision_function(), expected_scores(default), rtol=1e-5)
    np.testing.assert_array_equal(detector.decision_function(rows), detector.decision_function())
    np.testing.assert_array_equal(detector.decision_function(X.astype(float)), detector.decision_function())
    assert np.array_equal(bits(rows), before) if not isinstance(before, dict | list | tuple) else bits(rows) == before


def test_booleans_are_numbers():
    on = X > 3
    np.testing.assert_array_equal(scores(on, Y, (on,), (Y,)), scores(on.astype(float), Y, (on.astype(float),), (Y,)))


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("mode", ["r", "c"])
def test_memory_mapped_rows(cls, mode, tmp_path):
    """A write through a tensor over a read-only map would end the process."""
    rows = mapped(X.astype(np.float32), tmp_path, mode)
    net = skorch_net(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)))
    detector = quick_detector(cls, net=net).fit(rows, Y, X_CLEAN, Y_CLEAN)
    assert np.isfinite(detector.decision_function(rows)).all()
    np.testing.assert_array_equal(rows, X)


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("batch_size", [-1, 8])
def test_a_module_that_writes_to_its_input(cls, batch_size):
    """Every step gets the rows as they were given."""

    class Shift(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.in_place, self.linear = in_place, nn.Linear(3, 2)

        def forward(self, X):
            return self.linear(X.sub_(3) if self.in_place else X - 3)

    data = [a.astype(np.float32) if a.ndim > 1 else a for a in (X, Y, X_CLEAN, Y_CLEAN)]
    before = [a.copy() for a in data]
    net = skorch_net(Shift, module__in_place=True, batch_size=batch_size)
    np.testing.assert_array_equal(
        scores(*data, net=net, cls=cls), scores(*data, net=net.set_params(module__in_place=False), cls=cls)
    )
    for a, b in zip(data, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_the_caller_changes_after_the_fit_does_not_matter():
    rows = X.astype(np.float32)
    detector = NoisySetDetector(random_state=0).fit(rows, Y, X_CLEAN, Y_CLEAN)
    rows += 1
    np.testing.assert_array_equal(detector.predict(X), detector.predict())


# --- integers ---------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self, n_tokens=8):
        super().__init__()
        self.embedding, self.output = nn.Embedding(n_tokens, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        return self.output(self.embedding(tokens).mean(1))


TOKEN_FORMS = ["pandas", "polars", "negative strides", "read-only", "torch torch.int64", "lists", "tuples"]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("form", [*TOKEN_FORMS, *(name for name in ROWS if name.startswith(("dtype i", "dtype u")))])
def test_integers_stay_integers_for_an_embedding(form):
    expected = scores(X, Y, X_CLEAN, Y_CLEAN, net=skorch_net(Tokens))
    rows = ROWS[form](X)
    detector = quick_detector(NoisySetDetector, net=skorch_net(Tokens)).fit(rows, Y, ROWS[form](X_CLEAN), Y_CLEAN)
    np.testing.assert_array_equal(detector.decision_function(), expected)
    np.testing.assert_array_equal(detector.decision_function(rows), expected)
    np.testing.assert_array_equal(detector.decision_function(X[:5].astype(float)), expected[:5])


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("net", [Tokens, Tokens(), skorch_net(Tokens()), skorch_net(Tokens, batch_size=8)])
def test_embeddings_in_nets_of_every_kind(cls, net):
    with torch.random.fork_rng():
        module = net if isinstance(net, nn.Module) else None
        before = copy.deepcopy(module.state_dict()) if module is not None else None
    detector = quick_detector(cls, net=net).fit(X, Y, X_CLEAN, Y_CLEAN)
    assert np.isfinite(detector.loss_).all()
    assert detector.net_.predict(X).shape == (30,)
    if module is not None:
        assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_net_that_takes_no_integers_gets_float32():
    net = skorch_net(nn.Linear(3, 2))
    floats = X.astype(np.float32), Y, X_CLEAN.astype(np.float32), Y_CLEAN
    np.testing.assert_array_equal(scores(X, Y, X_CLEAN, Y_CLEAN, net=net), scores(*floats, net=net))


def test_integers_are_looked_up_exactly():
    """With a tolerance, large tokens next to each other would be the same."""
    rows = X + 10**9
    detector = quick_detector(NoisySetDetector, net=skorch_net(nn.Linear(3, 2))).fit(rows, Y, (rows,), (Y,))
    np.testing.assert_array_equal(detector.decision_function(rows[3:5]), detector.decision_function()[3:5])
    with pytest.warns(UserWarning, match="1 of 1 rows of X.* were not in the noisy set"):
        detector.predict(rows[:1] + np.array([[0, 0, 100]]))


@pytest.mark.parametrize(
    ("rows", "clean_rows", "words"),
    [
        (X, X_CLEAN.astype(float), "net could not be applied to two rows of X.*indices"),
        (X + 8, X_CLEAN + 8, r"index out of range.* \(X holds integers. As float32: .*indices"),
        (X - 8, X_CLEAN - 8, "index out of range"),
        (X.astype(float), X_CLEAN, "net could not be applied to two rows of X.*indices"),
    ],
    ids=["clean rows are floats", "token too large", "token negative", "rows are floats"],
)
def test_an_embedding_that_does_not_fit_is_named(rows, clean_rows, words):
    with pytest.raises(ValueError, match=words):
        quick_detector(NoisySetDetector, net=skorch_net(Tokens)).fit(rows, Y, clean_rows, Y_CLEAN)


# --- sparse rows ------------------------------------------------------------------------------------------------------


def sparse_data(n_rows=60, n_features=40, seed=0, density=0.1):
    rng = np.random.RandomState(seed)
    rows = rng.randn(n_rows, n_features) * (rng.rand(n_rows, n_features) < density)
    rows[:, :3] += rng.randn(n_rows, 3)  # some columns are full, one is constant, one is empty
    rows[:, 3], rows[:, 4] = 2.0, 0.0
    return rows, (rows[:, 0] > 0).astype(int)


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("net", [None, skorch_net(nn.Linear(40, 2), batch_size=16)], ids=["default", "skorch"])
def test_sparse_rows_give_what_dense_ones_give(cls, net):
    rows, y = sparse_data()
    sparse, clean = sp.csr_array(rows[:40]), sp.csc_array(rows[40:])
    dense = quick_detector(cls, net=net).fit(rows[:40], y[:40], rows[40:], y[40:])
    detector = quick_detector(cls, net=net).fit(sparse, y[:40], clean, y[40:])
    np.testing.assert_allclose(detector.decision_function(), dense.decision_function(), atol=1e-4)
    np.testing.assert_allclose(detector.loss_, dense.loss_, rtol=1e-3, atol=1e-5)
    # Either set may be dense.
    half = quick_detector(cls, net=net).fit(sparse, y[:40], rows[40:], y[40:])
    np.testing.assert_array_equal(half.loss_, detector.loss_)
    half = quick_detector(cls, net=net).fit(rows[:40], y[:40], clean, y[40:])
    np.testing.assert_array_equal(half.loss_, dense.loss_)
    for twin in (detector, half):
        for asked in (rows[3:7], sparse[3:7], sp.coo_array(rows[3:7])):
            np.testing.assert_array_equal(twin.decision_function(asked), twin.decision_function()[3:7])


@pytest.mark.filterwarnings("ignore:No clean set was given")
@pytest.mark.parametrize("cls", DETECTORS)
def test_sparse_rows_are_never_dense_as_a_whole(cls, monkeypatch):
    rows, y = sparse_data(100, 50)
    monkeypatch.setattr(_inputs, "_DENSE_NUMBERS", 25 * 50)
    monkeypatch.setattr("sklearn_cdgd._default_network._BLOCK", 100 * 5)
    for name, most in {"SCALING_ROWS": 25, "FEWEST_LANDMARKS": 20, "MOST_LANDMARKS": 20, "BLOCK": 25 * 50}.items():
        monkeypatch.setattr(f"sklearn_cdgd._kernels._{name}", most)
    sizes = []

    def noting(make_dense):
        def toarray(self, *args, **kwargs):
            sizes.append(np.prod(self.shape))
            return make_dense(self, *args, **kwargs)

        return toarray

    for form in (sp.csr_array, sp.csc_array, sp.coo_array):
        monkeypatch.setattr(form, "toarray", noting(form.toarray))
    options = {"cv": 5} if cls is CorruptionDetector else {}
    detector = quick_detector(cls, net=None, clean_fraction=0.1, **options).fit(sp.csr_array(rows), y)
    detector.predict(sp.csr_array(rows[::-1]))
    assert len(sizes) > 10
    assert max(sizes) <= 25 * 50


def test_sparse_rows_give_what_dense_ones_give_by_default():
    rows, y = sparse_data(120)
    detector = CorruptionDetector(random_state=0)
    dense = clone(detector).fit(rows[:80], y[:80], rows[80:], y[80:])
    detector.fit(sp.csr_array(rows[:80]), y[:80], sp.csc_array(rows[80:]), y[80:])
    for name in ("alpha_", "probabilities_", "p_values_"):
        np.testing.assert_allclose(getattr(detector, name), getattr(dense, name), atol=1e-3, err_msg=name)
    pairs = rows[80:], 1 - y[80:]
    of_dense, of_sparse = dense.decision_function(*pairs), detector.decision_function(sp.csr_array(rows[80:]), pairs[1])
    np.testing.assert_allclose(of_sparse, of_dense, atol=1e-3)


def test_sparse_regression():
    rows, _ = sparse_data()
    y = rows[:, 0] + rows[:, 1]
    loss = [
        NoisySetDetector(random_state=0).fit(form(rows[:40]), y[:40], form(rows[40:]), y[40:]).loss_
        for form in (np.asarray, sp.csr_array)
    ]
    np.testing.assert_allclose(loss[1], loss[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("density", [0.01, 0.2, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("n_rows", [2, 3, 4, 5, 41])
def test_scaling_of_sparse_columns(density, n_rows):
    rows, _ = sparse_data(n_rows, density=density)
    expected = robust_scaling(rows)
    for ours, theirs in zip(robust_scaling(sp.csr_array(rows)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    assert stable_lr(sp.csr_array(rows), *expected) == pytest.approx(stable_lr(rows, *expected), rel=1e-6)


# --- looking rows up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_rows_are_found(form):
    rows = sparse_data(30, 6, density=0.4)[0].astype(np.float32)
    rows[7] = rows[2]
    known, targets, order = form(rows), np.arange(30) % 3, np.arange(30)[::-1]
    asked = [4, 2, 29]
    np.testing.assert_array_equal(find_rows(known, targets, order, form(rows[asked])), [4, 7, 29])
    np.testing.assert_array_equal(find_rows(known, targets, order, form(rows[asked]), targets[asked]), [4, 2, 29])
    nearly = rows[asked] * np.float32(1 + 1e-6)
    assert (nearly != rows[asked]).any(axis=1).all()
    np.testing.assert_array_equal(find_rows(known, targets, order, form(nearly)), [4, 7, 29])
    np.testing.assert_array_equal(find_rows(known, targets, order, form(nearly), targets[asked]), [4, 2, 29])
    np.testing.assert_array_equal(find_rows(known, targets, order, form(rows[asked] * np.float32(1.01))), [-1, -1, -1])
    np.testing.assert_array_equal(find_rows(known, targets, order, form(nearly), [9, 9, 9] + targets[:3] * 0), [-1] * 3)
    assert same_rows(known, form(rows * np.float32(1 + 1e-6)))
    assert not same_rows(known, form(rows[:-1]))
    assert not same_rows(known, form(rows[::-1]))


# --- names and index --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_names_are_kept_and_checked(cls, frame):
    rows = frame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    detector = quick_detector(cls, net=None).fit(
        rows, Y, frame({"a": X_CLEAN[:, 0], "b": X_CLEAN[:, 1], "c": X_CLEAN[:, 2]}), Y_CLEAN
    )
    assert detector.feature_names_in_.tolist() == ["a", "b", "c"]
    renamed = frame({"a": X[:, 0], "z": X[:, 1], "c": X[:, 2]})
    for method in (detector.predict, detector.decision_function):
        with pytest.raises(ValueError, match=r"X: The feature names should match(.|\n)*unseen at fit time(.|\n)*z"):
            method(renamed)
    with pytest.raises(ValueError, match="X_clean: The feature names should match"):
        quick_detector(cls, net=None).fit(rows, Y, renamed, Y)


@pytest.mark.parametrize("form", ["lists", "tuples", "polars", "torch torch.int64", "sparse csr", "dtype f8"])
def test_rows_without_an_index_are_numbered_in_the_table(form):
    table = NoisySetDetector(random_state=0).fit(ROWS[form](X), Y, ROWS[form](X_CLEAN), Y_CLEAN).to_frame()
    assert table.index.tolist() == list(range(30))


# --- targets ----------------------------------------------------------------------------------------------------------

WORDS = np.array(["no", "yes"])
TARGETS = {
    **{f"dtype {d}": (lambda y, d=d: y.astype(d), [0, 1]) for d in DTYPES if np.dtype(d).kind in "iu"},
    **{f"dtype {d}": (lambda y, d=d: y.astype(d), [0.0, 1.0]) for d in DTYPES if np.dtype(d).kind == "f" and d != "g"},
    "bool": (lambda y: y == 1, [False, True]),
    "list": (lambda y: y.tolist(), [0, 1]),
    "read-only": (read_only, [0, 1]),
    "torch": (torch.tensor, [0, 1]),
    "torch bool": (lambda y: torch.tensor(y == 1), [False, True]),
    "words": (lambda y: WORDS[y], ["no", "yes"]),
    "words as objects": (lambda y: WORDS[y].astype(object), ["no", "yes"]),
    "words of NumPy 2": (lambda y: WORDS[y].astype(np.dtypes.StringDType()), ["no", "yes"]),
    "Int64": (lambda y: pd.Series(y, dtype="Int64"), [0, 1]),
    "UInt8 array": (lambda y: pd.array(y, dtype="UInt8"), [0, 1]),
    "Float64": (lambda y: pd.Series(y, dtype="Float64"), [0.0, 1.0]),
    "boolean": (lambda y: pd.Series(y == 1, dtype="boolean"), [False, True]),
    "string": (lambda y: pd.Series(WORDS[y], dtype="string"), ["no", "yes"]),
    "str": (lambda y: pd.Series(WORDS[y]), ["no", "yes"]),
    "arrow integers": (lambda y: pd.Series(y, dtype="int64[pyarrow]"), [0, 1]),
    "arrow booleans": (lambda y: pd.Series(y == 1, dtype="bool[pyarrow]"), [False, True]),
    "arrow strings": (lambda y: pd.Series(WORDS[y], dtype="string[pyarrow]"), ["no", "yes"]),
    "categorical": (lambda y: pd.Series(WORDS[y], dtype="category"), ["no", "yes"]),
    "ordered the other way": (lambda y: pd.Categorical(WORDS[y], ["yes", "no"], ordered=True), ["no", "yes"]),
    "categorical integers": (lambda y: pd.Series(y + 5, dtype="category"), [5, 6]),
    "index": (lambda y: pd.Index(WORDS[y]), ["no", "yes"]),
    "polars": (lambda y: pl.Series(y), [0, 1]),
    "polars strings": (lambda y: pl.Series(WORDS[y].tolist()), ["no", "yes"]),
    "polars categorical": (lambda y: pl.Series(WORDS[y].tolist(), dtype=pl.Categorical), ["no", "yes"]),
    "polars booleans": (lambda y: pl.Series(y == 1), [False, True]),
}


@pytest.mark.parametrize("form", TARGETS)
def test_the_form_of_labels_does_not_matter(form):
    make, classes = TARGETS[form]
    given, clean = make(Y), make(Y_CLEAN)
    before = bits(given)
    detector = NoisySetDetector(random_state=0).fit(X, given, X_CLEAN, clean)
    np.testing.assert_array_equal(detector.decision_function(), scores(X, Y, X_CLEAN, Y_CLEAN))
    np.testing.assert_array_equal(detector.predict(X, given), detector.predict())
    assert detector.classes_.tolist() == classes
    assert [type(c) for c in detector.classes_.tolist()] == [type(c) for c in classes]
    assert detector.to_frame()["given_label"].tolist() == [classes[n] for n in Y]
    assert str(bits(given)) == str(before)


@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize(
    "column",
    [
        lambda y: y[:, None],
        lambda y: pd.DataFrame({"y": y}),
        lambda y: pd.DataFrame({"y": y}, dtype="Int64"),
        lambda y: pl.DataFrame({"y": y}),
    ],
    ids=["array", "frame", "nullable frame", "polars"],
)
def test_one_column_of_labels_warns_as_everywhere(cls, column):
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed when a 1d array was expected"):
        detector = quick_detector(cls, net=None).fit(X, column(Y), X_CLEAN, Y_CLEAN)
    np.testing.assert_array_equal(detector.decision_function(), scores(X, Y, X_CLEAN, Y_CLEAN, cls=cls))


def test_one_column_of_numbers_warns_as_everywhere():
    y = RNG.randn(30)
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        quick_detector(
            NoisySetDetector, net=skorch_net(nn.Linear(3, 1), kind=NeuralNetRegressor, criterion=nn.MSELoss)
        ).fit(X, y[:, None], (X,), (y,))


# --- what is refused --------------------------------------------------------------------------------------------------


def with_value(value, dtype=object):
    rows = X.astype(dtype)
    rows[2, 1] = value
    return rows


MISSING = r"missing values \(None, NaN or NA\). Drop their rows"
BAD_ROWS = {
    "complex": (lambda: X + 1j, "Complex data not supported"),
    "sparse complex": (lambda: sp.csr_array(X + 1j), "Complex data not supported"),
    "dates": (lambda: X.astype("M8[D]"), "dates and durations are no features. Turn them into numbers"),
    "durations": (lambda: X.astype("m8[s]"), "dates and durations are no features"),
    "a column of dates": (lambda: pd.DataFrame({"a": X[:, 0], "b": pd.to_datetime(X[:, 1])}), "dates and durations"),
    "masked": (lambda: np.ma.array(X, mask=X > 6), f"a masked array holds {MISSING}"),
    "NA": (lambda: with_value(pd.NA), MISSING),
    "None": (lambda: with_value(None), MISSING),
    "NaT": (lambda: with_value(pd.NaT), MISSING),
    "NA in Int64": (lambda: pd.DataFrame(with_value(pd.NA)).astype("Int64"), MISSING),
    "NA in a category": (lambda: pd.DataFrame(with_value(None)).astype("category"), MISSING),
    "null in polars": (lambda: pl.DataFrame({"a": [None, *X[1:, 0].tolist()]}), "Input X contains NaN"),
    "NaN in sparse": (lambda: sp.csr_array(with_value(np.nan, float)), "Input X contains NaN"),
    "too large in sparse": (lambda: sp.csr_array(with_value(1e300, float)), "infinity or a value too large"),
    "an integer too large": (lambda: with_value(10**400).tolist(), "too large"),
    "words": (lambda: with_value("six").tolist(), "could not convert string to float: .*six"),
    "ragged": (lambda: [[1, 2], *X[1:].tolist()], "inhomogeneous shape"),
    "no features": (lambda: X[:, :0], r"Found array with 0 feature\(s\)"),
    "no features in images": (lambda: X.reshape(30, 3, 1)[:, :, :0], r"rows of shape \(3, 0\) hold no feature"),
    "one axis": (lambda: X[:, 0], "Expected 2D array, got 1D array"),
    "one sparse axis": (lambda: sp.coo_array(X[:, 0]), "."),
    "a number": (lambda: 3, "Expected 2D array, got scalar array"),
    "nothing": (lambda: None, "Expected 2D array, got scalar array|missing"),
    "a word": (lambda: "rows", "could not convert string to float"),
    "a dictionary": (lambda: {"a": 1}, "."),
    "a set": (lambda: {1, 2}, "."),
    "a sparse tensor": (lambda: torch.tensor(X).to_sparse(), "a torch tensor must be dense; got the layout torch.s"),
}


@pytest.mark.filterwarnings("ignore:X has feature names, but")
@pytest.mark.parametrize("net", [None, skorch_net(Tokens)], ids=["default", "tokens"])
@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_refused(case, net):
    make, words = BAD_ROWS[case]
    with pytest.raises((ValueError, TypeError), match=f"^X: (.|\n)*{words}"):
        quick_detector(NoisySetDetector, net=net).fit(make(), Y, X_CLEAN, Y_CLEAN)
    if case != "nothing":
        with pytest.raises((ValueError, TypeError), match=f"^X_clean: (.|\n)*({words}|has \\d features|names)"):
            quick_detector(NoisySetDetector, net=net).fit(X, Y, make(), Y)


BAD_TARGETS = {
    "complex": (lambda: Y + 1j, "Complex data not supported"),
    "masked": (lambda: np.ma.array(Y, mask=Y > 0), f"a masked array holds {MISSING}"),
    "NA in Int64": (lambda: pd.Series([pd.NA, *Y[1:].tolist()], dtype="Int64"), "Input y contains NaN"),
    "NA in boolean": (lambda: pd.Series([pd.NA, *(Y[1:] > 0).tolist()], dtype="boolean"), MISSING),
    "NA in string": (lambda: pd.Series([pd.NA, *WORDS[Y[1:]]], dtype="string"), MISSING),
    "NA in str": (lambda: pd.Series([None, *WORDS[Y[1:]]]), MISSING),
    "NA in a category": (lambda: pd.Series([None, *WORDS[Y[1:]]], dtype="category"), MISSING),
    "NA in objects": (lambda: np.array([pd.NA, *WORDS[Y[1:]]], dtype=object), MISSING),
    "null in polars": (lambda: pl.Series([None, *WORDS[Y[1:]].tolist()]), MISSING),
    "null in polars integers": (lambda: pl.Series([None, *Y[1:].tolist()]), "Input y contains NaN"),
    "bytes": (lambda: WORDS[Y].astype("S"), "labels represented as bytes is not supported"),
    "sparse": (lambda: sp.csr_array(Y[:, None]), "[Ss]parse"),
    "a sparse tensor": (lambda: torch.tensor(Y).to_sparse(), "a torch tensor must be dense"),
    "a number": (lambda: 1, "."),
    "ragged": (lambda: [[0], [0, 1], *Y[2:].tolist()], "."),
    "three axes": (lambda: np.zeros((30, 2, 2)), "."),
    "no columns": (lambda: np.zeros((30, 0)), "."),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_targets_that_are_refused(case):
    make, words = BAD_TARGETS[case]
    with pytest.raises((ValueError, TypeError), match=f"^y: (.|\n)*{words}"):
        NoisySetDetector(random_state=0).fit(X, make(), X_CLEAN, Y_CLEAN)
    with pytest.raises((ValueError, TypeError), match=f"^y_clean: (.|\n)*{words}"):
        NoisySetDetector(random_state=0).fit(X, Y, X, make())
