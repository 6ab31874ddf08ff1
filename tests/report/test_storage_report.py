"""Storage, on the terminal and as JSON: coverage first, unknown as unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from iobench.analysis.placement.placed_calls import OtherLogs, TraceCoverage
from iobench.findings.storage.byte_rows import ByteDifference, ByteRow
from iobench.findings.storage.figures import LogClock, StorageFigures, TracedStorage, storage_of
from iobench.findings.storage.read_sizes import AccessFigures
from iobench.findings.storage.section import storage_section
from iobench.findings.storage.stage_storage import StageStorage
from iobench.report.document import Table
from iobench.report.json_report import reports_to_json
from iobench.report.renderers.quantities import SpelledTable, spelled
from iobench.report.wrapping import short_path
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

Show = Callable[..., str]
CLOCK = LogClock(
    process="worker-0",
    log="logs/0_python_id7-8_1.darshan",
    offset_ns=-1_283_000,
    low_ns=-1_285_000,
    high_ns=-1_281_000,
)
REFUSED = "notes.txt: is no Darshan log"
COVERAGE = TraceCoverage(
    n_expected=2,
    n_found=2,
    missing=(),
    partial=(),
    n_files_read=40,
    n_files_seen=40,
    n_segments=80,
    n_placed=80,
    n_stray=0,
    stray_nbytes=0,
    problems=(),
)
ACCESS = AccessFigures(
    n_reads=80,
    of_segments=True,
    size_edges=(65_536, 4_194_304),
    size_counts=(40, 40, 0),
    size_nbytes=(0, 81_925_120, 0),
    consecutive_fraction=1.0,
    sequential_fraction=0.0,
    random_fraction=0.0,
    small_read_fraction=0.5,
    reread_factor=1.0,
    read_per_used=1.00006,
    bytes_per_s={"worker-0": 2.2e9},
    top_fraction=0.03,
    top_exposed_fraction=0.61,
)
TRACED = TracedStorage(COVERAGE, (REFUSED,), (CLOCK,))
FIGURES = StorageFigures(
    traced=TRACED,
    rows=(
        ByteRow(
            "run",
            "run",
            requested=81_920_000,
            darshan=41_925_120,
            read_calls=44_940_000,
            device=397_312,
            differences=(
                ByteDifference(-39_994_880, ("darshan", "requested"), "compression"),
                ByteDifference(3_014_880, ("read_calls", "darshan"), ""),
                ByteDifference(-44_542_688, ("device", "read_calls"), "page cache"),
            ),
        ),
        ByteRow("file", "/data/a.npy", 2_048_000, None, None, None, ()),
    ),
    stages=(
        StageStorage("read", 56_900_000, 26_900_000, False, None, 81_920_000, "mixed"),
        StageStorage("fused", 9_000_000, 3_000_000, True, 4_000_000, None, "unknown"),
    ),
    access=ACCESS,
)


def with_storage(report: RunReport, figures: StorageFigures | None) -> RunReport:
    return replace(report, figures={"storage": figures})


@pytest.fixture
def traced(bound: RunReport) -> RunReport:
    """A run whose storage a tracer saw."""
    return with_storage(bound, FIGURES)


def tables_of(figures: StorageFigures) -> list[tuple[Table, SpelledTable]]:
    """Return the tables of bytes and of stages, as values and as text."""
    section = storage_section(figures)
    assert section is not None
    return [(each, spelled(each)) for each in section.blocks if isinstance(each, Table)]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def storage_part(text: str) -> str:
    return text[text.index("Storage") : text.index("Machine and configuration")]


def test_how_much_was_seen_comes_before_any_figure(traced: RunReport, show: Show) -> None:
    part = storage_part(show(traced))
    assert part.splitlines()[1].startswith(
        "Darshan: logs of 2 of 2 processes; 40 of 40 files seen;"
    )
    assert part.index("80 of 80") < part.index("Bytes read")
    assert "notes.txt: is no Darshan log" in part
    assert "Clocks aligned by markers: worker-0 -1.28 ms (within 2.00 us)." in unwrapped(part)
    assert "do not cover everything" not in part


def test_what_is_missing_is_named_with_the_cure(traced: RunReport, show: Show) -> None:
    coverage = replace(
        COVERAGE,
        n_found=1,
        missing=("worker-1 (process 9)",),
        partial=("worker-0 (process 8): POSIX, DXT_POSIX",),
        n_stray=16,
        stray_nbytes=182,
        problems=("DXT_POSIX of version 2: install a newer PyDarshan", REFUSED),
        others=OtherLogs(3, 40, 81_925_120, 0),
    )
    assert not coverage.complete
    told = replace(TRACED, coverage=coverage, clocks=())
    text = unwrapped(storage_part(show(with_storage(traced, replace(FIGURES, traced=told)))))
    for words in (
        "logs of 1 of 2 processes",
        "These logs do not cover everything that was read.",
        "No log of: worker-1 (process 9).",
        "Incomplete because the tracer ran out of memory: worker-0 (process 8): POSIX, DXT_POSIX.",
        "16 stray segments (182 B in total)",
        "Totals of logs without a marker of this run, which are placed in no stage: 3 logs, "
        "40 files, 81.9 MB read by POSIX calls and 0 by STDIO.",
        "DXT_POSIX of version 2: install a newer PyDarshan",
        "notes.txt: is no Darshan log",
    ):
        assert text.count(words) == 1, words


def test_logs_of_which_no_figures_are_made_are_not_passed_over(
    bound: RunReport, show: Show
) -> None:
    untold = StorageFigures(untold=("Logs of 1 processes, not evaluated: so many.", REFUSED))
    text = unwrapped(show(with_storage(bound, untold)))
    assert f"Storage {' '.join(untold.untold)}" in text
    assert "Storage" not in show(with_storage(bound, None))


def test_of_one_of_many_ranks_logs_are_counted_alone() -> None:
    rank: Any = SimpleNamespace(is_one_of_many=True, trace=StorageTrace(refused=(REFUSED,)))
    figures = storage_of(rank)
    assert figures is not None
    assert figures.untold[0].startswith(
        "Logs of 0 processes, not evaluated: not evaluated for jobs with so many"
    )
    assert figures.untold[1:] == (REFUSED,)
    rank.trace = None
    assert storage_of(rank) is None


def test_differences_are_said_with_their_reason(traced: RunReport, show: Show) -> None:
    text = unwrapped(storage_part(show(traced)))
    for words in (
        "Darshan counted 40.0 MB less than the stages requested: compression.",
        "Read calls returned 3.01 MB more than Darshan counted.",
        "The device delivered 44.5 MB less than read calls returned: page cache.",
    ):
        assert words in text
    little = replace(
        FIGURES.rows[0], differences=(ByteDifference(5_000, ("read_calls", "darshan"), ""),)
    )
    text = show(with_storage(traced, replace(FIGURES, rows=(little,))))
    assert "Read calls returned" not in text


def test_unknown_bytes_are_unknown_and_without_a_tracer_have_no_columns(bound: RunReport) -> None:
    _, text = tables_of(FIGURES)[0]
    assert text.names == ("", "requested", "Darshan", "read calls", "device")
    assert text.rows[1][2:] == ("unknown",) * 3
    _, text = tables_of(replace(FIGURES, traced=None))[0]
    assert text.names == ("", "requested", "read calls", "device")


def test_stages_reads_and_sizes(traced: RunReport, show: Show) -> None:
    part = storage_part(show(traced))
    assert "<=6.000" in part
    assert "3.0 % of the reads caused 61 % of the wait for reads." in part
    assert "< 64 KiB" in part
    assert "< 4 MiB" in part
    assert max(map(len, part.splitlines())) <= 80


def test_without_a_tracer_nobody_says_what_of_a_stage_was_storage(bound: RunReport) -> None:
    untold = tuple(replace(row, storage_ns=None) for row in FIGURES.stages)
    _, text = tables_of(replace(FIGURES, stages=untold))[1]
    assert text.names == ("stage", "busy", "off-CPU", "output", "bytes are")
    assert len(tables_of(FIGURES)[1][1].names) == 7


def test_many_processes_and_files_are_cut_and_said_to_be(bound: RunReport) -> None:
    rows = [replace(FIGURES.rows[1], name=f"/data/{number}.npy") for number in range(100)]
    table, text = tables_of(replace(FIGURES, rows=(FIGURES.rows[0], *rows)))[0]
    assert len(text.rows) == 9
    assert table.title == "Bytes read, by counter: 8 of 100 files"


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


def test_json_holds_every_figure(traced: RunReport) -> None:
    document: dict[str, Any] = reports_to_json([traced])["runs"][0]["storage"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["traced"]["complete"] is True
    assert document["traced"]["notes"] == ["notes.txt: is no Darshan log"]
    assert [clock["process"] for clock in document["traced"]["clocks"]] == ["worker-0"]
    assert [each["reason"] for each in document["bytes"][0]["differences"]] == [
        "compression", None, "page cache",
    ]  # fmt: skip
    assert document["bytes"][1]["darshan_nbytes"] is None
    assert document["stages"][0]["storage_s"] == 0.0269
    assert document["access"]["bytes_per_s"] == {"worker-0": 2.2e9}
