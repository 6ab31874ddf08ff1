"""DFTracer's files: recorded ones, and what goes wrong with them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.storage.dftracer import is_dftracer_start
from iobench.storage.run_traces import read_traces

DATA = Path(__file__).parents[2] / "data" / "dftracer"
SAMPLES = "/srv/iobench-demo/dft/data/sample_"


@pytest.mark.parametrize("folder", ["plain", "gz"])
def test_processes_of_a_recorded_run(folder: str) -> None:
    trace = read_traces([DATA / folder])
    assert (trace.refused, trace.notes) == ((), ())
    main, *workers = trace.processes
    assert main.executable == "python loader.py /srv/iobench-demo/dft/data fork"
    assert (main.parent_pid > 0, main.host, main.leftover) == (True, "vm", False)
    read = {each.segments["nbytes"].sum() for each in workers}
    assert read == {63_006, 63_009}
    for worker in workers:
        assert (worker.tracer, worker.parent_pid, worker.rank) == ("DFTracer", main.pid, -1)
        assert [(each.name, each.version, each.partial) for each in worker.modules] == [
            ("DFTRACER", 20003, False)
        ]
        assert main.start_ns < worker.start_ns < worker.end_ns < main.end_ns
        assert (worker.segments["thread"] == worker.pid).all()
        assert (np.diff(worker.segments["start_ns"]) >= 0).all()
        assert (worker.segments["end_ns"] <= worker.end_ns).all()
        assert len(worker.files) == 3
        assert all(name.startswith(SAMPLES) for name in worker.files)  # told by main alone


@pytest.mark.parametrize("folder", ["plain", "gz"])
def test_calls_of_a_worker(folder: str) -> None:
    worker = read_traces([DATA / folder]).processes[1]
    first = int(worker.files[0].removeprefix(SAMPLES)[0])
    calls = [
        (int(row["offset"]), int(row["nbytes"]), worker.files[row["file"]], bool(row["write"]))
        for row in worker.segments
    ]
    assert calls == [
        call
        for sample in range(first, 6, 2)
        for call in (
            (0, 20_000 + sample, f"{SAMPLES}{sample}.bin", False),
            (20_000 + sample, 0, f"{SAMPLES}{sample}.bin", False),  # the end, asked for again
            (24, 1000, f"{SAMPLES}{sample}.bin", False),
        )
    ]
    for at, row in enumerate(worker.counters):
        mine = worker.segments[worker.segments["file"] == row["file"]]
        assert row["file"] == at
        assert (row["posix_opens"], row["posix_reads"]) == (2, 3)
        assert row["posix_read_nbytes"] == mine["nbytes"].sum()
        assert (row["posix_mmaps"], row["stdio_reads"], row["stdio_first_read_ns"]) == (-1, 0, -1)
        assert row["posix_first_read_ns"] == mine["start_ns"].min()
        assert row["posix_last_read_ns"] == mine["end_ns"].max()
        assert row["posix_first_open_ns"] <= row["posix_first_read_ns"]
        assert row["posix_last_close_ns"] >= row["posix_last_read_ns"]


def test_of_np_load_only_the_header_is_seen() -> None:
    main = read_traces([DATA / "plain"]).processes[0]
    (array,) = [at for at, name in enumerate(main.files) if name.endswith("a.npy")]
    mine = main.segments[main.segments["file"] == array]
    assert mine[~mine["write"]]["nbytes"].tolist() == [4096]


def test_a_run_without_arguments_says_how_to_get_them() -> None:
    (trace,) = read_traces([DATA / "bare"]).processes
    assert trace.problems == (
        "DFTracer left out files and bytes of the calls: run it with DFTRACER_INC_METADATA=1",
    )
    assert (len(trace.segments), len(trace.files)) == (0, 0)


def test_a_worker_without_the_file_of_its_parent(tmp_path: Path) -> None:
    (worker, *_) = sorted((DATA / "plain").glob("*-fork.pfw"))
    shutil.copy(worker, tmp_path)
    (trace,) = read_traces([tmp_path]).processes
    assert all("not named in what was read" in name for name in trace.files)
    assert len(trace.segments) == 9


@pytest.mark.parametrize("packed", [False, True])
def test_a_process_that_was_killed(packed: bool, tmp_path: Path) -> None:
    (worker, *_) = sorted((DATA / "plain").glob("*-fork.pfw"))
    content = worker.read_bytes()
    path = tmp_path / "run.pfw"
    path.write_bytes(gzip.compress(content)[:-400] if packed else content[:4000])
    trace = read_traces([path])
    assert trace.refused == ()
    (process,) = trace.processes
    assert (process.leftover, process.end_ns, process.partial_modules) == (True, -1, ("DFTRACER",))
    assert 0 < len(process.segments) < 9


def test_bad_files_get_a_line_each(tmp_path: Path) -> None:
    (worker, *_) = sorted((DATA / "plain").glob("*-fork.pfw"))
    lines = worker.read_text().splitlines()
    for name, content in {
        "empty.pfw": b"",
        "text.pfw": b"no calls\nat all\n",
        "hole.pfw": "\n".join([*lines[:5], "{", *lines[6:]]).encode(),
        "packed.pfw.gz": b"\x1f\x8b" + b"\xff" * 40,
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "none").mkdir()
    trace = read_traces([tmp_path, tmp_path / "gone.pfw", tmp_path / "none"])
    said = {Path(line.split(": ")[0]).name: line.split(": ", 1)[1] for line in trace.refused}
    assert said.pop("text.pfw") == "is not a file of DFTracer's"
    assert said.pop("hole.pfw") == "line 6 is not a call of DFTracer's"
    assert said.pop("packed.pfw.gz").startswith("is damaged")
    assert said.pop("gone.pfw") == "cannot be read: No such file or directory"
    assert said.pop("none") == "no log of Darshan and no file of DFTracer in this folder"
    assert said == {}
    assert trace.processes == ()
    assert trace.notes[0].startswith("1 files of DFTracer are empty")


def call(name: str, start_us: int, pid: int = 5, **arguments: Any) -> str:
    whole = {"name": name, "cat": "POSIX", "ph": "X", "pid": pid, "tid": 6, "ts": start_us}
    return json.dumps(whole | {"dur": 3, "args": arguments})


def test_forms_of_other_versions(tmp_path: Path) -> None:
    """Names at once, commas at the ends, other units, errors, two processes, C streams."""
    unit = {
        "name": "CM",
        "pid": 5,
        "tid": 5,
        "ph": 4,
        "args": {"name": "time_metric", "value": "NS"},
    }
    path = tmp_path / "old.pfw"
    stream = call("fread", 70, 8, fname="/d/b", ret=10, size=4).replace("POSIX", "STDIO")
    calls = [
        "[",
        json.dumps(unit),
        call("open64", 10, fname="/d/a"),
        call("read", 20, fname="/d/a", ret=100),
        call("read", 30, fname="/d/a", ret=-1),
        call("open", 40, fname="/d/a"),
        call("read", 50, fname="/d/a", ret=7),
        call("pwrite64", 60, 8, fname="/d/b", ret=9, offset=33),
        stream,
        call("read", 80, 8, fname="/env/lib/python3.11/a.txt", ret=9),
    ]
    path.write_text(",\n".join(calls) + "\n]\n")
    other, first = sorted(read_traces([path]).processes, key=lambda each: -each.pid)
    assert (first.pid, other.pid) == (5, 8)
    assert first.segments[["start_ns", "end_ns", "offset", "nbytes"]].tolist() == [
        (20, 23, 0, 100),
        (50, 53, -1, 7),  # of which of its two descriptors, it does not say
    ]
    assert first.segments["thread"].tolist() == [6, 6]
    assert other.files == ("/d/b",)
    assert other.segments[["start_ns", "offset", "nbytes", "write"]].tolist() == [
        (60_000, 33, 9, True)
    ]
    (row,) = other.counters
    assert (row["stdio_reads"], row["stdio_read_nbytes"], row["stdio_read_ns"]) == (1, 40, 3000)
    assert row["posix_reads"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"ts": None},
        {"ts": 2**63},
        {"ts": float("inf")},
        {"dur": "long"},
        {"tid": None},
        {"args": [1]},
        {"args": {"fname": "/d/a", "ret": "many"}},
        {"args": {"fname": "/d/a", "ret": 2**70}},
        {"name": "start", "args": {"ppid": None}},
        {"name": "FH", "args": "x"},
    ],
)
def test_numbers_that_are_none_are_a_line_of_the_report(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path, good = tmp_path / "odd.pfw", call("read", 20, fname="/d/a", ret=100)
    bad = json.dumps(json.loads(good) | change)
    path.write_text("\n".join([good, bad, good]))
    trace = read_traces([path])
    assert trace.processes == ()
    assert trace.refused == (f"{path}: line 2 is not a call of DFTracer's",)
    path.write_text(f"{good}\n{bad}")  # what was being written when its process was killed
    (process,) = read_traces([path]).processes
    assert process.segments["nbytes"].tolist() == [100]
    assert process.partial_modules


def test_regions_of_users_may_tell_anything(tmp_path: Path) -> None:
    region = {"name": "step", "cat": "APP", "pid": 5, "tid": 6, "ts": 1, "args": {"size": "large"}}
    (tmp_path / "a.pfw").write_text(
        "\n".join([json.dumps(region), call("read", 20, fname="/d/a", ret=100)])
    )
    assert read_traces([tmp_path]).refused == ()


def test_an_opening_that_failed_is_none(tmp_path: Path) -> None:
    calls = [call("open", 10, fname="/d/a", ret=ret) for ret in (-1, 5)]
    (tmp_path / "a.pfw").write_text("\n".join([*calls, call("read", 20, fname="/d/a", ret=100)]))
    (process,) = read_traces([tmp_path]).processes
    assert process.counters["posix_opens"].tolist() == [1]
    assert process.segments["offset"].tolist() == [0]


def test_what_starts_like_a_file_of_dftracer() -> None:
    (worker, *_) = sorted((DATA / "plain").glob("*.pfw"))
    assert is_dftracer_start(worker.read_bytes())
    assert is_dftracer_start(b"[\n" + worker.read_bytes())
    assert not is_dftracer_start(b"")
    assert not is_dftracer_start(b'{"name": "x"}\n')
