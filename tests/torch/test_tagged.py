"""Objects that stamp their own way: pinning, and rebuilding without a recorder."""

from __future__ import annotations

import pickle

import pytest
from span_rows import rows_by_kind

from iobench.recording import Kind, activate

torch = pytest.importorskip("torch")
from iobench.torch.tagged import Arrivals, Tag, TaggedBatch, TaggedIndices  # noqa: E402

TAG = Tag(batch=7, epoch=2, submitted_ns=5)


class Pinnable:
    """Stands in for a tensor where there is no CUDA device to pin for."""

    def __init__(self, pinned=False):
        self.nbytes, self.pinned = 12, pinned

    def pin_memory(self):
        return Pinnable(pinned=True)


def test_pinning_is_recorded_and_returns_a_pinned_batch(run, consumer):
    arrivals = Arrivals(consumer)
    batch = TaggedBatch({"x": Pinnable()}, TAG, worker=1, arrivals=arrivals.number)
    pinned = batch.pin_memory()
    assert pinned.tensors["x"].pinned
    assert (pinned.tag, pinned.worker) == (TAG, 1)
    (row,) = rows_by_kind(run)[Kind.PIN]
    assert (row.batch, row.epoch, row.nbytes) == (7, 2, 12)


def test_torchs_pin_function_calls_ours(run, consumer):
    from torch.utils.data._utils.pin_memory import pin_memory

    arrivals = Arrivals(consumer)
    batch = TaggedBatch({"x": Pinnable()}, TAG, worker=1, arrivals=arrivals.number)
    assert pin_memory(batch).tensors["x"].pinned


def test_indices_keep_their_tag_through_pickle():
    with activate(None):
        copy = pickle.loads(pickle.dumps(TaggedIndices([3, 4], TAG)))
    assert (copy, copy.tag) == ([3, 4], TAG)


def test_a_batch_whose_loader_is_gone_still_unpickles():
    batch = TaggedBatch({"x": torch.ones(2)}, TAG, worker=0, arrivals=-1)
    copy = pickle.loads(pickle.dumps(batch))
    assert copy.tensors["x"].tolist() == [1.0, 1.0]
    assert (copy.tag, copy.worker, copy.failure) == (TAG, 0, None)


@pytest.mark.parametrize("waited", [True, False])
def test_other_threads_are_never_in_the_consumers_way(run, consumer, waited):
    import threading

    from iobench.loaders.contract import PlannedBatch

    arrivals = Arrivals(consumer)
    arrivals.wait_for(PlannedBatch(1, 0, (0,)) if waited else None)
    batch = TaggedBatch({}, TAG, worker=0, arrivals=arrivals.number)
    thread = threading.Thread(target=arrivals.arrived, args=(batch, 0, 0))
    thread.start()
    thread.join()
    assert set(rows_by_kind(run)) == {Kind.UNPICKLE}
