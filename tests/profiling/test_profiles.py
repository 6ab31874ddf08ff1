"""``iobench profile`` of finished stores, alone, in turns, and beside what they were made of."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.cli import main
from iobench.profiling.tracing import ProfileTracing
from iobench.recording.digests import read_digests
from iobench.storage.darshan_setup import find_runtime

xarray = pytest.importorskip("xarray", reason="it writes the file that is converted")

N_STEPS, N_LEVELS, N_LATITUDES, N_LONGITUDES = 12, 3, 16, 24
BRIEF = ("--compute", "none")


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A file of two variables along time, as users have them."""
    pytest.importorskip("h5py", reason="it reads NetCDF-4")
    random = np.random.default_rng(3)
    dims = ("time", "level", "latitude", "longitude")
    shape = (N_STEPS, N_LEVELS, N_LATITUDES, N_LONGITUDES)
    made = xarray.Dataset(
        {
            "t": (dims, random.normal(280, 10, shape).astype("f4")),
            "u": (dims, random.normal(0, 5, shape).astype("f4")),
        },
        coords={"time": np.arange(N_STEPS) * np.timedelta64(6, "h") + np.datetime64("2020-01-01")},
    )
    path = tmp_path / "own.nc"
    made.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.fixture
def converted(own_file: Path, tmp_path: Path, iobench_here) -> Callable[..., Path]:
    """Convert the file; return the store."""

    def convert(out: str, *words: str) -> Path:
        done = iobench_here(
            "convert", own_file.name, out, "--sample-dim", "time", "--store-dir", tmp_path / "st",
            *words,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return tmp_path / out

    return convert


@pytest.fixture
def profiled(iobench_here, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Profile; return the JSON of its runs."""

    def run(*words: str | Path) -> list[dict[str, Any]]:
        workers = () if "--workers" in words else ("--workers", "0")
        words = (*words, *BRIEF, *workers)
        done = iobench_here("profile", *words, "--json", "--store-dir", tmp_path / "st")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
        for one in found:
            assert sum(one["exposed_ns"].values()) == one["wait_ns"]
        return found

    return run


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize("container", ["zarr", "tfrecord", "numpy"])
def test_a_finished_store_is_profiled_as_it_is(converted, profiled, container: str) -> None:
    store = converted("mine", "--to", container)
    held = sorted(store.rglob("*"))
    (run,) = profiled(store, "--batches", "10", "--batch-size", "2")
    assert (run["format"], run["label"], run["batches"]) == (container, "mine", 10)
    known = store_of(run)
    assert (known["target"], known["n_samples"]) == (str(store), N_STEPS)
    assert sorted(store.rglob("*")) == held
    assert {"read"} <= {row["stage"] for row in run["stages"]}


def test_stores_take_turns_with_their_source(
    converted, profiled, own_file: Path, tmp_path: Path
) -> None:
    stores = [converted("a.zarr", "--to", "zarr"), converted("b.tf", "--to", "tfrecord")]
    runs = profiled(
        own_file, *stores, "--sample-dim", "time", "--batches", "30", "--digests",
        "--pipeline", "own", "--out", tmp_path / "run",
    )  # fmt: skip
    assert [run["label"] for run in runs] == ["source", "a.zarr", "b.tf"]
    assert {run["n_samples"] for run in runs} == {N_STEPS}
    first, *others = (_digests(tmp_path / "run" / run["label"]) for run in runs)
    assert len(set(first.values())) == N_STEPS
    assert all(each == first for each in others)


def test_the_same_samples_of_stores_that_hold_more_are_loaded(
    converted, profiled, tmp_path: Path
) -> None:
    whole = converted("whole.zarr", "--to", "zarr")
    part = tmp_path / "part"
    (probe,) = profiled("own.nc", "--sample-dim", "time", "--format", "numpy", "--batches", "5")
    shutil.copytree(probe["store_path"], part)
    runs = profiled(part, whole, "--epochs", "2", "--digests", "--out", tmp_path / "run")
    assert [run["n_samples"] for run in runs] == [5, 5]
    seen = [_digests(tmp_path / "run" / name) for name in ("part", "whole.zarr")]
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == 5


def store_of(run: dict[str, Any]) -> dict[str, Any]:
    """Return what ``run.json`` says of the store that was read."""
    return json.loads((Path(run["run"]) / "run.json").read_text())["store"]


def _digests(run: Path) -> dict[int, int | None]:
    """Return the digest of each batch, of one sample, that a run made."""
    found = read_digests(run)
    assert found is not None
    assert {each.n_samples for each in found} == {1}
    return {each.batch: each.digest for each in found}


def test_splits_and_windows_of_a_store_alone(
    converted, profiled, own_file: Path, tmp_path: Path
) -> None:
    store = converted("mine.zarr", "--to", "zarr")
    kept = tmp_path / "gone"
    own_file.rename(kept)
    days = "--split-by", "time=2020-01-01/2020-01-02"
    (run,) = profiled(store, *days, "--epochs", "1", "--digests", "--out", tmp_path / "split")
    assert run["n_samples"] == len(_digests(tmp_path / "split")) == 8
    (run,) = profiled(store, "--window=-1,0:1", "--batches", "12")
    assert run["n_samples"] == N_STEPS - 2
    told = json.loads((Path(run["run"]) / "run.json").read_text())
    assert told["windows"]["n_windows"] == N_STEPS - 2
    kept.rename(own_file)
    words = ("--sample-dim", "time", "--window=-1,0:1", *days, "--batches", "12")
    runs = profiled(own_file, store, *words)
    assert {run["n_samples"] for run in runs} == {6}


@pytest.mark.long
def test_layouts_are_compared_in_one_table_with_their_bytes_on_disk(
    profiled, own_file: Path, iobench_here, tmp_path: Path
) -> None:
    layouts = ("zarr", "zarr:chunk-samples=4,codec=bitround:keepbits=3,shuffle,zstd")
    words = ("--format", ",".join(layouts), "--sample-dim", "time", "--batches", "6")
    runs = profiled(own_file, *words, "--out", tmp_path / "run")
    assert [run["label"] for run in runs] == list(layouts)
    facts = [json.loads((Path(run["run"]) / "run.json").read_text()) for run in runs]
    assert facts[1]["store"]["nbytes"] < facts[0]["store"]["nbytes"] / 2
    table = iobench_here("report", tmp_path / "run", "--full").stdout
    assert "on disk" in table


@pytest.mark.parametrize("name", ["a store", "./-new"])
def test_a_conversion_ends_with_the_command_that_profiles_it(
    own_file: Path, iobench_here, tmp_path: Path, name: str
) -> None:
    words = ("convert", own_file.name, name, "--to", "zarr", "--sample-dim", "time")
    text = iobench_here(*words, "--store-dir", tmp_path / "st").stdout
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("iobench ")]
    assert [line.split()[1] for line in lines] == ["verify", "profile"]
    for line, more in zip(lines, ((), ("--batches", "3", *BRIEF, "--workers", "0")), strict=True):
        ran = iobench_here(*shlex.split(line)[1:], *more)
        assert ran.returncode == 0, ran.stderr


def test_a_store_in_a_bucket_is_profiled(
    own_file: Path, iobench_here, profiled, bucket: str, tmp_path: Path
) -> None:
    there = f"s3://{bucket}/own.zarr"
    done = iobench_here("convert", own_file.name, there, "--to", "zarr", "--sample-dim", "time",
                        "--store-dir", tmp_path / "st", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["next_command"] == f"iobench profile {there}"
    (run,) = profiled(there, "--batches", "5")
    assert (run["label"], run["batches"]) == ("own.zarr", 5)
    pair = profiled(own_file, there, "--sample-dim", "time", "--batches", "5", "--pipeline", "own")
    assert [run["label"] for run in pair] == ["source", "own.zarr"]


def test_a_plain_loop_beside_ours(profiled, own_file: Path, tmp_path: Path) -> None:
    words = ("--sample-dim", "time", "--batches", "6", "--batch-size", "2", "--workers", "2")
    runs = profiled(own_file, *words, "--pipeline", "upstream,own", "--out", tmp_path / "run")
    upstream, own = runs
    assert [run["pipeline"] for run in runs] == ["upstream", "own"]
    # Neither has more than the other.
    assert upstream["workers"] == (own["workers"] or own["threads"]) == 2
    facts = [json.loads((Path(run["run"]) / "run.json").read_text()) for run in runs]
    assert facts[0]["prefetch"] == facts[1]["prefetch"]
    assert (upstream["batches"], upstream["nbytes"]) == (6, own["nbytes"])
    assert {"fused:read+decode", "collate"} <= {row["stage"] for row in upstream["stages"]}


def test_a_plain_zarr_is_a_source_and_no_store(profiled, own_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="xarray writes Zarr with it")
    xarray.open_dataset(own_file).to_zarr(tmp_path / "theirs.zarr", consolidated=False)
    (run,) = profiled("theirs.zarr", "--sample-dim", "time", "--pipeline", "own", "--batches", "3")
    assert (run["format"], run["store_path"]) == ("source", None)
    assert main(["convert", "theirs.zarr", "ours.zarr", "--to", "zarr", "--sample-dim", "time",
                 "--store-dir", str(tmp_path / "st")]) == 0  # fmt: skip
    runs = profiled("theirs.zarr", "ours.zarr", "--sample-dim", "time", "--batches", "3")
    assert [run["label"] for run in runs][-1] == "ours.zarr"


class Notes(list[str]):
    """A screen that keeps what it is told."""

    def note(self, text: str) -> None:
        self.append(text)


def test_without_a_runtime_it_measures_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DARSHAN_LIB", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"):
        monkeypatch.setenv(name, "")
    screen = Notes()
    with closing(ProfileTracing(("auto",), screen)) as tracing:
        tracing.begin(tmp_path, [], [])
    assert tracing.document["state"] == "off"
    (line,) = screen
    assert "not traced: no libdarshan.so" in line


def test_a_process_that_is_not_the_command_lines_is_never_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Path("/soft/libdarshan.so")
    monkeypatch.setattr("iobench.profiling.tracing.ready_runtime", lambda *_: runtime)
    tracing = ProfileTracing(("auto",), Notes())
    assert tracing.document["state"] == "off"
    assert "/soft/libdarshan.so" in tracing.document["reason"]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_runtime(os.environ) is None, reason="no runtime; DARSHAN_LIB may name one")
@pytest.mark.parametrize("how", ["--framework=workers", "--framework=torch", "--format=tfrecord"])
def test_what_a_profile_reads_is_in_the_logs_of_its_processes(
    iobench, tmp_path: Path, store_dir: Path, how: str
) -> None:
    pytest.importorskip("darshan", reason="reads the logs")
    if "torch" in how:
        pytest.importorskip("torch", reason="loads with torch")
    from iobench.runs.reading import open_profile
    from iobench.storage.darshan_reader import read_traces

    run = tmp_path / "run"
    done = iobench(
        "profile", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--out", run, how,
        "--workers", "2", "--batches", "12", "--compute", "none", "--darshan", "auto",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads((run / "run.json").read_text())
    assert told["darshan"]["state"] == "on", told["darshan"]
    trace = read_traces([run / "darshan"])
    counted = sum(int(each.counters["posix_read_nbytes"].sum()) for each in trace.processes)
    segments = sum(int(each.segments["nbytes"].sum()) for each in trace.processes)
    # Samples are packed in GRIB. The stand-in was made by the same command, and is not in the logs.
    assert segments == counted > 12 * told["sample_nbytes"] * 0.1
    assert all(len(each.marks) >= 2 for each in trace.processes)
    pids = {process.pid for process in open_profile(run).processes}
    assert pids == {each.pid for each in trace.processes}
