"""Staging is proposed where storage holds the loop up and a near place has space, nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from schedules import STAGES, pool

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.proposals import Lever, Reason
from iobench.recording.kinds import Kind

MS, MB, GB = 10**6, 10**6, 10**9
DISK = {
    "path": "/local/job", "mount": "/local", "file_system": "xfs", "in_memory": False,
    "free_nbytes": 100 * GB,
}  # fmt: skip
SHM = {**DISK, "path": "/dev/shm", "mount": "/dev/shm", "in_memory": True, "free_nbytes": 8 * GB}
NEAR = {"places": [DISK, SHM], "shared": {"/scratch": "lustre"}, "folder": "/scratch/data"}
RUN = {
    "command": "iobench profile /scratch/data/a.nc --batches 60",
    "format": "source",
    "framework": "torch",
    "n_samples_all": 1000,
    "sample_nbytes": 2 * MB,
    "files_nbytes": 2 * GB,
    "machine": {"cpus": 16, "memory_nbytes": 64 * GB},
    "cache": {"resident_fraction_before": 0.0},
    "near": NEAR,
}


def run_of(reads_ms, *, workers=2, step_ms=5.0, rest_ms=4.0, cpu=0.02, nbytes=8 * MB, **config):
    """Return a run that read so long for each batch, of which ``cpu`` is on one; None unknown."""
    durations = [[round(each * MS) for each in (read, rest_ms, 1.0)] for read in reads_ms]
    sketch = pool(durations, workers=workers, step_ns=round(step_ms * MS))
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span["nbytes"] = nbytes
        if span["kind"] in STAGES and cpu is not None:
            share = cpu if span["kind"] == Kind.READ else 1.0
            span["cpu_ns"] = round(share * (span["end_ns"] - span["start_ns"]))
    profile = sketch.data()
    told = {**profile.config, **RUN, **config}
    return Run(replace(profile, path=Path("run"), config=told)).of_rank()


def advised(run):
    advice = advice_of([loading_of(run, recorded_runs(run))])
    assert advice is not None
    return advice


def staging(advice):
    changes = [*advice.changes, *advice.to_measure]
    changes += [same for each in advice.to_measure for same in each.same_bound]
    return next((each for each in changes if "stage" in each.settings), None)


def why_not(advice) -> Reason | None:
    ruled_out = {lever: each.reason for each in advice.ruled_out for lever in each.levers}
    return ruled_out.get(Lever.CACHE)


def test_its_price_is_one_reading_of_all_files_and_its_command_names_them() -> None:
    advice = advised(run_of([100.0] * 60))
    change = staging(advice)
    # Two readers wait 98 of the 105 ms of a batch each; a step takes 5 of the 52.5 of the loop.
    assert change.high_fraction == pytest.approx(0.9, abs=0.03)
    # 8 MB in 0.1 s of each of two readers.
    assert change.cost.spent_s == pytest.approx(2 * GB / 160e6)
    assert change.cost.disk_nbytes == 2 * GB
    assert change.commands[0] == "iobench stage /scratch/data --to /local/job"
    assert change.break_even.epochs == pytest.approx(change.cost.spent_s / change.saved_s)


SMALL = {**DISK, "free_nbytes": GB}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"near": {**NEAR, "folder": "/local/data"}}, None),
        ({"cache": {"resident_fraction_before": 1.0}}, Reason.CACHED_ALREADY),
        ({"near": {**NEAR, "places": []}}, None),
        ({"near": {**NEAR, "places": [SMALL]}}, None),
        ({"files_nbytes": None}, None),
        ({"files_nbytes": 200 * GB}, Reason.TOO_LARGE),
        ({"near": {**NEAR, "folder": None}}, None),
        ({"near": None}, None),
    ],
)
def test_it_is_not_proposed(config, reason) -> None:
    advice = advised(run_of([100.0] * 60, **config))
    assert staging(advice) is None
    assert why_not(advice) is reason
