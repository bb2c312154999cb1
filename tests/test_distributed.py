"""A real dask cluster of two workers: the same alpha, also when a worker is killed in the middle of a fit.

Run by ``make test-distributed``, not with the other tests: clusters take a while to start. A test that kills a worker
has a cluster of its own, as dask does not always bring a killed worker back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings

import joblib
import numpy as np
import pytest
from helpers import assert_same_result, closed_form_detector, quick_detector

from sklearn_cdgd._workers import Workers

if not os.environ.get("SKLEARN_CDGD_CLUSTER"):
    pytest.skip("set SKLEARN_CDGD_CLUSTER=1 to start a cluster", allow_module_level=True)
distributed = pytest.importorskip("distributed", reason="distributed is in the extra of that name")

# dask's own loops and sockets are closed after their cluster; that is not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


@contextlib.contextmanager
def two_workers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            client.wait_for_workers(2, timeout=60)
            yield client


@pytest.fixture(scope="module")
def cluster():
    with two_workers() as client:
        yield client


@pytest.fixture
def doomed():
    """Return a cluster that no other test needs."""
    with two_workers() as client:
        yield client


def test_the_same_alpha_on_a_cluster(cluster, spheres):
    arrays = spheres()[:4]
    options = dict(cv=2, clean_cv=2)
    alone = quick_detector(**options).fit(*arrays)
    for n_jobs in (None, 1, 2):
        with joblib.parallel_config(backend="dask"):
            spread = quick_detector(n_jobs=n_jobs, **options).fit(*arrays)
        assert_same_result(spread, alone)


@pytest.mark.parametrize("options", [{"witnesses": "all"}, {"shard_size": 50}], ids=["forests", "shards"])
def test_the_closed_form_on_a_cluster(cluster, spheres, options):
    arrays = spheres()[:4]
    alone = closed_form_detector(max_iter=3, **options).fit(*arrays)
    with joblib.parallel_config(backend="dask"):
        spread = closed_form_detector(max_iter=3, **options).fit(*arrays)
    assert_same_result(spread, alone)


def test_shards_on_a_cluster(cluster, spheres):
    arrays = spheres()[:4]
    alone = quick_detector(shard_size=50).fit(*arrays)
    with joblib.parallel_config(backend="dask"):
        spread = quick_detector(shard_size=50).fit(*arrays)
    np.testing.assert_array_equal(spread.alpha_, alone.alpha_)


def test_rows_of_a_dask_array(cluster, spheres):
    dask_array = pytest.importorskip("dask.array")
    X, *rest = spheres()[:4]
    alone = quick_detector().fit(X, *rest)
    of_chunks = quick_detector().fit(dask_array.from_array(X, chunks=(50, 3)), *rest)
    np.testing.assert_array_equal(of_chunks.alpha_, alone.alpha_)


class Numbers:
    """A tool that is large enough to be sent ahead."""

    def __init__(self, numbers):
        self.numbers = numbers

    def parts(self):
        return (self.numbers,)

    @classmethod
    def of_parts(cls, numbers):
        return cls(numbers)


def total(tool, number, flag):
    """Add up; the first one to do so kills the worker that it runs in."""
    if flag and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return float(tool.numbers.sum()) + number


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_a_worker_that_dies_at_work(doomed, tmp_path, n_before):
    """Before or after the data have reached every worker."""
    numbers = np.ones(100_000)
    with joblib.parallel_config(backend="dask"), Workers(None, Numbers(numbers)) as workers:
        for _ in range(n_before):
            assert workers(total, [(n, "") for n in range(3)]) == [1e5, 1e5 + 1, 1e5 + 2]
        assert workers(total, [(n, str(tmp_path / "flag")) for n in range(3)]) == [1e5, 1e5 + 1, 1e5 + 2]
        assert workers(total, [(n, "") for n in range(3)]) == [1e5, 1e5 + 1, 1e5 + 2]


def test_a_worker_that_is_killed_in_the_middle_of_a_fit(doomed, spheres, monkeypatch):
    arrays = spheres()[:4]
    alone = quick_detector(max_iter=3).fit(*arrays)
    calls, pids = [], list(doomed.run(os.getpid).values())

    def killing(self, *arguments, run=Workers._run):
        calls.append(1)
        if len(calls) == 2:
            os.kill(pids[0], signal.SIGKILL)
        return run(self, *arguments)

    monkeypatch.setattr(Workers, "_run", killing)
    with joblib.parallel_config(backend="dask"):
        spread = quick_detector(max_iter=3).fit(*arrays)
    np.testing.assert_array_equal(spread.alpha_, alone.alpha_)
    assert len(calls) >= 3
