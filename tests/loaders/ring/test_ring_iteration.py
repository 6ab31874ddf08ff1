"""Batches of a ring are those of the order, whoever holds them for however long."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iobench.errors import OptionError, SampleError
from iobench.loaders.ring import buffers
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog

SPEC = SampleSpec(
    (
        Variable("field", (3, 5), "<f4", ("y", "x")),
        Variable("number", (), "<i8", ()),
    )
)


@dataclass
class CountedFiller:
    """Fills rows with the sample's number; may be told to fail."""

    source: CountedSource

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        for row, sample in enumerate(samples.tolist()):
            if sample in self.source.broken:
                raise SampleError(f"sample {sample} is broken")
            rows["field"][row] = sample + np.arange(15).reshape(3, 5) / 16
            rows["number"][row] = sample
        self.source.n_filled += 1

    def close(self) -> None:
        self.source.n_closed += 1


@dataclass
class CountedSource:
    """Samples that tell their number."""

    n_samples: int = 50
    broken: frozenset[int] = frozenset()
    spec: SampleSpec = SPEC
    n_filled: int = 0
    n_fillers: int = 0
    n_closed: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return self.n_samples

    def filler(self) -> CountedFiller:
        self.n_fillers += 1
        return CountedFiller(self)


def make(
    n_samples: int = 50, batch_size: int = 4, *, source: CountedSource | None = None, **options: Any
) -> RingLoader:
    names = ("shuffle", "seed", "drop_last", "rank", "world_size")
    order = {name: options.pop(name) for name in names if name in options}
    return RingLoader(
        source or CountedSource(n_samples),
        BatchOrder(n_samples, batch_size, **order),
        **options,
    )


def numbers(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if "iobench-ring" in thread.name]
    assert not left


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches_do_not_depend_on_threads(threads: int) -> None:
    loader = make(threads=threads, shuffle=True, seed=3)
    expected = [loader.order.samples(0, batch).tolist() for batch in range(len(loader))]
    assert numbers(loader) == expected
    assert sorted(chain.from_iterable(expected)) == list(range(50))


def test_holding_all_batches_is_told_once() -> None:
    loader = make(depth=3)
    with pytest.warns(UserWarning, match="batches are held at once") as caught:
        held = list(loader)
    assert len(caught) == 1
    assert len(held) == 13


def test_more_than_fits_into_memory_is_an_error_and_no_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = SimpleNamespace(available=10 * 8192)
    monkeypatch.setattr(buffers.psutil, "virtual_memory", lambda: free)
    with pytest.raises(OptionError, match=r"11 buffers of 8192 bytes, 4 samples of 68 each"):
        make(depth=11)
    loader = make(depth=3)
    held = []
    with (
        pytest.warns(UserWarning, match="held at once"),
        pytest.raises(OptionError, match=r"5 batches of 8192 bytes are held.*more than 40960"),
    ):
        held.extend(iter(loader))
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(numbers(loader)) == 13


@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_views_keep_a_batch_and_its_end_gives_it_back() -> None:
    loader = make(n_samples=4000, depth=3)
    view = None
    for position, batch in enumerate(loader):
        if position == 3:
            view = batch["field"][1:, 2][::-1]
            expected = view.copy()
    assert view is not None
    assert (view == expected).all()


def test_an_iterator_that_is_forgotten_ends_its_threads() -> None:
    loader = make(n_samples=4000)
    iterator = iter(loader)
    next(iterator)
    alive = weakref.ref(iterator)
    del iterator
    assert alive() is None
    assert not [t for t in threading.enumerate() if "iobench-ring" in t.name]
    source = loader.source
    assert isinstance(source, CountedSource)
    assert source.n_closed == source.n_fillers


def test_two_iterations_at_once_do_not_hinder_each_other() -> None:
    loader = make(n_samples=200, depth=3)
    for first, second in zip(loader, loader, strict=True):
        assert first["number"].tolist() == second["number"].tolist()


def test_what_fails_is_raised_in_its_place() -> None:
    loader = make(source=CountedSource(broken=frozenset({9})), threads=3)
    iterator = iter(loader)
    assert numbers([next(iterator), next(iterator)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(SampleError, match="sample 9 is broken") as caught:
        next(iterator)
    assert caught.value.__notes__ == ["while batch 2 of epoch 0 was made"]
    with pytest.raises(StopIteration):
        next(iterator)
