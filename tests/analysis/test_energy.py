"""Joules of waits: those of a power that is known, exact sums, and bounds that hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import CONSUMER, Sketch, epochs, pool

from iobench.analysis.run import Run, exposure
from iobench.recording.energy_counters import EnergySource, UnreadableEnergy
from iobench.recording.energy_file import EnergySeries, HostEnergy
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.subjects.energy import readings as subject
from iobench.subjects.energy.figures import EpochKind, energy_sum
from iobench.subjects.energy.readings import energy_at

MS = 1_000_000
few = settings(max_examples=40, deadline=None)
times = st.integers(0, 200)
durations = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)


def energy_of(profile):
    return subject.energy_of(Run(profile).of_rank())


def series(time_ns, energy_uj, *, kind="gpu", name="gpu:0", period_ns=0, **more):
    source = EnergySource(name, kind, name, "NVML", period_ns)
    told = {"n_resets": 0, "n_failed": 0, **more}
    return EnergySeries(source, np.array(time_ns), np.array(energy_uj), **told)


def host(*found, name="here", boot_id="boot", unreadable=(), period_ns=100 * MS):
    return HostEnergy(
        name, boot_id, period_ns, found, tuple(unreadable), 9, 18_000, 9, 0, closed=True
    )


def measured(profile, *found, **more):
    return replace(profile, energy=(host(*found, **more),))


def known_run():
    """Return a serial loader: 3 batches of 20 ms, each followed by a step of 30 ms."""
    return pool([(5 * MS, 10 * MS, 5 * MS)] * 3, workers=0, step_ns=30 * MS).profile()


def read_every(step_ns, watts_at, until_ns, **more):
    """Return a counter read every so often, of a power that is known at each step."""
    edges = np.arange(0, until_ns + step_ns, step_ns)
    power = np.array([watts_at(edge) for edge in edges[:-1].tolist()])
    # A watt for a nanosecond is a thousandth of a microjoule.
    return series(edges, np.append(0, np.cumsum(power * step_ns // 1000)), **more)


def test_a_known_power_gives_known_joules_of_waits_and_stages():
    def watts(at_ns):
        return 40 if at_ns % (50 * MS) < 20 * MS else 100

    found = energy_of(measured(known_run(), read_every(MS, watts, 150 * MS)))
    (gpu,) = found.kinds
    assert gpu.wait_uj == 3 * 40 * 20_000  # 40 W for 20 ms are 0.8 J
    assert gpu.compute_uj == 3 * 100 * 30_000
    assert gpu.total_uj == gpu.wait_uj + gpu.compute_uj
    assert gpu.wait_bounds_uj == (gpu.wait_uj, gpu.wait_uj)
    assert dict(gpu.stages) == {"read": 600_000, "decode": 1_200_000, "collate": 600_000}
    assert gpu.covered_fraction == 1.0
    assert (found.n_samples, found.reading_ns) == (12, 2000)
    assert gpu.resolution_ns == MS


def test_between_two_readings_energy_is_taken_as_even_and_said_to_be_bounded():
    found = energy_of(measured(known_run(), series([0, 150 * MS], [0, 15_000_000])))
    (gpu,) = found.kinds
    assert (gpu.total_uj, gpu.wait_uj) == (15_000_000, 6_000_000)  # 60 of 150 ms
    assert gpu.wait_bounds_uj == (0, 15_000_000)
    assert gpu.total_bounds_uj == (15_000_000, 15_000_000)
    assert gpu.resolution_ns == 150 * MS


def test_a_counter_may_be_as_old_as_its_renewal():
    fine = read_every(MS, lambda at_ns: 50, 160 * MS, period_ns=2 * MS)
    found = energy_of(measured(known_run(), fine))
    low, high = found.kinds[0].wait_bounds_uj
    # Each wait is surely 18 whole steps of 20, and at most 2 more at its end; the first begins
    # before there was anything to read.
    assert (low, high) == (3 * 18 * 50_000, 3 * 22 * 50_000)
    assert low < found.kinds[0].wait_uj < high


def test_readings_that_cover_a_part_tell_that_part():
    found = energy_of(measured(known_run(), series([50 * MS, 125 * MS], [0, 7_500_000])))
    (gpu,) = found.kinds
    assert (gpu.total_uj, gpu.wait_uj) == (7_500_000, 4_000_000)
    assert gpu.covered_fraction == 0.5


@pytest.mark.parametrize("outside", [([], []), ([1], [5]), ([-9, -5], [0, 9]), ([10**12], [5])])
def test_readings_beside_the_run_tell_nothing_and_not_zero(outside):
    found = energy_of(measured(known_run(), series(*outside)))
    assert found.kinds == ()
    assert [each.reason for each in found.untold] == ["gpu:0: no two readings in the run's time"]


def test_what_cannot_be_read_is_told_with_its_machine():
    refused = UnreadableEnergy("cpu", "permission denied")
    found = energy_of(measured(known_run(), unreadable=[refused]))
    assert [(each.host, each.kind, each.reason) for each in found.untold] == [
        ("here", "cpu", "permission denied")
    ]
    assert energy_of(known_run()) is None


def test_counters_of_another_machine_are_not_taken():
    profile = measured(known_run(), series([0, 150 * MS], [0, 9]), name="there", boot_id="else")
    found = energy_of(profile)
    assert found.kinds == ()
    assert {each.reason for each in found.untold} == {"nobody read it there"}


def test_machines_without_a_boot_id_are_known_by_name():
    profile = measured(known_run(), series([0, 150 * MS], [0, 9]), boot_id="")
    assert energy_of(profile).kinds[0].total_uj == 9


def test_kinds_add_up_and_estimates_are_marked():
    power = series([0, 150 * MS], [0, 300], name="gpu:1")
    power = replace(power, source=replace(power.source, estimated=True))
    found = energy_of(
        measured(
            known_run(),
            series([0, 150 * MS], [0, 100]),
            power,
            series([0, 150 * MS], [0, 50], kind="cpu", name="cpu:0"),
            series([0, 150 * MS], [0, 999], kind="machine", name="machine:0"),
        )
    )
    assert [(each.kind, each.total_uj, each.estimated) for each in found.kinds] == [
        ("gpu", 400, True), ("cpu", 50, False), ("machine", 999, False),
    ]  # fmt: skip
    assert len(found.sources) == 4


def test_a_run_in_which_nobody_waited_has_energy_and_no_waits():
    sketch = Sketch({"kind": "script"})
    sketch.add(CONSUMER, Kind.READ, 0, 50 * MS)
    found = energy_of(measured(sketch.profile(), series([0, 100 * MS], [0, 1000])))
    (gpu,) = found.kinds
    assert (gpu.total_uj, gpu.wait_uj, gpu.compute_uj) == (500, None, None)
    assert (found.epochs, found.n_samples) == ((), None)


def test_ranks_of_one_machine_have_equal_parts_that_add_up_to_it():
    facts = [
        ProcessFacts(pid=rank, ppid=0, host="here", role="consumer", rank=rank) for rank in (0, 1)
    ]
    counted = series([0, 150 * MS], [0, 1001])
    ranks = [replace(measured(known_run(), counted), facts=tuple(facts), rank=0) for _ in range(2)]
    parts = [energy_of(each) for each in ranks]
    assert [each.kinds[0].total_uj for each in parts] == [500, 500]
    job = energy_sum(parts)
    assert (job.kinds[0].total_uj, job.n_sharing, job.n_samples) == (1000, 2, 24)
    (source,) = job.sources
    assert (source.total_uj, source.covered_ns) == (1000, 300 * MS)
    assert job.kinds[0].wait_uj == sum(each.kinds[0].wait_uj for each in parts)
    assert [(each.n_batches, each.kinds) for each in job.epochs] == [
        (6, (EpochKind("gpu", 1000, 400),))
    ]
    assert energy_sum([None, None]) is None


def test_of_machines_with_other_counters_no_sample_has_a_share():
    found = energy_of(measured(known_run(), series([0, 150 * MS], [0, 1000])))
    job = energy_sum([found, replace(found, kinds=(), sources=(), epochs=())])
    assert (job.kinds[0].total_uj, job.n_samples) == (1000, None)
    assert energy_sum([found, found]).n_samples == 24


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
