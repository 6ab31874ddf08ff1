"""Spans as a trace, as a table and as a page's columns: exact, and saying what the run says."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from many_spans import many_spans
from msgspec.structs import replace
from schedules import on_machine, pool
from traced_runs import MS, TracedRun

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.timeline.arrow_table import to_arrow
from iobench.report.timeline.chrome_trace import write_trace
from iobench.report.timeline.model import timeline_of
from iobench.report.timeline.page_payload import choose_spans, timeline_payload
from iobench.report.webpage.shell import TIMELINE_SCRIPTS, TIMELINE_STYLES
from tests.report.webpage.timeline_pages import ASSETS, unpacked
from tests.support.sketched_runs import CONSUMER, SketchedRun

WALL_NS = 1_795_000_000_123_456_789
PYARROW = {"modname": "pyarrow", "reason": "pip install 'iobench[parquet]'"}


def ran(sketch, **more):
    return on_machine(sketch.data(), **{"wall_ns": WALL_NS, **more})


def busy_pool(n_batches=12, workers=2, step_ms=5):
    durations = [(7 * MS, 5 * MS, 2 * MS)] * n_batches
    return pool(durations, workers=workers, step_ns=step_ms * MS, handover_ns=MS, drain_ns=MS)


# -- traces, by the rules of Chrome's trace event format ----------------------------------

NEEDED = {
    "X": "name ts dur pid tid", "M": "name pid args",
    **dict.fromkeys("be", "name cat ts pid tid id"),
}  # fmt: skip
TYPES = {"name": str, "cat": str, "pid": int, "tid": int, "id": int, "args": dict}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}  # fmt: skip


def read_trace(path):
    """Return a trace file's document, its times as exact decimals."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.name.endswith(".gz") else data
    return json.loads(data, parse_float=Decimal)


def check_trace(document):
    """Fail if a document breaks a rule: of the format, and what Perfetto's importer needs."""
    entries = document["traceEvents"]
    lanes, pairs, names = (defaultdict(list) for _ in range(3))
    for entry in entries:
        for name in NEEDED[entry["ph"]].split():
            assert isinstance(entry[name], TYPES.get(name, (int, Decimal))), entry
        assert min(entry.get("ts", 0), entry.get("dur", 0)) >= 0, entry
        lane = entry["pid"], entry.get("tid", 0)
        if entry["ph"] == "M":
            assert METADATA[entry["name"]] in entry["args"], entry
            names[entry["name"]].append(lane[0] if "process" in entry["name"] else lane)
        elif entry["ph"] == "X":
            lanes[lane].append((Decimal(entry["ts"]), -(entry["ts"] + Decimal(entry["dur"]))))
        else:
            pairs[entry["cat"], entry["name"], entry["id"]].append(entry)
    for owners in (names["process_name"], names["thread_name"]):
        assert len(owners) == len(set(owners)), "a name is given twice"
    assert {e["pid"] for e in entries} <= {*names["process_name"]}
    assert {(e["pid"], e["tid"]) for e in entries if e["ph"] in "Xbe"} <= {*names["thread_name"]}
    for lane, spans in lanes.items():
        around = []
        for start, end in ((start, -end) for start, end in sorted(spans)):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1], f"{lane}: a span overlaps another"
            around.append(end)
    for points in pairs.values():
        begun, ended = points
        assert (begun["ph"], ended["ph"]) == ("b", "e")
        assert begun["ts"] <= ended["ts"]


def written(folder, *runs, name="run.json"):
    write_trace(folder / name, [each if isinstance(each, Run) else Run(each) for each in runs])
    document = read_trace(folder / name)
    check_trace(document)
    return document


def of(document, letter, name=None):
    return [
        entry
        for entry in document["traceEvents"]
        if entry["ph"] == letter and name in (None, entry["name"])
    ]


def ns(entry, name="ts"):
    return int(entry[name] * 1000)


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
def test_whatever_was_recorded_becomes_a_trace(tmp_path, spans):
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


def test_times_are_exact_to_the_nanosecond_in_doubles_too(tmp_path):
    day_ns = 86_400 * 10**9
    profile = ran(busy_pool().moved(lambda at: at + 50 * day_ns + 17 if at > 40 * MS else at))
    write_trace(tmp_path / "long.json", [Run(profile)])
    document = json.loads((tmp_path / "long.json").read_text())
    base = int(document["otherData"]["base_wall_ns"]) - WALL_NS
    assert document["baseTimeNanoseconds"] == base + WALL_NS
    starts = Counter(int(span["start_ns"]) for span in profile.spans if span["kind"] == Kind.DECODE)
    found = Counter(round(each["ts"] * 1000) + base for each in of(document, "X", "decode"))
    assert found == starts


