"""Files of any tracer, whatever they are called."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from iobench.storage.run_traces import read_run_traces, read_traces

DATA = Path(__file__).parents[2] / "data"
(LOG,) = (DATA / "darshan" / "s1_raw_fork").glob("*-24153_*.darshan")
CALLS = sorted((DATA / "dftracer" / "plain").glob("*.pfw"))


def test_files_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    named = tmp_path / "a.pfw"
    shutil.copy(LOG, named)  # called like a file of DFTracer
    packed = tmp_path / "b.darshan"
    packed.write_bytes(gzip.compress(CALLS[0].read_bytes()))
    other = tmp_path / "c.txt"
    shutil.copy(CALLS[1], other)
    text = tmp_path / "d.txt"
    text.write_text("nothing of the sort")
    (tmp_path / "in" / "2026").mkdir(parents=True)
    shutil.copy(CALLS[2], tmp_path / "in" / "2026")
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe")
    paths = [named, packed, other, text, tmp_path / "in", tmp_path / "none", tmp_path / "gone"]
    paths.append(tmp_path / "pipe")
    trace = read_traces(paths)
    found = {(each.tracer, each.path.name) for each in trace.processes}
    assert found == {
        ("Darshan", "a.pfw"),
        ("DFTracer", "b.darshan"),
        ("DFTracer", "c.txt"),
        ("DFTracer", CALLS[2].name),
    }
    starts = [each.start_ns for each in trace.processes]
    assert starts == sorted(starts)
    assert set(trace.refused) == {
        f"{text}: is not a Darshan log",
        f"{tmp_path / 'none'}: no log of Darshan and no file of DFTracer in this folder",
        f"{tmp_path / 'gone'}: cannot be read: No such file or directory",
        f"{tmp_path / 'pipe'}: is no regular file; expected a log",
    }


def test_a_log_that_is_named_twice_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(CALLS[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    trace = read_traces([Path(CALLS[0].name), tmp_path / CALLS[0].name, tmp_path])
    assert len(trace.processes) == 1
    assert trace.refused == ()


def test_logs_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    assert read_run_traces(tmp_path, {"darshan": {"state": "off"}}) is None
    trace = read_run_traces(tmp_path, {"darshan": {"state": "on", "logs": ["/gone/logs"]}})
    assert trace is not None
    (line,) = trace.notes
    assert line.startswith("/gone/logs: ")
    shutil.copytree(CALLS[0].parent, tmp_path / "darshan")
    trace = read_run_traces(tmp_path, {"darshan": {"state": "on", "logs": ["darshan", "gone"]}})
    assert trace is not None
    assert (len(trace.processes), len(trace.notes)) == (3, 1)


def test_without_pydarshan_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "darshan.py").write_text("raise ImportError('no library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = read_traces([LOG, DATA / "dftracer" / "plain"])
    assert [each.tracer for each in trace.processes] == ["DFTracer"] * 3
    (line,) = trace.refused
    assert line.startswith("1 Darshan logs are not read: ")
    assert line.endswith("pip install 'iobench[darshan]'")
