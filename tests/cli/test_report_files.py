"""What ``iobench report`` writes in one go: analysed once, refused before anything is read."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis.run import open_runs
from iobench.cli import main
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


COUNTED = (
    "iobench.analysis.loop.find_loop",
    "iobench.analysis.deliveries.find_deliveries",
    "iobench.analysis.attribution.attribute",
    "iobench.runs.reading.make_profile",
    "iobench.report.run_report._report",
    "iobench.storage.darshan_reader.read_run_traces",
)


class Tracking:
    """A server of experiments that takes everything."""

    def __init__(self, *_: Any) -> None:
        pass

    def log(self, contents: Any, title: str, files: Sequence[Path], *, several: bool) -> str:
        assert contents.epochs
        assert {each.name for each in files} <= {"iobench.html", "iobench-trace.json.gz"}
        return "here"


@pytest.fixture
def all_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options for everything that a run is shown, written and told by."""
    pytest.importorskip("pyarrow", reason="makes tables")
    monkeypatch.setattr("iobench.tracking.run_logging.MlflowRuns", Tracking)
    names = {"html": "run.html", "trace": "run.json", "parquet": "run.parquet"}
    told = [each for key, name in names.items() for each in (f"--{key}", str(tmp_path / name))]
    return [*told, "--json", "--mlflow", "env"]


def counted_calls(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> Counter[str]:
    """Return how often each of `COUNTED` is called by a command, by whatever module."""
    assert main(command) == 0  # whatever it loads is loaded now
    found: Counter[str] = Counter()
    for place in COUNTED:
        module, _, name = place.rpartition(".")
        made = getattr(sys.modules[module], name)

        def counting(*given: Any, made: Any = made, name: str = name, **named: Any) -> Any:
            found[name] += 1
            return made(*given, **named)

        for other in [each for key, each in sys.modules.items() if key.startswith("iobench")]:
            if getattr(other, name, None) is made:
                monkeypatch.setattr(other, name, counting)
    assert main(command) == 0
    return found


def test_a_run_is_opened_once_and_analysed_once_for_all_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_outputs: list[str]
) -> None:
    run = write_run(tmp_path / "run")
    calls = counted_calls(monkeypatch, ["report", str(run), *all_outputs])
    assert calls == {name.rpartition(".")[2]: 1 for name in COUNTED}
    from iobench.report.renderers.html_page import HtmlRenderer
    from iobench.report.report_document import report_document
    from iobench.report.timeline.chrome_trace import write_trace

    page = HtmlRenderer().render(report_document(open_runs(run)))
    assert (tmp_path / "run.html").read_text() == page
    write_trace(tmp_path / "again.json", open_runs(run))
    assert (tmp_path / "run.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert (tmp_path / "run.parquet").stat().st_size


def test_each_rank_of_a_job_is_analysed_once_for_all_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_outputs: list[str]
) -> None:
    run = write_run(tmp_path / "run", ranks=3)
    calls = counted_calls(monkeypatch, ["report", str(run), *all_outputs])
    once = {name.rpartition(".")[2]: 3 for name in COUNTED}
    assert calls == once | {"read_run_traces": 1}


@pytest.mark.parametrize(
    ("option", "library", "installed"),
    [
        ("--html", "jinja2", "jinja2>=3.1"),
        ("--parquet", "pyarrow.parquet", "iobench[parquet]"),
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
    assert main(["report", str(tmp_path / "no such run"), option, str(target)]) == 69
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip().endswith(f"pip install '{installed}'")
    assert not target.exists()
