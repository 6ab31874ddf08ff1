"""Waits for batches of grain's pipelines, whoever makes them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("grain", reason="waits for its pipelines are what is recorded")
import grain
from reference import without_cpu_waits

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile

NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
THREADS = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
READ_S = 0.003
NS = 1_000_000_000


class Jitter(grain.transforms.RandomMap):
    """A transform that draws random numbers."""

    def random_map(self, element, rng):
        return {**element, "x": element["x"] + rng.normal(size=element["x"].shape)}


class Numbers(grain.DatasetIterator):
    """An iterator of a script's own."""

    def __init__(self, source):
        super().__init__()
        self.source, self.next = source, 0

    def __next__(self):
        if self.next == len(self.source):
            raise StopIteration
        self.next += 1
        return self.source[self.next - 1]

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


class OwnData(grain.IterDataset):
    def __init__(self, source):
        super().__init__()
        self._source = source

    def __iter__(self):
        return Numbers(self._source)


def data_loader(source):
    sampler = grain.samplers.SequentialSampler(
        num_records=len(source), shard_options=grain.sharding.NoSharding()
    )
    return grain.DataLoader(
        data_source=source, sampler=sampler, read_options=NO_THREADS,
        operations=[grain.transforms.Batch(4)],
    )  # fmt: skip


def two_mixed(source):
    return grain.IterDataset.mix(
        [grain.MapDataset.source(source).slice(part).to_iter_dataset() for part in HALVES]
    ).batch(4)


HALVES = (slice(0, None, 2), slice(1, None, 2))
PIPELINES = {
    "map": (lambda source: grain.MapDataset.source(source).batch(4), "Fields", 4, 0),
    "loop": (
        lambda source: grain.MapDataset.source(source).to_iter_dataset(NO_THREADS).batch(4),
        "Fields", 4, 0,
    ),
    "threads": (
        lambda source: grain.MapDataset.source(source).batch(4).to_iter_dataset(THREADS),
        "Fields", 4, 2,
    ),
    "ahead": (
        lambda source: grain.experimental.ThreadPrefetchIterDataset(
            OwnData(source).batch(4), prefetch_buffer_size=2
        ),
        "Fields", 4, 0,
    ),
    "own": (lambda source: OwnData(source), "Fields", None, 0),
    "loader": (data_loader, "Fields", 4, 0),
    "mixed": (two_mixed, "Fields", 4, 16),
}  # fmt: skip


def waits_of(profile):
    return profile.spans[profile.spans["kind"] == Kind.WAIT]


def delivered(profile):
    waits = waits_of(profile)
    return waits[waits["batch"] >= 0]


@pytest.mark.parametrize("name", PIPELINES)
def test_waits_are_recorded_batch_by_batch(tmp_path, hooks, fields, name):
    pipeline, source, size, threads = PIPELINES[name]
    data = pipeline(fields(12, READ_S))
    with record(tmp_path / "run"):
        first, second = [*data], [*data]
    np.testing.assert_equal(first, second)
    profile = without_cpu_waits(open_profile(tmp_path / "run"))
    waits = delivered(profile)
    n_batches = 3 if size else 12
    assert len(first) == n_batches
    assert len(np.unique(waits["batch"])) == 2 * n_batches
    assert waits["epoch"].tolist() == [0] * n_batches + [1] * n_batches
    assert set(waits["nbytes"].tolist()) == {(size or 1) * (8 * 8 * 4 + 8)}
    (loader,) = profile.facts[0].loaders
    told = (loader.framework, loader.name, loader.batch_size, loader.workers, loader.threads)
    assert told == ("grain", source, size, 0, threads)
    # All of each wait for a batch is said to be grain's, and no more than that.
    whole = exposure(profile).whole
    every = waits_of(profile)
    assert sum(whole.exposed_ns.values()) == (every["end_ns"] - every["start_ns"]).sum()
    assert whole.exposed_ns["opaque:grain"] == (waits["end_ns"] - waits["start_ns"]).sum()
    if name in {"loop", "loader", "own"}:
        assert whole.exposed_ns["opaque:grain"] >= 24 * READ_S * NS


def test_batches_are_those_of_a_plain_run(tmp_path, fields):
    def batches():
        data = grain.MapDataset.source(fields(24)).seed(3).shuffle().random_map(Jitter())
        loader = data.repeat(2).to_iter_dataset().batch(4)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(3)]
        state = iterator.get_state()
        again = iter(loader)
        again.set_state(state)
        return [first, [*iterator], [*again], type(again).__name__, state]

    from iobench.jax import hooks

    plain = batches()
    hooks.install()
    try:
        with record(tmp_path / "run"):
            recorded = batches()
    finally:
        hooks.uninstall()
    np.testing.assert_equal(recorded, plain)
    assert "next" not in vars(type(iter(grain.MapDataset.range(2))))
    profile = without_cpu_waits(open_profile(tmp_path / "run"))
    waits = waits_of(profile)
    starts = waits[waits["label"] == profile.string_number("startup")]["detail"].tolist()
    assert [profile.strings[each] for each in starts] == ["loader-0", "loader-0 resumed"]


def test_an_error_of_the_users_is_theirs(tmp_path, hooks, fields):
    def fail(element):
        if element["number"] == 5:
            raise LookupError("number five")
        return element

    data = grain.MapDataset.source(fields(8)).map(fail).to_iter_dataset().batch(2)
    with record(tmp_path / "run"), pytest.raises(LookupError, match="number five"):
        for _ in data:
            pass
    profile = without_cpu_waits(open_profile(tmp_path / "run"))
    assert len(delivered(profile)) == 2
    assert (waits_of(profile)["label"] == profile.string_number("failed")).sum() == 1


def test_nothing_is_left_behind(hooks, fields):
    class Own(grain.IterDataset):  # made while the hooks are there
        def __iter__(self):
            return self._parent.__iter__()

    kinds = [grain.DataLoader, grain.MapDataset, Own]
    ours = [vars(kind)["__iter__"] for kind in kinds]
    data = Own(grain.MapDataset.source(fields(3)).to_iter_dataset())
    assert [each["number"] for each in data] == [0, 1, 2]
    hooks.uninstall()
    theirs = [vars(kind)["__iter__"] for kind in kinds]
    assert not any(each is before for each, before in zip(theirs, ours, strict=True))
    assert [each["number"] for each in data] == [0, 1, 2]