def test_numbers_of_processes_are_unique_over_machines_and_runs(tmp_path):
    first, second = ran(busy_pool()), ran(busy_pool(), host="there", wall_ns=WALL_NS + 10**9)
    document = written(tmp_path, first, replace(second, path=Path("other")))
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


def test_processes_of_one_machine_keep_the_distance_of_their_spans(tmp_path):
    steady = written(tmp_path, ran(busy_pool()))
    document = written(tmp_path, ran(busy_pool(), drift_ns=(0, -7, 14)))
    bases = [int(each["otherData"]["base_wall_ns"]) for each in (steady, document)]
    assert bases[1] - bases[0] == -7
    assert of(document, "X") == of(steady, "X")


def test_arguments_tell_file_and_bytes(tmp_path):
    sketch = SketchedRun({"workers": 0})
    about = {"batch": 3, "sample": 12, "epoch": 1, "nbytes": 4_000_000, "cpu_ns": 900_000}
    sketch.add(CONSUMER, Kind.READ, 0, 2 * MS, detail="/data/<script>.npy", **about)
    sketch.wait(3, 0, 3 * MS, "consumer", epoch=1, sample=0)
    document = written(tmp_path, ran(sketch))
    (read,), (wait,) = of(document, "X", "read"), of(document, "X", "wait")
    assert read["args"] == {
        "file": "/data/<script>.npy", "batch": 3, "sample": 12, "epoch": 1, "bytes": 4_000_000,
        "exposed_ns": 2 * MS, "cpu_ns": 900_000,
    }  # fmt: skip
    assert wait["args"]["detail"] == "consumer"
    assert "sample" not in wait["args"]


def test_compressed_it_is_the_same_and_makes_the_same_file(tmp_path):
    profile, packed = ran(busy_pool()), tmp_path / "run.json.gz"
    assert written(tmp_path, profile, name=packed.name) == written(tmp_path, profile)
    first = packed.read_bytes()
    write_trace(packed, [Run(profile)])
    assert packed.read_bytes() == first


def test_calls_that_darshan_saw_lie_in_their_stages_on_threads_of_their_own(tmp_path):
    run = TracedRun()
    worker = run.worker()
    worker.late_ms = 3  # of the log's clock
    worker.span(Kind.READ, 10, 20, batch=0, nbytes=40, detail="/d/a")
    worker.read("/d/a", 11, 15, 0, 30)
    worker.read("/d/a", 14, 18, 30, 10)  # of another thread
    run.wait(0, 10, 20)
    document = written(tmp_path, Run(run.data(), run.trace()))
    first, second = sorted(of(document, "X", "read call"), key=lambda each: each["ts"])
    (read,) = of(document, "X", "read")
    assert (ns(first) - ns(read), ns(second) - ns(read)) == (MS, 4 * MS)
    assert [ns(each, "dur") for each in (first, second)] == [4 * MS, 4 * MS]
    called = [{"file": "/d/a", "bytes": 30}, {"file": "/d/a", "bytes": 10}]
    assert [each["args"] for each in (first, second)] == called
    assert first["pid"] == second["pid"] == read["pid"]
    assert len({read["tid"], first["tid"], second["tid"]}) == 3


# -- tables -------------------------------------------------------------------------------


