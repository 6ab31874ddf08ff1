"""Joules of waits of whatever was read: sums, and counters that wrap or are set back."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import epochs, pool

sys.path.append(str(Path(__file__).parents[1] / "support"))
from energy_files import source, write_energy

from iobench.analysis.run import Run
from iobench.findings.energy import energy_of
from iobench.recording.machine_head import EnergySource, MachineHead
from iobench.runs.machine_samples import (
    EnergySeries,
    MachineSamples,
    read_machines,
)

MS = 1_000_000
S = 10**9
WRAPS = 100_000_000
few = settings(max_examples=max(settings().max_examples // 3, 12), deadline=None)
times = st.integers(0, 200)
durations = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)


def measured(profile, *found):
    none = np.zeros(0, dtype=np.int64)
    head = MachineHead("here", "boot", sources=tuple(each.source for each in found))
    machine = MachineSamples(head, none, none.reshape(0, 0), {}, found)
    return replace(profile, machines=(machine,))


@st.composite
def readings(draw, until):
    """Return times that may begin late, end early or go on, and what was counted by then."""
    when = sorted(draw(st.sets(st.integers(-50, until + 50), min_size=2, max_size=12)))
    steps = draw(st.lists(st.integers(0, 1000), min_size=len(when), max_size=len(when)))
    counter = EnergySource("gpu:0", "gpu", "gpu:0")
    return EnergySeries(counter, np.array(when), np.cumsum(steps).astype(float), 0)


@few
@given(st.data(), st.lists(durations, min_size=1, max_size=3), st.integers(0, 3), times)
def test_waits_and_epochs_add_up(data, made, workers, step):
    sketch = epochs(
        [pool(each, workers=workers, step_ns=step, drain_ns=7) for each in made], pause_ns=3
    )
    profile = sketch.data()
    until = max(span["end_ns"] for span in sketch.spans)
    profile = measured(profile, data.draw(readings(until)), data.draw(readings(until)))
    found = energy_of(Run(profile).of_rank())
    for kind in found.kinds.values():
        assert -1e-9 <= kind.wait_j <= kind.total_j + 1e-9
        assert sum(kind.epochs_j.values()) == pytest.approx(kind.total_j, rel=1e-9, abs=1e-9)
        assert 0 < kind.covered_fraction <= 1


@pytest.mark.parametrize(
    ("wraps", "rows", "joules", "n_resets"),
    [
        (WRAPS, [[0, 700], [S, 900], [2 * S, 900]], [0, 200, 200], 0),
        (WRAPS, [[0, WRAPS - 30], [S, 20], [2 * S, 50]], [0, 50, 80], 0),
        (None, [[0, 500], [S, 20], [2 * S, 60]], [0, 20, 60], 1),
        (None, [[0, 5], [S, None], [2 * S, 9]], [0, 4], 0),
        (None, [[S, 5], [0, 7], [2 * S, 9]], [0, 4], 0),
    ],
)
def test_counters_count_on_where_they_wrap_and_anew_where_they_were_set_back(
    tmp_path, wraps, rows, joules, n_resets
):
    write_energy(tmp_path, *rows, sources=[source("cpu:0", wraps_uj=wraps)], end=b"[3000000000,0,")
    ((machine,), damaged) = read_machines(tmp_path)
    (found,) = machine.energy
    assert (found.energy_j * 1e6).round().tolist() == joules
    assert (found.n_resets, damaged) == (n_resets, ())
