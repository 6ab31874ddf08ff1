"""Storage, on the terminal and as JSON: coverage first, unknown as unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from iobench.analysis.storage_reads import StageStorage
from iobench.findings.storage import ByteRow, StorageFigures, storage_of, storage_section
from iobench.report.document import Table
from iobench.report.json_report import reports_to_json
from iobench.report.renderers.quantities import spelled
from iobench.report.wrapping import short_path
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.report.renderers.quantities import SpelledTable
    from iobench.report.run_report import RunReport

WHOLE = ByteRow("run", 81_920_000, 41_925_120, 44_940_000, 397_312, ("compression", "page cache"))
FILE = ByteRow("/data/a.npy", 2_048_000)
FIGURES = StorageFigures(
    bytes=(WHOLE, FILE),
    stages=(
        StageStorage("read", 56_900_000, 26_900_000, "mixed"),
        StageStorage("fused:read+decode", 9_000_000, None, "unknown"),
    ),
    read_sizes={"< 64 KiB": 40, "< 4 MiB": 40},
    sequential_fraction=0.5,
    notes=("Darshan: logs of 2 of 2 processes.", "notes.txt: is no Darshan log"),
)


def tables_of(figures: StorageFigures) -> list[SpelledTable]:
    section = storage_section(figures)
    assert section is not None
    return [spelled(each) for each in section.blocks if isinstance(each, Table)]


def test_what_is_known_comes_before_any_figure(bound: RunReport, show: Callable[..., str]) -> None:
    text = show(replace(bound, figures={"storage": FIGURES}))
    part = text[text.index("Storage") : text.index("Machine and configuration")]
    assert part.splitlines()[1] == FIGURES.notes[0]
    assert max(map(len, part.splitlines())) <= 80
    words = " ".join(part.split())
    for said in (
        "Darshan counted 40.0 MB less than the stages requested: compression.",
        "Read calls returned 3.01 MB more than Darshan counted.",
        "The device delivered 44.5 MB less than read calls returned: page cache.",
        "50 % of the reads continue forward in their file.",
        "< 64 KiB 40",
    ):
        assert said in words
    assert "Storage" not in show(replace(bound, figures={"storage": None}))


def test_what_nobody_counted_is_unknown_or_has_no_column() -> None:
    counted, stages, _ = tables_of(FIGURES)
    assert counted.names == ("", "requested", "Darshan", "read calls", "device")
    assert counted.rows[1][2:] == ("unknown",) * 3
    assert stages.names == ("stage", "busy", "storage", "bytes are")
    untraced = StorageFigures(
        bytes=(replace(WHOLE, darshan_nbytes=None), FILE), stages=FIGURES.stages[1:]
    )
    counted, stages = tables_of(untraced)
    assert counted.names == ("", "requested", "read calls", "device")
    assert stages.names == ("stage", "busy", "bytes are")


def test_many_files_are_cut_and_said_to_be() -> None:
    files = tuple(replace(FILE, name=f"/data/{number}.npy") for number in range(100))
    section = storage_section(replace(FIGURES, bytes=(WHOLE, *files)))
    assert section is not None
    table = next(each for each in section.blocks if isinstance(each, Table))
    assert (len(table.rows), table.title) == (9, "Bytes read, by counter: 8 of 100 files")


def test_of_one_of_many_ranks_logs_are_counted_alone() -> None:
    trace = StorageTrace(notes=("notes.txt: is no Darshan log",))
    rank: Any = SimpleNamespace(is_one_of_many=True, trace=trace)
    assert storage_of(rank) == StorageFigures(
        notes=("Logs of 0 processes, not evaluated for this run.", *trace.notes)
    )
    rank.trace = None
    assert storage_of(rank) is None


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/data/a.npy", "/data/a.npy"),
        ("/data/project/a-long-nam/s_0001.npy", ".../a-long-nam/s_0001.npy"),
        ("/data/" + "x" * 60, "..." + "x" * 23),
        ("/data/" + "x" * 30, "..." + "x" * 23),
        ("", ""),
        ("/data/a\n\x1b\udcff.npy", r"/data/a\n\x1b\udcff.npy"),
    ],
)
def test_paths_are_cut_from_the_front(path: str, short: str) -> None:
    assert short_path(path) == short


def test_json_holds_every_figure(bound: RunReport) -> None:
    report = replace(bound, figures={"storage": FIGURES})
    document: dict[str, Any] = reports_to_json([report])["runs"][0]["storage"]
    assert document["notes"] == list(FIGURES.notes)
    assert document["bytes"][0]["reasons"] == ["compression", "page cache"]
    assert document["bytes"][1]["darshan_nbytes"] is None
    assert document["stages"][0]["storage_ns"] == 26_900_000
    assert document["read_sizes"] == {"< 64 KiB": 40, "< 4 MiB": 40}
