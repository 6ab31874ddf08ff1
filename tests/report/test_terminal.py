"""The report on the terminal: its key statements word for word, and what it must never print."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnose
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

Show = Callable[..., str]
Make = Callable[..., "RunReport"]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_frameworks_own_published_row_stands_beside_its_wait(make: Make, show: Show) -> None:
    of_torch = [0.02158, 0.10881, 0.10577, 6.02123, 0.22815]
    published = {
        "exposed_io_s": of_torch,
        "source": "MAELSTROM D2.3, table 4",
        "tables": {
            "D2.3 table 4, PyTorch": {"I/O": of_torch},
            "D2.3 table 5, TensorFlow": {"I/O": [0.00043, 0.03479, 0.00089, 28.64989, 0.69822]},
        },
    }
    text = show(make(framework="tensorflow", published=published))
    assert re.search(r"^  published +0\.43 +34\.79 +0\.89 +28,649\.89 +698\.22 *$", text, re.M)
    assert "from D2.3 table 5, TensorFlow." in text
    for framework in ("torch", "native"):
        text = show(make(framework=framework, published=published))
        assert re.search(r"^  published +21\.58 +108\.81 ", text, re.M), framework
        assert "from MAELSTROM D2.3, table 4" in text


def test_unknown_is_never_zero(unknown: RunReport, show: Show) -> None:
    text = unwrapped(show(unknown))
    assert "unnamed dataset as unknown: loader unknown" in text
    assert "Throughput: unknown samples/s delivered, unknown (whole run, 2 batches)." in text
    assert "iobench's own overhead: unknown. Lost spans" in text
    assert (
        "unknown of the files were in it beforehand; how much came from the device is unknown"
    ) in text


def test_without_a_batch_there_are_no_tables_of_zeros(make: Make, show: Show) -> None:
    report = make()
    whole = replace(report.exposure.whole, wall_ns=0, wait_ns=0, n_batches=0, stages=(), wait=None)
    empty = replace(report.exposure, whole=whole, steady=None)
    text = show(replace(report, exposure=empty, diagnosis=diagnose(empty)))
    assert "Exposed I/O: unknown, because no batch was delivered." in text
    assert "Stages" not in text
    assert "Wait per step" not in text
    assert "Missing workers: none." in text


@pytest.mark.parametrize("columns", ["20", "80", "120", "300"])
def test_no_line_is_too_long_and_no_figure_is_cut(
    bound: RunReport, hidden: RunReport, show: Show, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = show(bound, hidden)
    width = min(max(int(columns), 80), 110)
    assert all(len(line) <= width for line in text.splitlines() if "iobench profile" not in line)
    assert "404 MB/s" in text
    assert not re.search(r"(\d|<|>)\n *(ms|us|s|%|[kMGT]?B)\b", text)
    assert "…" not in text


def test_plain_ascii(make: Make) -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    document = report_document([], reports=[make(dataset="Wetter-Gr\u00f6\u00dfen")])
    text = TerminalRenderer(file).render(document)
    assert text.isascii()
    assert text.startswith("Wetter-Gr\\xf6\\xdfen as source")
