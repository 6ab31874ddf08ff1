"""How far ahead to read, from a storage whose clock is ours: no time passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iobench
from iobench.errors import StoreError
from iobench.loaders.ring import probe_ahead
from iobench.loaders.ring.ahead_choice import MAX_THREADS, ReadSpeeds, choose_ahead, measure
from iobench.loaders.ring.probe_ahead import ahead_of
from iobench.loaders.ring.store_source import StoreSource
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.stores.contract import Store

    MakeStore = Callable[..., Store]

MB = 1_000_000


@dataclass
class StandInStorage:
    """Answers each read after a latency, on connections and a line of limited rates.

    ``now_ns`` advances by what reads take, so nothing is slept through.
    """

    latency_s: float
    connection_rate: float
    line_rate: float
    nbytes: int = 512 << 10
    left: int = 10_000
    now_ns: int = 0
    counts: list[int] = field(default_factory=list)

    def clock(self) -> int:
        return self.now_ns

    def read(self, count: int) -> int:
        count = min(count, self.left)
        self.left -= count
        self.counts.append(count)
        rate = min(self.connection_rate, self.line_rate / max(1, count))
        self.now_ns += int(1e9 * (self.latency_s + self.nbytes / rate))
        return count


def needed(storage: StandInStorage) -> int:
    speeds = measure(storage, storage.clock)
    assert speeds is not None
    return speeds.n_needed


def test_objects_far_away_take_tens_of_requests() -> None:
    """60 ms, 90 MB/s a connection, 1.2 GB/s in all."""
    storage = StandInStorage(0.06, 90 * MB, 1200 * MB)
    speeds = measure(storage, storage.clock)
    assert speeds is not None
    assert storage.counts == [1, 1, 1, 4, 16, 64]
    assert speeds.alone_ns == pytest.approx(65.8e6, rel=0.01)
    assert speeds.best_rate == pytest.approx(64 * storage.nbytes / (0.06 + 64 / 2289), rel=0.02)
    by_law = speeds.best_rate * speeds.alone_ns / 1e9 / storage.nbytes
    assert 40 < by_law <= speeds.n_needed <= by_law + 1


def test_a_disk_nearby_takes_few() -> None:
    """0.1 ms, 3 GB/s however many: more at once bring little, and that is found soon."""
    storage = StandInStorage(0.0001, 3000 * MB, 3000 * MB)
    assert needed(storage) <= 2
    assert storage.counts == [1, 1, 1, 4, 16][: len(storage.counts)]


def test_a_slow_storage_is_not_measured_for_long() -> None:
    storage = StandInStorage(0.9, 90 * MB, 1200 * MB)
    assert needed(storage) == 1
    assert storage.counts == [1, 1, 1]  # a second is over


def test_few_places_are_enough_for_what_they_can_tell() -> None:
    assert measure(StandInStorage(0.1, MB, MB, left=0), lambda: 0) is None
    storage = StandInStorage(0.01, 90 * MB, 1200 * MB, left=8)
    assert 1 < needed(storage) <= 4


def choice_of(speeds: ReadSpeeds | None, **more: Any) -> Any:
    given = {"batch_reads": 8, "buffer_nbytes": 10 * MB, "threads": 2, "depth": 4}
    return choose_ahead(speeds, **{**given, "max_bytes": 2000 * MB, **more})


def test_further_batches_are_filled_until_enough_is_under_way() -> None:
    speeds = ReadSpeeds(512 << 10, 60_000_000, {1: 8.7e6, 64: 450e6})
    assert speeds.n_needed == 52
    choice = choice_of(speeds)
    assert (choice.threads, choice.depth, choice.in_flight) == (7, 9, 8)
    assert "a read of 524288 bytes takes 60.00 ms, up to 450 MB/s come in: 52 reads" in str(choice)
    large = choice_of(speeds, batch_reads=60)
    assert (large.threads, large.depth, large.in_flight) == (2, 4, 26)
    small = choice_of(speeds, batch_reads=1)
    assert (small.threads, small.depth) == (MAX_THREADS, MAX_THREADS + 2)


def test_memory_limits_it_and_that_is_said() -> None:
    speeds = ReadSpeeds(512 << 10, 60_000_000, {1: 8.7e6, 64: 450e6})
    choice = choice_of(speeds, max_bytes=65 * MB)
    assert (choice.threads, choice.depth) == (4, 6)
    assert "7 threads would need more memory than 65000000 bytes" in choice.why


def test_what_is_in_the_page_cache_is_not_waited_for() -> None:
    choice = choice_of(None)
    assert (choice.threads, choice.depth) == (2, 4)
    assert "in the page cache" in choice.why


@given(
    latency_s=st.floats(1e-5, 0.3),
    connection=st.floats(1e6, 1e9),
    line=st.floats(1e6, 2e10),
    batch_reads=st.integers(1, 500),
    max_bytes=st.integers(1, 10**10),
)
def test_what_is_chosen_is_enough_or_a_limit_is_met(
    latency_s: float, connection: float, line: float, batch_reads: int, max_bytes: int
) -> None:
    storage = StandInStorage(latency_s, connection, line)
    speeds = measure(storage, storage.clock)
    assert speeds is not None
    assert 1 <= speeds.n_needed <= 64
    choice = choose_ahead(
        speeds,
        batch_reads=batch_reads,
        buffer_nbytes=10**7,
        threads=2,
        depth=4,
        max_bytes=max_bytes,
    )
    assert 2 <= choice.threads <= MAX_THREADS
    assert choice.depth >= 4
    assert choice.depth == 4 or choice.depth * 10**7 <= max_bytes
    is_enough = choice.threads * batch_reads >= speeds.n_needed
    assert is_enough or "more memory" in choice.why or choice.threads == MAX_THREADS
    assert choice.in_flight * choice.threads >= speeds.n_needed


SPEC = SampleSpec((Variable("field", (1 << 19,), "<f4", ("values",)),))


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    samples = [{"field": np.full(1 << 19, number, "f4")} for number in range(24)]
    return make_store(SPEC, samples, "numpy")


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> StandInStorage:
    """Put a slow storage between the probe and the files, none of which are cached."""
    made = StandInStorage(0.05, 50 * MB, 400 * MB)

    def read(files: Any, places: Sequence[Any], memory: Any) -> None:
        made.read(len(places))

    monkeypatch.setattr(probe_ahead, "_read_local", read)
    monkeypatch.setattr(probe_ahead, "are_cached", lambda places, files: False)
    return made


def test_of_a_cold_store_pieces_are_read_and_threads_follow(
    store: Store, storage: StandInStorage
) -> None:
    source = StoreSource(store)
    choice = ahead_of(source, 1, threads=2, depth=4, clock=storage.clock)
    assert choice is not None
    assert choice.speeds is not None
    assert choice.speeds.nbytes == 512 << 10
    assert choice.speeds.n_needed >= 12  # four pieces a batch
    assert choice.threads == -(-choice.speeds.n_needed // 4)
    assert choice.depth == choice.threads + 2
    assert source.in_flight == choice.in_flight


def test_a_warm_store_is_looked_at_only(store: Store) -> None:
    for file in store.path.glob("*.npy"):
        file.read_bytes()  # writers leave nothing in the page cache
    choice = ahead_of(StoreSource(store), 1, threads=2, depth=4)
    assert choice is not None
    assert (choice.threads, choice.depth, choice.speeds) == (2, 4, None)


def test_the_loader_takes_what_was_chosen_and_what_was_asked_for(
    store: Store, storage: StandInStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_its_clock(*given: Any, **more: Any) -> Any:
        storage.left = 10_000
        return ahead_of(*given, clock=storage.clock, **more)

    monkeypatch.setattr("iobench.loaders.ring.options.ahead_of", on_its_clock)
    loader = iobench.loader(store, 1)
    assert loader.threads > 3
    assert loader.depth == loader.threads + 2
    assert f"{loader.threads} threads, {loader.depth} buffers: a read of" in loader.choice
    assert [int(batch["field"][0, 0]) for batch in loader] == list(range(24))
    loader.close()
    shallow = iobench.loader(store, 1, depth=4)
    assert (shallow.depth, shallow.threads) == (4, 3)
    shallow.close()
    storage.counts.clear()
    fixed = iobench.loader(store, 1, depth=5, threads=1)
    assert (fixed.depth, fixed.threads, storage.counts) == (5, 1, [])
    assert fixed.choice == "1 threads, 5 buffers"
    fixed.close()


def test_a_store_that_cannot_be_read_is_told_by_its_first_batch(store: Store) -> None:
    for file in list(store.path.glob("*.npy")):
        file.unlink()
    loader = iobench.loader(store, 1)
    with pytest.raises(StoreError, match="missing"):
        next(iter(loader))
    loader.close()
