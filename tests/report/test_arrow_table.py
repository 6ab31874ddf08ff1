"""Spans as a table: the same sums, every column documented, read by whoever reads Parquet."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import CONSUMER, Sketch, epochs, on_machine, pool
from scripts import Script

import iobench
from iobench.analysis.run import Run, exposure
from iobench.cli import main
from iobench.errors import MissingExtraError, ProfileError, StorageError
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.report.timeline.arrow_table import COLUMNS, to_arrow, write_parquet
from iobench.testing import FakeClock

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
    return on_machine(sketch.profile(), wall_ns=WALL_NS)


def rows_of(table: Any) -> list[dict[str, Any]]:
    return list(table.to_pylist())


@given(SCHEDULES)
def test_sums_over_spans_are_those_of_exposure(sketch: Sketch) -> None:
    profile = sketch.profile()
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
        for name in ("busy_ns", "exposed_ns", "hidden_ns"):
            assert sum(row[name] for row in mine) == getattr(stage, name), (stage.stage, name)
    for row in work:
        assert 0 <= row["exposed_ns"] <= row["busy_ns"] <= row["self_ns"] <= row["duration_ns"]
        assert row["hidden_ns"] == row["busy_ns"] - row["exposed_ns"]


def test_sums_hold_for_scripts_epochs_and_times_of_days() -> None:
    script = Script()
    first, second = script.loader(2), script.loader(0)
    for _ in range(6):
        first.next()
        second.next()
        script.compute(40)
    script.close()
    day = 86_400 * 10**9
    slow = pool([(3 * day, 2 * day, day)] * 9, workers=2, step_ns=day // 3)
    passes = epochs([pool([(30, 20, 10)] * 4, workers=2, step_ns=5) for _ in range(3)])
    for profile in (script.profile(), slow.profile(), passes.profile()):
        sums, figures = Run(profile).sums, exposure(profile).whole
        counted = sums.busy_ns >= 0
        kinds, labels = profile.spans["kind"], profile.spans["label"]
        for stage in figures.stages:
            label = profile.string_number(stage.label)
            mine = counted & (kinds == stage.kind) & (labels == label)
            if mine.any():
                assert int(sums.exposed_ns[mine].sum()) == stage.exposed_ns
                assert int(sums.busy_ns[mine].sum()) == stage.busy_ns


def test_columns_are_documented_in_the_schema() -> None:
    table = to_arrow(run_of())
    assert table.schema.names == [name for name, *_ in COLUMNS if name != "run"]
    assert all(table.schema.field(name).metadata[b"description"] for name in table.schema.names)
    assert table.schema.field("start").type == pa.timestamp("ns", tz="UTC")
    assert pa.types.is_dictionary(table.schema.field("detail").type)
    about = json.loads(table.schema.metadata[b"iobench"])
    assert about["config"] == {"batch_size": 4, "prefetch": 2, "workers": 2}
    assert "s3cret" not in str(table.schema.metadata)


def test_unknown_is_null_and_flags_are_true_or_false() -> None:
    sketch = Sketch()
    sketch.add(CONSUMER, Kind.READ, 5, 9, detail="/data/\udcff.npy", batch=0, sample=3, nbytes=0)
    sketch.add(CONSUMER, Kind.READ, 9, 9, flags=Flag.IO, nbytes=100, cpu_ns=40, batch=0)
    sketch.add(CONSUMER, Kind.DECODE, 9, 11, flags=Flag.SUMMED | Flag.ESTIMATED, pieces=7, batch=0)
    sketch.add(CONSUMER, Kind.FORWARD, 20, 30, flags=Flag.DETAIL | Flag.DEVICE, label="cuda:0")
    sketch.wait(0, 4, 12, "consumer")
    rows = {(row["stage"], row["counter"]): row for row in rows_of(to_arrow(sketch.profile()))}
    read, counter = rows["read", False], rows["read", True]
    assert (read["nbytes"], read["cpu_ns"], read["worker"], read["label"]) == (0, None, None, None)
    assert (read["epoch"], read["sample"], read["detail"]) == (None, 3, "/data/\\udcff.npy")
    assert (counter["nbytes"], counter["device_nbytes"], counter["cpu_ns"]) == (100, 40, None)
    assert (counter["self_ns"], counter["exposed_ns"]) == (None, None)
    decode, forward = rows["decode", False], rows["forward:cuda:0", False]
    assert (decode["summed"], decode["estimated"], decode["pieces"]) == (True, True, 7)
    assert (forward["device"], forward["sample_detail"], forward["busy_ns"]) == (True, True, None)
    assert forward["lane"].endswith("device")
    assert (read["exposed_ns"], read["hidden_ns"], read["exposed_share"]) == (4, 0, 1.0)


def test_times_are_those_of_the_clock_on_the_wall() -> None:
    profile = run_of()
    table = to_arrow(profile)
    wall = table["start"].to_numpy().astype("datetime64[ns]").astype(np.int64)
    assert (wall - table["start_ns"].to_numpy() == WALL_NS).all()
    assert (table["end_ns"].to_numpy() - table["start_ns"].to_numpy() ==
            table["duration_ns"].to_numpy()).all()  # fmt: skip


def test_an_empty_run_is_an_empty_table() -> None:
    profile = run_of()
    table = to_arrow(replace(profile, spans=profile.spans[:0]))
    assert table.num_rows == 0
    assert table.schema.equals(to_arrow(profile).schema)


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
    work = frame[frame["busy_ns"].notna()]
    grouped = work.groupby(["run", "stage"], observed=True)["exposed_ns"].sum()
    assert {key: int(total) for key, total in grouped.items()} == expected
    assert str(frame["start"].dtype) == "datetime64[ns, UTC]"
    lazy = polars.scan_parquet(path).filter(polars.col("busy_ns").is_not_null())
    totals = lazy.group_by("run", "stage").agg(polars.col("exposed_ns").sum()).collect()
    assert {(run, stage): total for run, stage, total in totals.iter_rows()} == expected
    assert frame["worker"].isna().any()
    assert len(frame) == len(first.spans) + len(second.spans)


def test_a_file_has_the_schema_its_metadata_and_zstd(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="reads what was written")
    profile = run_of()
    write_parquet(tmp_path / "run.parquet", [Run(profile)])
    file = parquet.ParquetFile(tmp_path / "run.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().schema.equals(to_arrow(profile).schema, check_metadata=True)
    assert "run" not in file.schema_arrow.names


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] in {"pyarrow", "torch"}]:
        monkeypatch.setitem(sys.modules, name, None)
    real = builtins.__import__

    def refuse(name: str, *more: Any, **named: Any) -> Any:
        if name.partition(".")[0] in {"pyarrow", "torch"}:
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    return


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory of three batches that the training loop made itself."""
    directory = RunDirectory.create(tmp_path / "run", {"workers": 0, "framework": "workers"})
    recorder = directory.recorder(role="consumer", clock=FakeClock(1000, wall_offset_ns=WALL_NS))
    for batch in range(3):
        begin = 10 * batch
        recorder.emit(Kind.READ, begin, begin + 4, batch=batch, epoch=0)
        maker = recorder.string("consumer")
        recorder.emit(Kind.WAIT, begin, begin + 5, batch=batch, epoch=0, detail=maker)
    recorder.close()
    return directory.path


