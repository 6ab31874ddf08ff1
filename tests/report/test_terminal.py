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


def test_unknown_is_never_zero(unknown: RunReport, show: Show) -> None:
    text = unwrapped(show(unknown))
    assert text.count("unknown") >= 6
    assert "unknown samples/s" in text
    assert "overhead: unknown" in text


def test_without_a_batch_there_are_no_tables_of_zeros(make: Make, show: Show) -> None:
    report = make()
    whole = replace(report.exposure.whole, wall_ns=0, wait_ns=0, n_batches=0, stages=(), wait=None)
    empty = replace(report.exposure, whole=whole, steady=None)
    text = show(replace(report, exposure=empty, diagnosis=diagnose(empty)))
    assert "Stages" not in text
    assert "Wait per step" not in text


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
