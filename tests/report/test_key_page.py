"""The page of keys: what JSON of runs has is explained there, all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from page_runs import write_job, write_run
from scripts import Script
from traced_runs import TracedRun

from iobench.analysis.run import Run, open_runs
from iobench.recording.energy_counters import EnergySource, UnreadableEnergy
from iobench.recording.energy_file import EnergySeries, HostEnergy
from iobench.recording.kinds import Kind
from iobench.report.json_report import to_json
from iobench.report.key_page import explained_keys, key_page

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    RunIobench = Callable[..., subprocess.CompletedProcess[str]]

MS = 1_000_000
KNOWN = {each.path.replace("[]", ""): each.text for each in explained_keys()}


def profiled(folder: Path) -> dict[str, Any]:
    return to_json(open_runs(write_run(folder / "grib")))


def job(folder: Path) -> dict[str, Any]:
    return to_json(open_runs(write_job(folder / "job")))


def script(folder: Path) -> dict[str, Any]:
    found = Script()
    for _ in range(3):
        loader = found.loader()
        for _ in range(8):
            loader.next()
            found.compute(20)
        loader.end()
    return to_json([Run(found.profile())])


def traced(folder: Path) -> dict[str, Any]:
    """Return a run of two workers whose reads a tracer saw, and whose GPU counted its energy."""
    run = TracedRun(config={"n_samples": 20, "format": "source"})
    workers = [run.worker(), run.worker()]
    for batch in range(20):
        worker, at, file = workers[batch % 2], 10.0 * batch, f"/data/{batch}.bin"
        worker.span(Kind.READ, at, at + 4, batch=batch, detail=file, nbytes=1000)
        worker.read(file, at + 1, at + 3, 0, 1000)
        run.wait(batch, at + 2, at + 6)
    profile = run.profile()
    source = EnergySource("gpu:0", "gpu", "NVIDIA A100", "NVML", 100 * MS, None, False)
    counted = EnergySeries(source, np.array([0, 400 * MS]), np.array([0, 40_000_000]), 0, 0)
    here, refused = profile.processes[0], (UnreadableEnergy("cpu", "permission denied"),)
    energy = HostEnergy(here.host, here.boot_id, 100 * MS, (counted,), refused, 21, 9, 21, 0, True)
    return to_json([Run(replace(profile, energy=(energy,)), run.trace())])


RECORDED = {"profile": profiled, "job": job, "script": script, "traced": traced}


def unexplained(value: Any, path: str) -> Iterator[str]:
    """Yield the keys below a path that the page does not have."""
    if isinstance(value, list):
        for each in value:
            yield from unexplained(each, path)
    if not isinstance(value, dict) or (f"{path}.*" in KNOWN and not has_keys(f"{path}.*")):
        return
    for name, each in value.items():
        place = f"{path}.*" if f"{path}.*" in KNOWN else f"{path}.{name}"
        if place not in KNOWN and f"{place}.*" not in KNOWN:
            yield place
        else:
            yield from unexplained(each, place)


def has_keys(path: str) -> bool:
    return any(known.startswith(f"{path}.") for known in KNOWN)


@pytest.mark.parametrize("name", RECORDED)
def test_every_key_of_a_recorded_run_is_explained(name: str, tmp_path: Path) -> None:
    document = RECORDED[name](tmp_path)
    for run in document["runs"]:
        assert set(unexplained(run, "runs")) == set()
    assert set(unexplained(document["job"], "job")) == set()


def test_every_explanation_says_something() -> None:
    assert [path for path, text in KNOWN.items() if not text] == []


@pytest.mark.thorough
def test_a_command_prints_the_page(
    iobench: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    told = iobench("report", "--keys")
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"{key_page()}\n"
    assert "wait_s, wait_ns: Time the training loop was blocked" in told.stdout
