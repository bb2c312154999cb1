"""Detectors survive pickle, joblib, deepcopy and clone, whatever their net, fitted or not."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import numpy as np
import pytest
import torch
from helpers import closed_form_detector, quick_detector, skorch_net
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from skorch.exceptions import DeviceWarning
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd._network import Network

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]


class Mlp(nn.Sequential):
    def __init__(self, n_hidden=8):
        super().__init__(nn.Linear(3, n_hidden), nn.ReLU(), nn.Linear(n_hidden, 2))


def function():
    return Mlp()


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))


NETS = {
    "skorch class": lambda: skorch_net(Mlp, module__n_hidden=6),
    "skorch instance": lambda: skorch_net(Mlp()),
    "skorch criterion instance": lambda: skorch_net(Mlp, criterion=nn.CrossEntropyLoss()),
    "skorch lazy instance": lambda: skorch_net(lazy()),
    "class": lambda: Mlp,
    "function": lambda: function,
    "instance": Mlp,
    "lazy instance": lazy,
}
pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")


def through_pickle(detector, folder):
    return pickle.loads(pickle.dumps(detector))


def through_joblib(detector, folder):
    joblib.dump(detector, folder / "detector.joblib")
    return joblib.load(folder / "detector.joblib")


def through_a_memory_map(detector, folder):
    joblib.dump(detector, folder / "detector.joblib")
    return joblib.load(folder / "detector.joblib", mmap_mode="r")


def through_deepcopy(detector, folder):
    return copy.deepcopy(detector)


WAYS = [through_pickle, through_joblib, through_a_memory_map, through_deepcopy]


@pytest.fixture
def arrays(spheres):
    return spheres(n_noisy=40, n_clean=20)[:4]


def assert_same(twin, detector, X):
    for name, value in vars(detector).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(twin, name), value, err_msg=name)
    for rows in (None, X[5:9]):
        np.testing.assert_array_equal(twin.predict(rows), detector.predict(rows))
        np.testing.assert_array_equal(twin.decision_function(rows), detector.decision_function(rows))
    np.testing.assert_array_equal(twin.ranked_indices(), detector.ranked_indices())
    X = X.astype(np.float32)
    np.testing.assert_array_equal(twin.net_.predict_proba(X), detector.net_.predict_proba(X))


@pytest.mark.parametrize("kind", NETS)
def test_every_kind_of_net(kind, arrays, tmp_path):
    with torch.random.fork_rng():
        net = NETS[kind]()
    # A plain module is trained for as many epochs as the default network.
    cls = CorruptionDetector if "skorch" in kind else CleanSetDetector
    detector = quick_detector(cls, net=net)
    for unfitted in (*(way(detector, tmp_path) for way in WAYS), clone(detector)):
        assert type(unfitted) is cls
        assert unfitted.get_params(deep=False).keys() == detector.get_params(deep=False).keys()
        assert not hasattr(unfitted, "net_")
    detector.fit(*arrays)
    for way in WAYS:
        assert_same(way(detector, tmp_path), detector, arrays[0])
    twin = clone(detector)
    assert not hasattr(twin, "net_")
    assert_same(twin.fit(*arrays), detector, arrays[0])


@pytest.mark.parametrize("cls", DETECTORS)
def test_default(cls, arrays, tmp_path):
    X, _, X_clean, y_clean = arrays
    new = (X_clean, 1 - y_clean), (X + 0.01, arrays[1])
    detector = cls(random_state=0).fit(*arrays)
    twins = [way(detector, tmp_path) for way in WAYS]
    for twin in twins:
        assert_same(twin, detector, X)
        for pairs in new:
            np.testing.assert_array_equal(twin.decision_function(*pairs), detector.decision_function(*pairs))
            np.testing.assert_array_equal(twin.predict(*pairs), detector.predict(*pairs))
    unfitted = clone(detector)
    assert unfitted.get_params() == detector.get_params()
    assert vars(unfitted).keys() == detector.get_params().keys()
    assert_same(unfitted.fit(*arrays), detector, X)


@pytest.mark.parametrize("options", [{"cv": None}, {"clean_cv": None}, {"shard_size": 20}], ids=str)
def test_closed_form_of_every_kind(options, arrays, tmp_path):
    """What new pairs are judged by differs; all of it travels."""
    detector = closed_form_detector(**options).fit(*arrays)
    new_pairs = arrays[2], 1 - arrays[3]
    for way in WAYS:
        twin = way(detector, tmp_path)
        assert_same(twin, detector, arrays[0])
        np.testing.assert_array_equal(twin.decision_function(*new_pairs), detector.decision_function(*new_pairs))
        np.testing.assert_array_equal(twin.predict(*new_pairs), detector.predict(*new_pairs))


def test_clone_shares_nothing_with_the_lazy_module():
    with torch.random.fork_rng():
        module = lazy()
    for detector in (CorruptionDetector(module), CorruptionDetector(skorch_net(module, callbacks=[("a", None)]))):
        for twin in (clone(detector), copy.deepcopy(detector)):
            theirs = twin.net.module if isinstance(twin.net, NeuralNetClassifier) else twin.net
            assert isinstance(theirs[0], nn.LazyLinear)
            assert theirs is not module
            assert not {id(t) for t in theirs.parameters()} & {id(t) for t in module.parameters()}
            if theirs is not twin.net:
                assert twin.net.callbacks == [("a", None)]
                assert twin.net.lr == 0.3


@pytest.mark.parametrize("make", [quick_detector, closed_form_detector], ids=["network", "closed form"])
@pytest.mark.parametrize("way", WAYS)
def test_a_fit_goes_on_after_the_round_trip(way, make, arrays, tmp_path):
    whole = make(max_iter=4, warm_start=True).fit(*arrays)
    detector = way(make(max_iter=2, warm_start=True).fit(*arrays), tmp_path)
    assert detector.n_iter_ == 2
    assert_same(detector.set_params(max_iter=4).fit(*arrays), whole, arrays[0])
    new_pairs = arrays[2], 1 - arrays[3]  # networks: their snapshots come in another order, and sums round
    expected = whole.decision_function(*new_pairs)
    np.testing.assert_allclose(detector.decision_function(*new_pairs), expected, rtol=1e-6)


def test_an_interrupted_fit_keeps_its_mark(arrays, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    detector = quick_detector(net=skorch_net(Mlp), warm_start=True).fit(*arrays)
    monkeypatch.setattr("sklearn_cdgd._trainer.hypergradient", interrupt)
    with pytest.warns(ConvergenceWarning, match="interrupted after 2 of 5"):
        detector.set_params(max_iter=5).fit(*arrays)
    for way in WAYS:
        twin = way(detector, tmp_path)
        assert twin.interrupted_
        assert_same(twin, detector, arrays[0])


class FindTensors(pickle.Pickler):
    """Notes the tensors in what it pickles, and leaves the parts named out."""

    def __init__(self, leave_out):
        super().__init__(io.BytesIO())
        self.leave_out, self.found = {id(part) for part in leave_out}, []

    def persistent_id(self, part):
        return "left out" if id(part) in self.leave_out else None

    def reducer_override(self, part):
        if isinstance(part, torch.Tensor):
            self.found.append(part)
        return NotImplemented


def tensors_in(value, leave_out=()):
    pickler = FindTensors(leave_out)
    pickler.dump(value)
    return pickler.found


@pytest.mark.parametrize("kind", ["skorch class", "skorch instance", "skorch criterion instance"])
@pytest.mark.parametrize("cls", DETECTORS)
def test_only_the_fitted_net_holds_tensors(cls, kind, arrays):
    """And what skorch does not move to another device is no part of what was trained."""
    with torch.random.fork_rng():
        detector = quick_detector(cls, net=NETS[kind]()).fit(*arrays)
    assert tensors_in(vars(detector), leave_out=[detector.net, detector.net_]) == []
    state = detector.net_.__getstate__()
    of_skorch = state.pop("__cuda_dependent_attributes__")
    assert len(of_skorch) > 0
    trained = {t.data_ptr() for t in (*detector.net_.module_.parameters(), *detector.net_.criterion_.buffers())}
    assert not trained & {t.data_ptr() for t in tensors_in(state)}


def test_a_fit_on_a_gpu_loads_where_there_is_none(arrays, monkeypatch):
    """The fit is moved to a GPU that is not there: only what is pickled is told so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    detector = quick_detector(net=skorch_net(Mlp)).fit(*arrays)
    for net in (detector.net, detector.net_):
        net.device = "cuda"
    pickled = pickle.dumps(detector)
    with pytest.warns(DeviceWarning, match=r"no CUDA devices are available|device \(cuda\) is not available"):
        twin = pickle.loads(pickled)
    assert torch.device(twin.net.device).type == torch.device(twin.net_.device).type == "cpu"
    detector.net_.device = "cpu"
    assert_same(twin, detector, arrays[0])
    assert_same(twin.fit(*arrays), detector, arrays[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "kind", ["skorch class", "skorch instance", "skorch criterion instance", "skorch lazy instance"]
)
def test_a_fit_on_a_gpu_is_loaded_elsewhere(kind, arrays, monkeypatch):
    with torch.random.fork_rng():
        detector = quick_detector(net=NETS[kind]().set_params(device="cuda")).fit(*arrays)
    pickled = pickle.dumps(detector)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(DeviceWarning, match="cuda|CUDA"):
        twin = pickle.loads(pickled)
    assert all(p.device.type == "cpu" for p in twin.net_.module_.parameters())
    np.testing.assert_array_equal(twin.predict(), detector.predict())


def test_the_fitted_net_is_a_net_like_any_other(arrays):
    """Its module instance is what it was before the training, so a clone of it starts afresh."""
    X, y, *_ = arrays
    with torch.random.fork_rng():
        network = Network(skorch_net(Mlp()), X.astype(np.float32), y, 2, seed=0)
    fitted = network.fitted(network.problem((X.astype(np.float32), y), (X.astype(np.float32), y)).initial_state(3))
    assert fitted.module is not fitted.module_
    assert not torch.equal(fitted.module[0].weight, fitted.module_[0].weight)
    with torch.random.fork_rng():
        clone(fitted).fit(X.astype(np.float32), y)
