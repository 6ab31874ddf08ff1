"""Spans as a table: the same sums, every column documented, read by whoever reads Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import on_machine, pool

from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.timeline.arrow_table import to_arrow, write_parquet
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

pa = pytest.importorskip("pyarrow", reason="pip install 'iobench[parquet]'")
WALL_NS = 1_795_000_000_123_456_789
SCHEDULES = st.builds(
    pool,
    st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=20),
    workers=st.integers(0, 3),
    step_ns=st.integers(1, 60),
    prefetch=st.integers(1, 3),
    handover_ns=st.integers(0, 3),
    in_order=st.booleans(),
    drain_ns=st.integers(0, 3),
)


def run_of(n_batches: int = 8, workers: int = 2) -> RunData:
    sketch = pool([(30, 20, 10)] * n_batches, workers=workers, step_ns=5, handover_ns=3, drain_ns=2)
    sketch.config["command"] = "train --token s3cret"
    return on_machine(sketch.data(), wall_ns=WALL_NS)


def rows_of(table: Any) -> list[dict[str, Any]]:
    return list(table.to_pylist())


@given(SCHEDULES)
def test_sums_over_spans_are_those_of_exposure(sketch: SketchedRun) -> None:
    profile = sketch.data()
    figures = exposure(profile).whole
    rows = rows_of(to_arrow(profile))
    waits = [row["exposed_ns"] for row in rows if row["kind"] == "wait"]
    assert sum(waits) == figures.wait_ns
    work = [row for row in rows if row["busy_ns"] is not None]
    for stage in figures.stages:
        mine = [row for row in work if row["stage"] == stage.stage]
        if not mine:
            assert stage.kind.spelled in {
                "handover", "ipc_wait", "shutdown", "startup", "starved_submit", "submit_queue",
                "worker_gap", "unknown", "opaque",
            }  # fmt: skip
            continue
        for name in ("busy_ns", "exposed_ns"):
            assert sum(row[name] for row in mine) == getattr(stage, name), (stage.stage, name)
    for row in work:
        assert 0 <= row["exposed_ns"] <= row["busy_ns"] <= row["self_ns"] <= row["duration_ns"]


def test_columns_are_documented_in_the_schema() -> None:
    table = to_arrow(run_of())
    assert all(table.schema.field(name).metadata[b"description"] for name in table.schema.names)
    assert table.schema.field("start").type == pa.timestamp("ns", tz="UTC")
    assert pa.types.is_dictionary(table.schema.field("detail").type)
    about = json.loads(table.schema.metadata[b"iobench"])
    assert (about["run"], about["ranks"]) == ("run", [0])
    assert "s3cret" not in str(table.schema.metadata)


def test_unknown_is_null_and_flags_are_true_or_false() -> None:
    sketch = SketchedRun()
    sketch.add(CONSUMER, Kind.READ, 5, 9, detail="/data/\udcff.npy", batch=0, sample=3, nbytes=0)
    sketch.add(CONSUMER, Kind.READ, 9, 9, flags=Flag.IO, nbytes=100, cpu_ns=40, batch=0)
    sketch.add(CONSUMER, Kind.DECODE, 9, 11, flags=Flag.SUMMED, pieces=7, batch=0)
    sketch.add(CONSUMER, Kind.FORWARD, 20, 30, flags=Flag.DETAIL | Flag.DEVICE, label="cuda:0")
    sketch.wait(0, 4, 12, "consumer")
    rows = {(row["stage"], row["counter"]): row for row in rows_of(to_arrow(sketch.data()))}
    read, counter = rows["read", False], rows["read", True]
    assert (read["nbytes"], read["cpu_ns"]) == (0, None)
    assert (read["epoch"], read["sample"], read["detail"]) == (None, 3, "/data/\\udcff.npy")
    assert (counter["nbytes"], counter["cpu_ns"]) == (100, None)
    assert (counter["self_ns"], counter["exposed_ns"]) == (None, None)
    decode, forward = rows["decode", False], rows["forward:cuda:0", False]
    assert decode["summed"]
    assert (forward["device"], forward["sample_detail"], forward["busy_ns"]) == (True, True, None)
    assert forward["lane"].endswith("device")
    assert (read["busy_ns"], read["exposed_ns"]) == (4, 4)


def test_others_read_the_same_from_the_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="reads Parquet")
    duckdb = pytest.importorskip("duckdb", reason="reads Parquet")
    polars = pytest.importorskip("polars", reason="reads Parquet")
    first, second = run_of(), replace(run_of(workers=0), path=Path("b"))
    path = tmp_path / "runs.parquet"
    write_parquet(path, [Run(first), Run(second)])
    expected = {
        (profile.path.name, stage.stage): stage.exposed_ns
        for profile in (first, second)
        for stage in exposure(profile).whole.stages
        if stage.n_spans
    }
    query = (
        "select run, stage, sum(exposed_ns)::bigint from read_parquet($path) "
        "where busy_ns is not null group by all"
    )
    with duckdb.connect() as database:
        rows = database.execute(query, {"path": str(path)}).fetchall()
    assert {(run, stage): total for run, stage, total in rows} == expected
    frame = pandas.read_parquet(path)
    assert str(frame["start"].dtype) == "datetime64[ns, UTC]"
    assert polars.read_parquet(path)["exposed_ns"].sum() == frame["exposed_ns"].sum()
    assert frame["busy_ns"].isna().any()
    assert len(frame) == len(first.spans) + len(second.spans)
