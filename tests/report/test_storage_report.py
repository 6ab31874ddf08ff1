"""Storage, on the terminal: coverage first, unknown as unknown; paths cut from the front."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from iobench.analysis.storage_reads import StageStorage
from iobench.findings.storage import ByteRow, StorageFigures, storage_of, storage_section
from iobench.report.document import Sentence, Table
from iobench.report.renderers.quantities import spelled
from iobench.storage.storage_trace import StorageTrace

WHOLE = ByteRow("run", 81_920_000, 41_925_120, 44_940_000, 397_312, ("compression", "page cache"))
FILE = ByteRow("/data/a.npy", 2_048_000)
FIGURES = StorageFigures(
    bytes=(WHOLE, *(replace(FILE, name=f"/data/{number}.npy") for number in range(100))),
    in_stages={
        "read": StageStorage(56_900_000, 26_900_000),
        "fused:read+decode": StageStorage(9_000_000, None),
    },
    notes=("Darshan: logs of 2 of 2 processes.", "notes.txt: is no Darshan log"),
)


def test_what_was_not_counted_is_unknown_or_has_no_column() -> None:
    section = storage_section(FIGURES)
    assert section is not None
    (stages,) = (spelled(each) for each in section.blocks if isinstance(each, Table))
    assert stages.rows[1][2:] == ("unknown",)
    section = storage_section(StorageFigures(bytes=(FILE,)))
    assert section is not None
    (only,) = section.blocks
    assert only == Sentence("Bytes read: requested 2.05 MB, read calls unknown, device unknown.")


def test_of_one_of_many_ranks_logs_are_not_evaluated() -> None:
    rank: Any = SimpleNamespace(is_one_of_many=True, trace=StorageTrace(), placement=None)
    figures = storage_of(rank)
    assert figures is not None
    assert figures == StorageFigures(notes=figures.notes)
    rank.trace = None
    assert storage_of(rank) is None
