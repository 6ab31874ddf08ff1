"""Traces of torch's profiler beside ours: one clock, the same processes, bad files in one line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from schedules import on_machine, pool
from trace_rules import check_trace, read_trace

from iobench.analysis.run import Run
from iobench.errors import FileFormatError
from iobench.report.timeline.chrome_trace import write_trace

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

MS = 1_000_000
WALL_NS = 1_795_000_000_123_456_789
BASE_NS = 1_790_857_026_000_000_000
PID = 4711


def ran() -> RunData:
    """Return a run of a training process and a worker, from WALL_NS on."""
    durations = [(7 * MS, 5 * MS, 2 * MS)] * 6
    found = pool(durations, workers=1, step_ns=MS, handover_ns=MS, drain_ns=MS).data()
    return on_machine(found, wall_ns=WALL_NS, pid=PID)


def microseconds(monotonic_ns: int, base_ns: int = BASE_NS) -> float:
    """Return a moment of the run as torch tells it."""
    return (WALL_NS + monotonic_ns - base_ns) / 1000


def torch_document(base_ns: int = BASE_NS, **more: Any) -> dict[str, Any]:
    def at(ns: int) -> float:
        return microseconds(ns, base_ns)

    here = {"pid": PID, "tid": PID}
    gpu = {"pid": 0, "tid": 7}
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        **({"baseTimeNanoseconds": base_ns} if base_ns else {}),
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
            {"ph": "M", "name": "thread_name", **gpu, "args": {"name": "stream 7 "}},
            {"ph": "X", "name": "next", "cat": "op", **here, "ts": at(15 * MS), "dur": 900.5},
            {"ph": "X", "name": "aten::mm", "cat": "op", **here, "ts": at(17 * MS), "dur": 100.25},
            {"ph": "X", "name": "gemm", "cat": "kernel", **gpu, "ts": at(18 * MS), "dur": 50},
            {"ph": "s", "id": 1, "name": "ac2g", "cat": "ac2g", **here, "ts": at(17 * MS)},
            {"ph": "f", "id": 1, "name": "ac2g", "cat": "ac2g", **gpu, "ts": at(18 * MS),
             "bp": "e"},
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",
             "ts": at(19 * MS)},
        ],
        **more,
    }  # fmt: skip


def merged(tmp_path: Path, *documents: Any, name: str = "torch.json") -> dict[str, Any]:
    paths = []
    for number, document in enumerate(documents):
        path = tmp_path / f"{number}-{name}"
        data = json.dumps(document).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        paths.append(path)
    write_trace(tmp_path / "run.json", [Run(ran())], torch_traces=paths)
    found = read_trace(tmp_path / "run.json")
    check_trace(found)
    return found


def only(document: dict[str, Any], name: str, letter: str = "X") -> dict[str, Any]:
    (entry,) = (
        each for each in document["traceEvents"] if (each["ph"], each["name"]) == (letter, name)
    )
    return dict(entry)


def at_ns(document: dict[str, Any], entry: dict[str, Any]) -> int:
    """Return when an entry begins, on the run's own clock."""
    return int(entry["ts"] * 1000) + int(document["otherData"]["base_wall_ns"]) - WALL_NS


@pytest.mark.parametrize("name", ["torch.json", "torch.json.gz"])
@pytest.mark.parametrize(("base_ns", "exact_ns"), [(BASE_NS, 1), (0, 500)], ids=["2.4", "before"])
def test_times_of_both_are_on_one_clock(
    tmp_path: Path, base_ns: int, exact_ns: int, name: str
) -> None:
    # Before torch 2.4 times were microseconds since 1970: a double has a quarter of one at best.
    document = merged(tmp_path, torch_document(base_ns), name=name)
    assert at_ns(document, only(document, "next")) == pytest.approx(15 * MS, abs=exact_ns)
    assert at_ns(document, only(document, "gemm")) == pytest.approx(18 * MS, abs=exact_ns)
    assert only(document, "next")["dur"] * 1000 == 900_500
    assert document["otherData"]["torch_traces"] == [f"0-{name}"]


def test_threads_are_in_the_process_we_know(tmp_path: Path) -> None:
    document = merged(tmp_path, torch_document(), torch_document(host_name="here"))
    names = {
        each["pid"]: each["args"]["name"]
        for each in document["traceEvents"]
        if (each["ph"], each["name"]) == ("M", "process_name")
    }
    places = {
        name: {
            (names[each["pid"]], each["tid"])
            for each in document["traceEvents"]
            if (each["ph"], each["name"]) == ("X", name)
        }
        for name in ("next", "aten::mm", "gemm", "wait")
    }
    assert {name for name, _ in places["gemm"]} == {"torch: GPU 0"}
    assert {name for each in places for name, _ in places[each]} == {"consumer", "torch: GPU 0"}
    assert places["wait"] == {("consumer", PID)}
    assert places["next"] == places["aten::mm"]
    assert places["next"].isdisjoint(places["wait"])
    arrows = [each for each in document["traceEvents"] if each["ph"] in "stf"]
    numbers = {each["id"] for each in arrows if each["name"] == "ac2g"}
    assert len(numbers) == 2, "arrows of several files stay apart"
    assert numbers.isdisjoint({each["id"] for each in arrows if each["name"] == "batch"})


GOOD = torch_document()
EVENT = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def events(*some: dict[str, Any]) -> bytes:
    return json.dumps({"traceEvents": some}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"{}", "missing required field `traceEvents`"),
        (b'{"traceEvents": [3]}', "at `$.traceEvents[0]`"),
        (b'{"traceEvents": []}', "holds no trace events with a time"),
        (json.dumps({**GOOD, "baseTimeNanoseconds": "x"}).encode(), "at `$.baseTimeNanoseconds`"),
        (events({**EVENT, "ts": "now"}), "at `$[0].ts`"),
        (events({**EVENT, "ts": 1e300}), "at `$[0].ts`"),
        (events({**EVENT, "ts": math.nan}), "at `$[0].ts`"),
        (b"[]", "Expected `object`, got `array`"),
        (events(EVENT, {"ph": "XX"}), "at `$[1].ph`"),
        (events({**EVENT, "pid": [1]}), "at `$[0].pid`"),
        (gzip.compress(json.dumps(GOOD).encode())[:-9], "is no JSON"),
        (events(EVENT), "ended before the run began"),
        (json.dumps(torch_document(BASE_NS - 10**15)).encode(), None),
    ],
)
def test_what_is_no_trace_of_this_run_is_one_line(
    tmp_path: Path, content: bytes, words: str | None
) -> None:
    path = tmp_path / "torch.json"
    path.write_bytes(content)
    if words is None:
        write_trace(tmp_path / "run.json", [Run(ran())], torch_traces=[path])
        return
    with pytest.raises(FileFormatError) as caught:
        write_trace(tmp_path / "run.json", [Run(ran())], torch_traces=[path])
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run.json").exists()
