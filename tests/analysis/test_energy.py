"""Joules of waits of whatever was read: exact sums, and bounds that hold."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import epochs, pool

from iobench.analysis.run import Run, exposure
from iobench.recording.energy_counters import EnergySource
from iobench.recording.energy_file import EnergySeries, HostEnergy
from iobench.recording.kinds import Kind
from iobench.subjects.energy import readings as subject
from iobench.subjects.energy.readings import energy_at

MS = 1_000_000
few = settings(max_examples=max(settings().max_examples // 3, 12), deadline=None)
times = st.integers(0, 200)
durations = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)


def energy_of(profile):
    return subject.energy_of(Run(profile).of_rank())


def series(time_ns, energy_uj, *, period_ns=0):
    source = EnergySource("gpu:0", "gpu", "gpu:0", "NVML", period_ns)
    return EnergySeries(source, np.array(time_ns), np.array(energy_uj), 0, 0)


def measured(profile, *found):
    energy = HostEnergy("here", "boot", 100 * MS, found, (), 9, 18_000, 9, 0, closed=True)
    return replace(profile, energy=(energy,))


@st.composite
def readings(draw, until):
    """Return times that may begin late, end early or go on, and what was counted by then."""
    when = sorted(draw(st.sets(st.integers(-50, until + 50), min_size=2, max_size=12)))
    steps = draw(st.lists(st.integers(0, 10**6), min_size=len(when), max_size=len(when)))
    return series(when, np.cumsum(steps), period_ns=draw(st.integers(0, 60)))


@few
@given(st.data(), st.lists(durations, min_size=1, max_size=3), st.integers(0, 3), times)
def test_waits_and_the_rest_stages_and_epochs_add_up_exactly(data, made, workers, step):
    sketch = epochs(
        [pool(each, workers=workers, step_ns=step, drain_ns=7) for each in made], pause_ns=3
    )
    profile = sketch.profile()
    until = max(span["end_ns"] for span in sketch.spans)
    found = energy_of(measured(profile, data.draw(readings(until)), data.draw(readings(until))))
    assert exposure(profile).whole.n_batches == sum(each.n_batches for each in found.epochs) or (
        not found.kinds
    )
    for kind in found.kinds:
        assert 0 <= kind.wait_uj <= kind.total_uj
        assert kind.wait_uj + kind.compute_uj == kind.total_uj
        assert sum(kind.stages.values()) == kind.wait_uj
        assert all(energy > 0 for energy in kind.stages.values())
        assert kind.wait_bounds_uj[0] <= kind.wait_uj <= kind.wait_bounds_uj[1]
        assert kind.total_bounds_uj[0] <= kind.total_uj <= kind.total_bounds_uj[1]
        by_epoch = [energy for epoch in found.epochs for energy in epoch.kinds]
        assert sum(own.total_uj for own in by_epoch if own.kind == kind.kind) == kind.total_uj
        assert sum(own.wait_uj for own in by_epoch if own.kind == kind.kind) == kind.wait_uj
        assert 0 < kind.covered_fraction <= 1


@few
@given(st.data(), durations, st.integers(0, 2), times, st.integers(0, 40))
def test_what_was_really_spent_lies_within_the_bounds(data, made, workers, step, period):
    """Readings show the counter as it was at its last renewal, at most a period ago."""
    sketch = pool(made, workers=workers, step_ns=step, drain_ns=2)
    profile = sketch.profile()
    until = max(span["end_ns"] for span in sketch.spans) + period + 1
    power = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 50, until + 1)
    spent = np.append(0, np.cumsum(power))
    when = {0, until, *data.draw(st.sets(st.integers(0, until), max_size=12))}
    when = np.array(sorted(when))
    ages = np.array([data.draw(st.integers(0, period)) for _ in when])
    shown = np.maximum.accumulate(spent[np.maximum(when - ages, 0)])
    found = energy_of(measured(profile, series(when, shown - shown[0], period_ns=period)))
    waits = [span for span in sketch.spans if span["kind"] == Kind.WAIT]
    really = sum(int(spent[span["end_ns"]] - spent[span["start_ns"]]) for span in waits)
    for kind in found.kinds:
        assert kind.wait_bounds_uj[0] <= really <= kind.wait_bounds_uj[1]


@few
@given(st.data())
def test_energy_rises_and_is_that_of_the_readings_at_their_times(data):
    found = data.draw(readings(300))
    at = np.arange(-60, 360)
    energy = energy_at(found, at)
    assert (np.diff(energy) >= 0).all()
    assert energy_at(found, found.time_ns).tolist() == found.energy_uj.tolist()
    assert (energy[0], energy[-1]) == (found.energy_uj[0], found.energy_uj[-1])


def test_large_energies_and_gaps_stay_whole():
    year = 365 * 24 * 3600 * 10**9
    found = series([0, year], [0, 10**15])
    halves = energy_at(found, np.array([year // 2, year]))
    assert halves.tolist() == [5 * 10**14, 10**15]
