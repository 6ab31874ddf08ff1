"""Parts of the page that only some runs have: what a tracer saw of storage, and energy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from page_runs import PageParts, render_page, values_of, wrong_figures

sys.path.append(str(Path(__file__).parents[2] / "analysis" / "support"))

from traced_runs import TracedRun

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.machine_head import EnergySource, MachineHead, UnreadableEnergy
from iobench.runs.machine_samples import EnergySeries, MachineSamples

MS = 1_000_000


def traced_run() -> TracedRun:
    """Two workers that read a file for each of 20 batches, of which a tracer saw every read."""
    run = TracedRun(config={"n_samples": 20, "format": "source"})
    workers = [run.worker(), run.worker()]
    for batch in range(20):
        worker, at = workers[batch % 2], 10.0 * batch
        file = f"/data/<b>{batch}</b>.bin"
        worker.span(Kind.READ, at, at + 4, batch=batch, detail=file, nbytes=1000)
        worker.read(file, at + 1, at + 3, 0, 1000)
        run.wait(batch, at + 2, at + 6)
    return run


def test_what_a_tracer_saw_is_shown(tmp_path: Path) -> None:
    run = traced_run()
    profile = run.data()
    page = PageParts(render_page([Run(profile, run.trace())]))
    assert wrong_figures(page.figures) == []
    assert "Storage" in page.texts["h2"]
    storage = page.document["runs"][0]["storage"]
    assert storage["in_stages"]["read"]["busy_ns"] in values_of(page, "ns")


def test_joules_are_shown_and_what_is_not_readable_is_never_zero() -> None:
    profile = traced_run().data()
    source = EnergySource("gpu:0", "gpu", "NVIDIA A100")
    series = EnergySeries(source, np.array([0, 400 * MS]), np.array([0.0, 40.0]), n_resets=0)
    host = profile.processes[0]
    none = np.zeros(0, dtype=np.int64)
    unreadable = (UnreadableEnergy("cpu", "permission denied"),)
    head = MachineHead(host.host, host.boot_id, sources=(source,), unreadable=unreadable)
    machine = MachineSamples(head, none, none.reshape(0, 0), {}, (series,))
    page = PageParts(render_page([Run(replace(profile, machines=(machine,)))]))
    assert wrong_figures(page.figures) == []
    assert "Energy" in page.texts["h2"]
    (total,) = {each["total_j"] for each in page.document["runs"][0]["energy"]["kinds"].values()}
    assert total in values_of(page, "J")
    assert "CPUs: permission denied" in page.words
    assert "Energy" not in PageParts(render_page([Run(profile)])).texts["h2"]