@pytest.mark.usefixtures("without_pyarrow")
def test_a_run_is_read_without_torch_and_without_pyarrow(run: Path, tmp_path: Path) -> None:
    profile = iobench.open_profile(run)
    assert iobench.exposure(profile).whole.wait_ns == 15
    for ask in (
        lambda: iobench.to_arrow(profile),
        lambda: write_parquet(tmp_path / "a.parquet", [Run(profile)]),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'iobench\[parquet\]'"):
            ask()
    assert not (tmp_path / "a.parquet").exists()


def test_the_command_writes_both_beside_the_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, table = tmp_path / "run.json.gz", tmp_path / "run.parquet"
    assert main(["report", str(run), "--trace", str(trace), "--parquet", str(table)]) == 0
    told = capsys.readouterr()
    assert "Exposed I/O" in told.out
    first, second = told.err.splitlines()
    assert first.startswith(f"wrote {trace} (")
    assert first.endswith("open it in ui.perfetto.dev or chrome://tracing")
    assert second.startswith(f"wrote {table} (")
    parquet = pytest.importorskip("pyarrow.parquet", reason="reads what was written")
    assert sum(parquet.read_table(table)["exposed_ns"].drop_null().to_pylist()) == 12 + 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "run.txt"], "run.txt: expected a name that ends in .json or .json.gz"),
        (
            ["--torch-trace", "a.json"],
            "--torch-trace: needs --trace, into which it is merged; give both",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_report(
    run: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err


def test_nothing_is_left_where_a_table_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.parquet"
    path.write_text("before")
    profile = run_of()
    with pytest.raises(ProfileError, match="no run to write"):
        write_parquet(path, [])
    with pytest.raises(StorageError, match="cannot be written"):
        write_parquet(tmp_path / "nowhere" / "run.parquet", [Run(profile)])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(StorageError, match=r"run\.parquet: cannot be written \(No space left"):
        write_parquet(path, [Run(profile)])
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]
