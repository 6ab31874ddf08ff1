"""Logs of Darshan, whatever they are called."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from iobench.storage.run_traces import read_run_traces, read_traces

FOLDER = Path(__file__).parents[2] / "data" / "darshan" / "s1_raw_fork"
LOGS = sorted(FOLDER.glob("*.darshan"))


def test_files_and_folders_are_read_and_what_is_no_log_is_said(tmp_path: Path) -> None:
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    named = tmp_path / "a.txt"
    shutil.copy(LOGS[0], named)
    text = tmp_path / "d.darshan"
    text.write_text("nothing of the sort")
    (tmp_path / "in" / "2026").mkdir(parents=True)
    shutil.copy(LOGS[1], tmp_path / "in" / "2026")
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe")
    names = ("in", "none", "gone", "pipe")
    trace = read_traces([named, text, *(tmp_path / name for name in names)])
    assert {each.path.name for each in trace.processes} == {"a.txt", LOGS[1].name}
    starts = [each.start_ns for each in trace.processes]
    assert starts == sorted(starts)
    assert set(trace.refused) == {
        f"{text}: is not a Darshan log",
        f"{tmp_path / 'none'}: no log of Darshan in this folder",
        f"{tmp_path / 'gone'}: cannot be read: No such file or directory",
        f"{tmp_path / 'pipe'}: is no regular file; expected a log",
    }


def test_a_log_that_is_named_twice_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    shutil.copy(LOGS[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    trace = read_traces([Path(LOGS[0].name), tmp_path / LOGS[0].name, tmp_path])
    assert len(trace.processes) == 1
    assert trace.refused == ()


def test_logs_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    assert read_run_traces(tmp_path, {"darshan": {"state": "off"}}) is None
    trace = read_run_traces(tmp_path, {"darshan": {"state": "on", "logs": ["/gone/logs"]}})
    assert trace is not None
    (line,) = trace.notes
    assert line.startswith("/gone/logs: ")
    shutil.copytree(FOLDER, tmp_path / "darshan")
    trace = read_run_traces(tmp_path, {"darshan": {"state": "on", "logs": ["darshan", "gone"]}})
    assert trace is not None
    assert (len(trace.processes), len(trace.notes)) == (3, 1)


def test_without_pydarshan_a_line_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "darshan.py").write_text("raise ImportError('no library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = read_traces([LOGS[0]])
    assert trace.processes == ()
    (line,) = trace.refused
    assert line.startswith("1 Darshan logs are not read: ")
    assert line.endswith("pip install 'iobench[darshan]'")