def test_unknown_is_null_and_flags_are_true_or_false():
    pa = pytest.importorskip(**PYARROW)
    sketch = SketchedRun({"command": "train --token s3cret"})
    sketch.add(CONSUMER, Kind.READ, 5, 9, detail="/data/\udcff.npy", batch=0, sample=3, nbytes=0)
    sketch.add(CONSUMER, Kind.READ, 9, 9, flags=Flag.IO, nbytes=100, cpu_ns=40, batch=0)
    sketch.add(CONSUMER, Kind.DECODE, 9, 11, flags=Flag.SUMMED, pieces=7, batch=0)
    sketch.add(CONSUMER, Kind.FORWARD, 20, 30, flags=Flag.DETAIL | Flag.DEVICE, label="cuda:0")
    sketch.wait(0, 4, 12, "consumer")
    table = to_arrow(sketch.data())
    rows = {(row["stage"], row["counter"]): row for row in table.to_pylist()}
    for stage, is_counter, known in (
        ("read", False, {"nbytes": 0, "cpu_ns": None, "epoch": None, "sample": 3, "busy_ns": 4,
                         "exposed_ns": 4, "detail": "/data/\\udcff.npy"}),
        ("read", True, {"nbytes": 100, "cpu_ns": None, "self_ns": None, "exposed_ns": None}),
        ("decode", False, {"summed": True}),
        ("forward:cuda:0", False, {"device": True, "sample_detail": True, "busy_ns": None}),
    ):  # fmt: skip
        row = rows[stage, is_counter]
        assert {name: row[name] for name in known} == known
    assert rows["forward:cuda:0", False]["lane"].endswith("device")
    assert all(table.schema.field(name).metadata[b"description"] for name in table.schema.names)
    assert table.schema.field("start").type == pa.timestamp("ns", tz="UTC")
    assert pa.types.is_dictionary(table.schema.field("detail").type)
    about = json.loads(table.schema.metadata[b"iobench"])
    assert (about["run"], about["ranks"]) == ("run", [0])
    assert "s3cret" not in str(table.schema.metadata)


# -- columns of a page --------------------------------------------------------------------

UPLOT = {  # 1.6.32, as npm has it
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def check_columns(profile, limit=500_000):
    """Unpack a payload and hold it against the timeline it was made from."""
    payload = timeline_payload(Run(profile).of_rank(), limit)
    meta = json.loads(json.dumps(payload.meta, allow_nan=False))
    timeline = timeline_of(Run(profile))
    rows = choose_spans(timeline, limit)
    columns, spans = unpacked(payload), timeline.spans[rows]
    assert (meta["n_spans"], meta["n_shown"]) == (len(timeline), len(rows))
    assert meta["length_ns"] == timeline.end_ns - timeline.start_ns
    expected = {
        "start": spans["start_ns"] - timeline.start_ns,
        "length": spans["end_ns"] - spans["start_ns"],
        "exposed": timeline.exposed_ns[rows],
        **{name: getattr(timeline, name)[rows] for name in ("lane", "depth", "stage")},
        **{name: spans[name] for name in ("nbytes", "batch", "sample", "epoch")},
    }
    for name, values in expected.items():
        assert columns[name] == values.tolist(), name
    names = [columns["names"][place] for place in columns["name"]]
    assert names == [profile.strings[detail] for detail in spans["detail"].tolist()]


LARGE = st.integers(0, 2**52)


@given(
    st.lists(
        st.tuples(LARGE, LARGE, st.integers(-1, 2**62), st.integers(-1, 2**31 - 1)), max_size=12
    )
)
def test_absurd_numbers_come_back_as_well(rows):
    sketch = SketchedRun({"workers": 0})
    for start, length, nbytes, batch in rows:
        more = {"nbytes": nbytes, "batch": batch, "sample": nbytes, "detail": f"file {batch}"}
        sketch.add(CONSUMER, Kind.READ, start, start + length, **more)
    check_columns(sketch.data())


def test_all_waits_are_shown_and_the_rest_by_exposed_time():
    profile = many_spans(3000)
    timeline = timeline_of(Run(profile))
    is_wait = timeline.spans["kind"] == Kind.WAIT
    rows = choose_spans(timeline, int(is_wait.sum()) + 400)
    assert len(rows) == int(is_wait.sum()) + 400
    assert np.isin(np.flatnonzero(is_wait), rows).all(), "every wait"
    shown = np.isin(np.arange(len(timeline)), rows)
    worst = np.sort(timeline.exposed_ns[~is_wait])[::-1][:200]
    assert timeline.exposed_ns[~shown & ~is_wait].max() <= worst[-1]
    check_columns(profile, len(rows))
    waits = np.sort(timeline.exposed_ns[is_wait])
    rows = choose_spans(timeline, 10)
    assert np.sort(timeline.exposed_ns[rows]).tolist() == waits[-10:].tolist()
    assert len(choose_spans(timeline, 0)) == 0


def test_assets_are_there_fetch_nothing_and_uplot_is_the_one_that_was_looked_at():
    for name, digest in UPLOT.items():
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == digest
    for name in (*TIMELINE_SCRIPTS, *TIMELINE_STYLES):
        text = (ASSETS / name).read_text("utf-8").lower()
        assert "</script" not in text
        assert "</style" not in text
        assert "http" not in text or name.startswith("uplot/")
