"""What ``iobench report`` writes in one go: analysed once, refused before anything is read."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.profiles.reading import open_profiles
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

MS = 1_000_000


def write_run(path: Path, ranks: int = 1) -> Path:
    """Write a few batches of each training process, read in its loop."""
    config = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1}
    directory = RunDirectory.create(path, {**config, "framework": "workers", "world_size": ranks})
    for rank in range(ranks):
        recorder = directory.recorder(role="consumer", rank=rank, clock=FakeClock(1000))
        maker = recorder.string("consumer")
        for batch in range(8):
            begin = 10 * MS * batch
            recorder.emit(Kind.READ, begin, begin + 4 * MS, nbytes=9, batch=batch, epoch=0)
            recorder.emit(Kind.WAIT, begin, begin + 6 * MS, nbytes=9, batch=batch, detail=maker)
        recorder.emit(Kind.WAIT, 80 * MS, 81 * MS, label=recorder.string("shutdown"))
        recorder.emit(Kind.OTHER, 0, 81 * MS, sample=0, label=recorder.string("round"))
        recorder.close()
    return directory.path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is opened and analysed."""
    found: Counter[str] = Counter()

    def count(place: str) -> None:
        module, _, name = place.rpartition(".")
        __import__(module)
        made = getattr(sys.modules[module], name)

        def counted(*arguments: Any, **named: Any) -> Any:
            found[name] += 1
            return made(*arguments, **named)

        monkeypatch.setattr(sys.modules[module], name, counted)

    count("iobench.analysis.windows._analysed")
    count("iobench.profiles.reading.make_profile")
    count("iobench.report.run_report._report")
    count("iobench.storage.traces.of_run.read_run_traces")
    return found


def test_a_run_is_opened_once_and_analysed_once_for_each_file(
    tmp_path: Path, calls: Counter[str]
) -> None:
    pytest.importorskip("pyarrow", reason="makes tables")
    run = write_run(tmp_path / "run")
    names = {"html": "run.html", "trace": "run.json", "parquet": "run.parquet"}
    told = [each for key, name in names.items() for each in (f"--{key}", str(tmp_path / name))]
    assert main(["report", str(run), *told]) == 0
    assert calls == {"_analysed": 4, "make_profile": 1, "_report": 1, "read_run_traces": 1}
    from iobench.report.renderers.html_page import HtmlRenderer
    from iobench.report.report_document import report_document
    from iobench.report.timeline.trace_file import write_trace

    page = HtmlRenderer().render(report_document(open_profiles(run)))
    assert (tmp_path / "run.html").read_text() == page
    write_trace(tmp_path / "again.json", open_profiles(run))
    assert (tmp_path / "run.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert (tmp_path / "run.parquet").stat().st_size


def test_the_ranks_of_a_job_are_reported_once_and_kept_one_at_a_time(
    tmp_path: Path, calls: Counter[str]
) -> None:
    run = write_run(tmp_path / "run", ranks=3)
    assert main(["report", str(run), "--html", str(tmp_path / "run.html")]) == 0
    # Of each rank once for the report, and once for what the page draws of it.
    assert (calls["_report"], calls["_analysed"], calls["make_profile"]) == (3, 6, 6)


@pytest.mark.parametrize(
    ("option", "library", "installed"),
    [
        ("--html", "jinja2", "jinja2>=3.1"),
        ("--parquet", "pyarrow.parquet", "iobench[parquet]"),
        ("--lanes", "matplotlib.figure", "iobench[darshan]"),
    ],
)
def test_without_a_library_nothing_is_read_or_printed(
    option: str,
    library: str,
    installed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    target = tmp_path / "made.svg"
    assert main(["report", str(tmp_path / "no such run"), option, str(target)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip().endswith(f"pip install '{installed}'")
    assert not target.exists()
