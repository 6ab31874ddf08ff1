"""Runs of several frameworks as MAELSTROM D2.3 tells of them, with its own rows beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.report.comparison_section import published_section
from iobench.report.document import Table
from iobench.report.renderers.quantities import spelled
from iobench.runs.reading import open_profile
from iobench.testing import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.runs.contents import RunData

MS = 1_000_000
PUBLISHED = {"D2.3 PyTorch": {"batch": [0.1, 0.2, 0.15, 3.0, 0.5]}}


def make_run(
    path: Path, framework: str, *, scale: int = 1, rounds: int = 2, **config: Any
) -> RunData:
    """Write a run of two rounds of three batches: 10 ms wait, 20 forward and 30 backward."""
    document = {
        "framework": framework,
        "label": framework,
        "n_samples": 6,
        "batch_size": 2,
        "published": {"tables": PUBLISHED},
        **config,
    }
    run = SketchedRun(document)
    for number in range(rounds):
        at = begun = number * 1000 * MS
        for place in range(3):
            batch = 3 * number + place
            ends = [at + each * MS * scale for each in (10, 30, 60)]
            run.wait(batch, at, ends[0], epoch=number)
            run.add(CONSUMER, Kind.FORWARD, ends[0], ends[1], batch=batch, epoch=number)
            run.add(CONSUMER, Kind.BACKWARD, ends[1], ends[2], batch=batch, epoch=number)
            at = ends[2]
        run.add(CONSUMER, Kind.WAIT, at, at + MS, epoch=number, label="shutdown")
        run.round(begun, at + MS, number)
    run.write(path)
    return open_profile(path)


def test_runs_stand_together_with_what_was_published(tmp_path: Path) -> None:
    made = [
        make_run(tmp_path / "torch", "torch"),
        make_run(tmp_path / "tensorflow", "tensorflow", scale=2),
    ]
    section = published_section([*map(Run, made)])
    assert section is not None
    (table,) = (each for each in section.blocks if isinstance(each, Table))
    rows = {row[0]: row[1:] for row in spelled(table).rows}
    assert rows["batch, torch"] == ("0.06000",) * 4 + ("0.00000", "6")
    assert rows["batch, tensorflow"] == ("0.12000",) * 4 + ("0.00000", "6")
    assert rows["batch, D2.3 PyTorch"] == (
        "0.10000", "0.20000", "0.15000", "3.00000", "0.50000", "",
    )  # fmt: skip
    names = dict.fromkeys(name.partition(",")[0] for name in rows)
    assert [*names] == ["epoch", "batch", "forward", "backward", "I/O"]
    one = [make_run(tmp_path / name, "torch") for name in ("a", "b")]
    assert published_section([*map(Run, one)]) is None
