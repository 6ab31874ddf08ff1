"""Batches of what is ready: no batch waits for a slow sample, and none is lost or comes twice."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_sources import NumberReader, NumberSource, in_place

import iobench
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import OptionError, SampleError
from iobench.recording.kinds import Kind

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class GatedSource(NumberSource):
    """Some samples wait until a gate is opened."""

    slow: frozenset[int] = frozenset()
    gate: threading.Event = field(default_factory=threading.Event)

    def filler(self):
        return GatedReader(self)


class GatedReader(NumberReader):
    def fill(self, samples, rows, log):
        if self.source.slow.intersection(samples.tolist()):  # type: ignore[attr-defined]
            self.source.gate.wait()  # type: ignore[attr-defined]
        super().fill(samples, rows, log)


def ready(source: Any, batch_size: int = 4, **options: Any) -> Any:
    return iobench.loader(source, batch_size, in_order=False, **{"threads": 3, **options})


def numbers(batches: Any) -> list[list[int]]:
    result = []
    for batch in batches:
        result.append(batch["number"].tolist())
        expected = batch["number"][:, None, None] + np.arange(15).reshape(3, 5) / 16
        assert np.array_equal(batch["field"], expected)
    return result


def flat(batches: Any) -> list[int]:
    return [*itertools.chain.from_iterable(batches)]


SHAPES = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 7),
        "threads": st.integers(2, 4),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
        "world_size": st.integers(1, 3),
    }
)


@given(st.integers(21, 50), SHAPES, st.data())
@settings(deadline=None)
def test_an_epoch_has_its_samples_once_whatever_is_slow_and_wherever_it_goes_on(n, shape, data):
    options = {**shape, "rank": data.draw(st.integers(0, shape["world_size"] - 1))}
    batches = numbers(iobench.loader(NumberSource(n), **options))
    slow = data.draw(st.sets(st.sampled_from(flat(batches)), max_size=options["threads"] - 1))
    sizes, size = [*map(len, batches)], options["batch_size"]
    before = data.draw(st.integers(0, (sum(sizes) - len(slow)) // size))  # the gate is opened
    source = GatedSource(n, slow=frozenset(slow))
    loader = ready(source, **options)
    iterator, stop = iter(loader), data.draw(st.integers(0, len(batches)))
    taken = []
    for number in range(stop):
        if number == before:
            source.gate.set()
        taken += numbers([next(iterator)])
        assert loader.coordinates()["sample"].tolist() == taken[-1]
        assert number >= before or not slow.intersection(taken[-1])
    state = loader.state_dict()
    source.gate.set()
    assert [len(each) for each in taken] == sizes[:stop]
    rest = numbers(iterator)
    other = ready(NumberSource(n), **options)
    other.load_state_dict(state)
    for after in (rest, numbers(other)):
        assert [len(each) for each in after] == sizes[stop:]
        assert sorted(flat(taken + after)) == sorted(flat(batches))
    assert sorted(flat(numbers(loader))) == sorted(flat(numbers(other)))  # the epoch after it
    assert other.state_dict()["pending"] == []


def test_a_failing_sample_is_raised_and_the_others_can_be_had() -> None:
    loader = ready(NumberSource(20, broken=9))
    taken: list[list[int]] = []
    with pytest.raises(SampleError, match="sample 9") as caught:
        taken.extend(numbers([batch])[0] for batch in loader)
    assert "while sample 9 of epoch 0 was made" in caught.value.__notes__
    other = ready(NumberSource(20))
    other.load_state_dict(loader.state_dict())
    assert sorted(flat(taken + numbers(other))) == [*range(20)]


@pytest.mark.long
def test_processes_make_samples_and_a_transform_runs_in_threads() -> None:
    loader = ready(NumberSource(30), processes=True, transform=in_place)
    found = []
    for batch in loader:
        assert np.array_equal(batch["field"][:, 0, 0], batch["number"] + 1)
        found += batch["number"].tolist()
    assert sorted(found) == [*range(30)]
    loader.close()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match="in_order=False: one thread reads"):
        ready(NumberSource(), threads=1)
    with pytest.raises(OptionError, match="in_order=None: expected True or False"):
        iobench.loader(NumberSource(), 4, in_order=None)
    loader, ordered = ready(NumberSource(20)), iobench.loader(NumberSource(20), 4)
    with pytest.raises(OptionError, match="no batch was handed out"):
        loader.coordinates()
    with pytest.raises(OptionError, match="batch 2 of epoch 0: with in_order=False expected one"):
        loader.coordinates(2)
    state = {**loader.state_dict(), "pending": [3]}
    with pytest.raises(OptionError, match="a loader with in_order=False, which passed over"):
        ordered.load_state_dict(state)
    for wrong in ([3, 3], [20], [*range(20), 0]):
        with pytest.raises(OptionError, match="expected samples below 20, once each"):
            loader.load_state_dict({**state, "pending": wrong})
    loader.load_state_dict(ordered.state_dict())
    assert sorted(flat(numbers(loader))) == [*range(20)]


def test_a_recording_has_the_samples_of_each_batch(tmp_path) -> None:
    source = GatedSource(12, slow=frozenset({1}))
    with iobench.record(tmp_path / "run"):
        loader = ready(source)
        taken = []
        for batch in loader:
            taken += numbers([batch])
            source.gate.set()
        loader.close()
    profile = iobench.open_profile(tmp_path / "run")
    spans = profile.spans[profile.spans["sample"] >= 0]
    for kind in (Kind.READ, Kind.COLLATE):
        of = spans[spans["kind"] == kind]
        for number, samples in enumerate(taken):
            assert sorted(of["sample"][of["batch"] == number]) == sorted(samples)
    figures = exposure(profile).whole
    assert (figures.n_batches, figures.n_samples) == (3, 12)
    assert sum(figures.exposed_ns.values()) == figures.wait_ns
    (run,) = recorded_runs(Run(profile).of_rank())
    assert (run.rule, "in_order=False" in run.reason) == (LoaderRule.OPAQUE, True)
