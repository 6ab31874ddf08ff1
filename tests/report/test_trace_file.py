"""Traces: by the format's rules, exact in time, and saying what the profile says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import on_machine, pool
from trace_rules import check_trace, read_trace
from traced_runs import MS, TracedRun

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.timeline.chrome_trace import write_trace
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.runs.contents import RunData

WALL_NS = 1_795_000_000_123_456_789
Entries = list[dict[str, Any]]


def ran(sketch: SketchedRun, **more: Any) -> RunData:
    return on_machine(sketch.data(), **{"wall_ns": WALL_NS, **more})


def written(
    folder: Path,
    *profiles: RunData,
    name: str = "run.json",
    **more: Any,
) -> Any:
    path = folder / name
    write_trace(path, [Run(each) for each in profiles], **more)
    document = read_trace(path)
    check_trace(document)
    return document


def of(document: Any, letter: str, name: str | None = None) -> Entries:
    return [
        entry
        for entry in document["traceEvents"]
        if entry["ph"] == letter and name in (None, entry["name"])
    ]


def ns(entry: dict[str, Any], name: str = "ts") -> int:
    return int(entry[name] * 1000)


def busy_pool(n_batches: int = 12, workers: int = 2, step_ms: int = 5) -> SketchedRun:
    durations = [(7 * MS, 5 * MS, 2 * MS)] * n_batches
    return pool(durations, workers=workers, step_ns=step_ms * MS, handover_ns=MS, drain_ns=MS)


SPANS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 60), st.integers(0, 30), st.sampled_from([*Kind]),
        st.integers(-1, 4), st.sampled_from([0, 0, 0, 1, 2, 4, 10]),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip


@given(SPANS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_recorded_becomes_a_trace(
    tmp_path: Path, spans: Iterable[tuple[Any, ...]]
) -> None:
    sketch = SketchedRun()
    for lane, start, long, kind, batch, flags in spans:
        whose = CONSUMER if lane == 0 else ("worker", lane)
        sketch.add(whose, kind, start, start + long, batch=batch, flags=flags)
    profile = ran(sketch)
    if all(span["flags"] & Flag.IO for span in sketch.spans):
        return
    document = written(tmp_path, profile)
    shown = {
        (int(span["start_ns"]), int(span["end_ns"]))
        for span in profile.spans
        if not span["flags"] & (Flag.IO | Flag.SUMMED)
    }
    base = int(document["otherData"]["base_wall_ns"]) - WALL_NS
    begins = {(entry["id"], entry["cat"]): ns(entry) for entry in of(document, "b")}
    found = {(ns(each) + base, ns(each) + ns(each, "dur") + base) for each in of(document, "X")}
    found |= {(begins[e["id"], e["cat"]] + base, ns(e) + base) for e in of(document, "e")}
    assert shown <= found


def test_times_are_exact_to_the_nanosecond_in_doubles_too(tmp_path: Path) -> None:
    day_ns = 86_400 * 10**9
    sketch = busy_pool().moved(lambda at: at + 50 * day_ns + 17 if at > 40 * MS else at)
    profile = ran(sketch)
    path = tmp_path / "long.json"
    write_trace(path, [Run(profile)])
    document = json.loads(path.read_text())
    base = int(document["otherData"]["base_wall_ns"]) - WALL_NS
    assert document["baseTimeNanoseconds"] == base + WALL_NS
    starts = Counter(int(span["start_ns"]) for span in profile.spans if span["kind"] == Kind.DECODE)
    found = Counter(round(each["ts"] * 1000) + base for each in of(document, "X", "decode"))
    assert found == starts


def test_numbers_of_processes_are_unique_over_machines_and_runs(tmp_path: Path) -> None:
    first, second = ran(busy_pool()), ran(busy_pool(), host="there", wall_ns=WALL_NS + 10**9)
    second = replace(second, path=Path("other"))
    document = written(tmp_path, first, second)
    names = {each["pid"]: each["args"]["name"] for each in of(document, "M", "process_name")}
    assert sorted(names.values()) == sorted(
        f"{run} {who}" for run in ("run", "other") for who in ("consumer", "worker-0", "worker-1")
    )
    assert {4711, 4712, 4713} < set(names)
    starts = defaultdict(list)
    for entry in of(document, "X", "decode"):
        starts[names[entry["pid"]]].append(ns(entry))
    apart = min(starts["other worker-0"]) - min(starts["run worker-0"])
    assert apart == 10**9, "runs on two machines are not on one clock"


def test_processes_of_one_machine_keep_the_distance_of_their_spans(tmp_path: Path) -> None:
    steady = written(tmp_path, ran(busy_pool()))
    document = written(tmp_path, ran(busy_pool(), drift_ns=(0, -7, 14)))
    bases = [int(each["otherData"]["base_wall_ns"]) for each in (steady, document)]
    assert bases[1] - bases[0] == -7
    assert of(document, "X") == of(steady, "X")


def test_an_arrow_leads_from_the_work_on_a_batch_to_the_wait_that_got_it(tmp_path: Path) -> None:
    profile = ran(busy_pool())
    document = written(tmp_path, profile)
    arrows = defaultdict(dict)
    for letter in "stf":
        for entry in of(document, letter):
            arrows[entry["id"]][letter] = entry
    waits = [each for each in of(document, "X", "wait") if each["args"].get("batch", -1) >= 0]
    assert len(arrows) == sum(each["dur"] > 0 for each in waits) > 4
    for points in arrows.values():
        (wait,) = (each for each in waits if _holds(each, points["f"]))
        batch = wait["args"]["batch"]
        worker = 4712 + batch % 2
        assert [points[letter]["pid"] for letter in "stf"] == [worker, worker, 4711]
        (read,) = (each for each in of(document, "X", "read") if _holds(each, points["s"]))
        (last,) = (each for each in of(document, "X", "collate") if _holds(each, points["t"]))
        assert read["args"]["batch"] == last["args"]["batch"] == batch


def _holds(span: dict[str, Any], point: dict[str, Any]) -> bool:
    inside = span["ts"] <= point["ts"] < span["ts"] + span["dur"]
    return inside and (span["pid"], span["tid"]) == (point["pid"], point["tid"])


def test_arguments_tell_file_and_bytes(tmp_path: Path) -> None:
    sketch = SketchedRun({"workers": 0})
    about = {"batch": 3, "sample": 12, "epoch": 1, "nbytes": 4_000_000, "cpu_ns": 900_000}
    sketch.add(CONSUMER, Kind.READ, 0, 2 * MS, detail="/data/<script>.npy", **about)
    sketch.wait(3, 0, 3 * MS, "consumer", epoch=1, sample=0)
    document = written(tmp_path, ran(sketch))
    (read,) = of(document, "X", "read")
    assert read["args"] == {
        "file": "/data/<script>.npy", "batch": 3, "sample": 12, "epoch": 1, "bytes": 4_000_000,
        "exposed_ns": 2 * MS, "cpu_ns": 900_000,
    }  # fmt: skip
    (wait,) = of(document, "X", "wait")
    assert wait["args"]["detail"] == "consumer"
    assert "sample" not in wait["args"]


def test_compressed_it_is_the_same_and_makes_the_same_file(tmp_path: Path) -> None:
    profile = ran(busy_pool())
    plain = written(tmp_path, profile)
    assert written(tmp_path, profile, name="run.json.gz") == plain
    first = (tmp_path / "run.json.gz").read_bytes()
    write_trace(tmp_path / "run.json.gz", [Run(profile)])
    assert (tmp_path / "run.json.gz").read_bytes() == first


def test_calls_that_darshan_saw_lie_in_their_stages_on_threads_of_their_own(tmp_path: Path) -> None:
    run = TracedRun()
    worker = run.worker()
    worker.late_ms = 3  # of the log's clock
    worker.span(Kind.READ, 10, 20, batch=0, nbytes=40, detail="/d/a")
    worker.read("/d/a", 11, 15, 0, 30)
    worker.read("/d/a", 14, 18, 30, 10)  # of another thread
    run.wait(0, 10, 20)
    write_trace(tmp_path / "run.json", [Run(run.data(), run.trace())])
    document = read_trace(tmp_path / "run.json")
    check_trace(document)
    first, second = sorted(of(document, "X", "read call"), key=lambda each: each["ts"])
    (read,) = of(document, "X", "read")
    assert (ns(first) - ns(read), ns(second) - ns(read)) == (MS, 4 * MS)
    assert [ns(each, "dur") for each in (first, second)] == [4 * MS, 4 * MS]
    assert [each["args"] for each in (first, second)] == [
        {"file": "/d/a", "bytes": 30}, {"file": "/d/a", "bytes": 10},
    ]  # fmt: skip
    assert first["pid"] == second["pid"] == read["pid"]
    assert len({read["tid"], first["tid"], second["tid"]}) == 3
