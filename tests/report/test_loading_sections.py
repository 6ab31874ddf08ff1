"""What sections on loading say of runs sketched span by span."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.report.document import NOT_APPLICABLE, Document, KeyFigures, Table
from iobench.report.one_screen import one_screen
from iobench.report.report_document import report_document
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.run import Run

MS = 1_000_000
SCRIPT = {"kind": "script", "command": "python train.py"}
STORE = {"dataset": "own", "format": "numpy", "workers": 0, "batch_size": 2}


def serial(config: dict[str, object], read_ms: int = 4, step_ms: int = 6, **more: Kind) -> Run:
    """Return a run whose batches of two samples are read in the loop."""
    run = SketchedRun(config)
    for batch in range(40):
        now = batch * (read_ms + step_ms) * MS
        end = now + read_ms * MS
        run.add(CONSUMER, Kind.READ, now, end, batch=batch, nbytes=10**6)
        for kind in more.values():
            run.add(CONSUMER, kind, end, end + MS, batch=batch)
        run.wait(batch, now, end, "consumer")
    run.shutdown(end + step_ms * MS, end + step_ms * MS)
    return run.open()


def table(document: Document) -> dict[str, tuple[object, ...]]:
    (section,) = (each for each in document.sections if each.key == "stages")
    (found,) = (each for each in section.blocks if isinstance(each, Table))
    return {str(row[0]): row[1:] for row in found.rows}


@pytest.mark.parametrize("why", ["no Python that keeps $PYTHONPATH", "OSError: a: b.py: gone"])
def test_a_command_that_was_not_recorded_has_no_other_verdict(why: str) -> None:
    run = SketchedRun(SCRIPT)
    run.facts = {"role": "launcher", "unseen": [f"python a: b.py: {why}"], "unrecorded": why}
    document = report_document([run.open()])
    run = document.figures()["runs"][0]
    assert run["verdict"] == f"No verdict: not recorded, because {why}."
    assert run["diagnosis"]["verdict"] == "not recorded"


def test_ranks_that_are_missing_are_counted_once(tmp_path: Path) -> None:
    run = SketchedRun({**SCRIPT, "world_size": 4})
    run.processes[CONSUMER] = {"rank": 1}
    run.facts = {"world_size": 4}
    for batch in range(10):
        run.wait(batch, 10 * batch * MS, (10 * batch + 4) * MS, "consumer")
    text = one_screen(report_document([run.write(tmp_path / "run")]), "iobench report run")
    assert text.count("3 of 4 ranks (0, 2 to 3): never started.") == 1


def test_what_recorded_without_a_loader_was_recorded() -> None:
    run = SketchedRun(SCRIPT)
    run.facts = {"unseen": ["python t.py: reads of h5py: another release"]}
    (found,) = report_document([run.open()]).figures()["runs"]
    assert found["diagnosis"]["verdict"] == "no consumer"


@pytest.mark.parametrize(
    ("config", "more", "absent"),
    [
        (
            STORE,
            {},
            ["decode (done at conversion)", "preprocess (done at conversion)",
             "copies to device (no accelerator)"],
        ),
        (
            STORE | {"format": "source"},
            {},
            ["decode (none recorded)", "preprocess (none recorded)",
             "copies to device (no accelerator)"],
        ),
        (SCRIPT, {"copy": Kind.H2D}, ["decode (none recorded)", "preprocess (none recorded)",
             "copies to device (in the loop's computing)"]),
    ],
)  # fmt: skip
def test_stages_of_every_pipeline_are_there_and_say_why_they_take_no_time(
    config: dict[str, object], more: dict[str, Kind], absent: list[str]
) -> None:
    document = report_document([serial(config, **more)])
    assert [name for name in table(document) if " (" in name] == absent
    (figures,) = (each for each in document.sections[0].blocks if isinstance(each, KeyFigures))
    name = "Accelerator utilisation" if more else "Training loop busy"
    assert name in [each.name for each in figures.figures]


def test_a_stage_of_several_holds_those_that_it_names() -> None:
    run = SketchedRun({**STORE, "format": "source"})
    for batch, now in enumerate(range(0, 400 * MS, 10 * MS)):
        run.add(CONSUMER, Kind.FUSED, now, now + 4 * MS, label="read+decode", batch=batch)
        run.wait(batch, now, now + 4 * MS, "consumer")
    names = [name for name in table(report_document([run.open()])) if " (" in name]
    assert names == [
        "making samples (read+decode)",
        "read (not separable from making samples)",
        "decode (not separable from making samples)",
        "preprocess (none recorded)",
        "copies to device (no accelerator)",
    ]


@pytest.mark.parametrize(("nbytes", "is_rate"), [(4 * 10**9, True), (4 * 10**9 + 1, False)])
def test_less_than_a_microsecond_per_megabyte_is_no_rate(nbytes: int, *, is_rate: bool) -> None:
    run = SketchedRun(STORE)
    for batch, now in enumerate(range(0, 400 * MS, 10 * MS)):
        run.add(CONSUMER, Kind.READ, now, now + 4 * MS, batch=batch, nbytes=nbytes)
        run.wait(batch, now, now + 4 * MS, "consumer")
    assert (table(report_document([run.open()]))["read"][-1] != NOT_APPLICABLE) is is_rate


def test_without_a_step_the_rate_of_loading_is_said_first() -> None:
    none = {"compute": {"forward_ns": 0, "backward_ns": 0}}
    (found,) = report_document([serial(STORE | none, read_ms=10, step_ms=0)]).figures()["runs"]
    assert found["verdict"].startswith(
        "Loads 200 samples/s, 5.00 ms each. The largest stage is read (100 % of the work of "
    )


def test_a_script_begins_with_verdict_gain_and_timeline(tmp_path: Path) -> None:
    run = SketchedRun(SCRIPT)
    run.facts = {"started_ns": 0, "ended_ns": 500 * MS}
    for batch, now in enumerate(range(0, 400 * MS, 10 * MS)):
        run.add(CONSUMER, Kind.READ, now, now + 4 * MS, batch=batch)
        run.wait(batch, now, now + 4 * MS, "consumer")
    keys = [each.key for each in report_document([run.write(tmp_path / "run")]).sections]
    assert keys[0] == "verdict"
    assert keys.index("next") < keys.index("timeline") < keys.index("job_time")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["OpenedStore", "OpenedStore"], "done at conversion"),
        (["OpenedStore", "Fields"], "none recorded"),
    ],
)
def test_loaders_of_stores_alone_decode_nothing(names: list[str], why: str) -> None:
    run = SketchedRun(SCRIPT)
    run.loaders = [LoaderFacts(n, "torch", "DataLoader", name) for n, name in enumerate(names)]
    for batch, now in enumerate(range(0, 400 * MS, 10 * MS)):
        run.add(CONSUMER, Kind.READ, now, now + 4 * MS, batch=batch)
        run.wait(batch, now, now + 4 * MS, "consumer", sample=batch // 20)
    for n in (0, 1):
        span = {"label": "round", "sample": n, "detail": f"loader-{n}"}
        run.add(CONSUMER, Kind.OTHER, n * 200 * MS, (n + 1) * 200 * MS, **span)
    assert f"decode ({why})" in table(report_document([run.open()]))
