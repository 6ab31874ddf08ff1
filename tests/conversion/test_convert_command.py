"""``iobench convert`` through the command line: what it makes, what it says, what it refuses."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.chunks.decoded_chunks import reopen_files
from iobench.cli import main
from iobench.conversion import conversion_run
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_store

DATA = Path(__file__).parents[1] / "data"
MEMBERS = "era5/era5-levels-members.grib"
YR = [f"maelstrom-yr/air_temperature/5GB/{day}.nc" for day in ("20200301T03Z", "20200302T09Z")]
COMMAND = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]
OUTCOME = {
    "kind", "path", "dataset", "format", "stand_in", "was_finished", "n_samples", "in_nbytes",
    "out_nbytes", "wrote_nbytes", "wall_s", "stages_s", "stages_nbytes", "memory_nbytes",
    "peak_rss_nbytes", "idle_rss_nbytes", "n_resumed", "n_written", "shards", "is_finished",
    "lossy", "bytes_per_s", "next_command",
}  # fmt: skip
PLAN = {
    "kind", "out", "n_samples", "n_shards", "shard_n_samples", "in_nbytes", "out_nbytes",
    "read_amplification", "passes", "memory_nbytes", "scratch_nbytes", "free_needed_nbytes",
    "free_nbytes",
    "convert_s", "fits",
    "probe_n_samples", "lossy", "unknown_ranges",
}  # fmt: skip
OBJECTS = '''
import os
import signal
import numpy as np

class Objects:
    """Twelve samples; the sixth sends this process a signal, if a file says which."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        if number >= 12:
            raise IndexError(number)
        if number == 5 and os.path.exists("signal"):
            os.kill(os.getpid(), int(open("signal").read()))
        return {"x": np.full((64, 64), number, "f4")}
'''


@pytest.fixture(autouse=True)
def no_open_files() -> None:
    """Forget descriptors that other tests left open for files of the same relative path."""
    reopen_files()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copy files of tests/data into the folder the command runs in; return their names."""
    monkeypatch.chdir(tmp_path)

    def copy(*names: str) -> list[str]:
        return [Path(shutil.copy(DATA / name, tmp_path)).name for name in names]

    return copy


@pytest.fixture
def converts(capsys: pytest.CaptureFixture[str]):
    """Convert in this process; return the JSON it prints."""

    def run(*arguments: str) -> dict:
        code = main(["convert", *arguments, "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Convert what cannot be; return the one line that is said last."""

    def run(*arguments: str) -> str:
        assert main(["convert", *arguments]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.splitlines()[-1]

    return run


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_without_a_terminal_a_line_a_shard_has_rate_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("objects.py").write_text(OBJECTS)
    seconds = itertools.count()
    monkeypatch.setattr(conversion_run, "stopwatch", lambda: lambda: float(next(seconds)))
    words = ("objects:Objects", "out", "--to", "numpy", "--shard-size", "16KiB")
    assert main(["convert", *words]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "shards written" in line]
    assert len(lines) >= 9
    pattern = r"\d+ shards written: \d+ of 12 samples, [\d.e+-]+ MB/s, \d+ s left"
    assert all(re.fullmatch(pattern, line) for line in lines)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("to", ["numpy", "tfrecord", "zarr"])
def test_own_grib_in_every_format(own, converts, to: str) -> None:
    if to == "zarr":
        pytest.importorskip("zarr", reason="stores are checked with the library")
    [name] = own(MEMBERS)
    done = converts(name, "out", "--to", to, "--sample-dim", "time")
    assert set(done) == OUTCOME
    assert (done["n_samples"], done["n_written"], done["was_finished"]) == (4, 1, False)
    assert set(done["stages_s"]) >= {"read", "decode", "preprocess", "write"}
    assert done["in_nbytes"] == done["stages_nbytes"]["read"] > 2_000_000
    assert done["peak_rss_nbytes"] >= done["idle_rss_nbytes"] > 0
    assert done["bytes_per_s"] > 0
    [shard] = done["shards"]
    assert all(file["crc32c"] >= 0 and file["nbytes"] > 0 for file in shard["files"])
    store = open_store(Path("out"))
    assert len(store) == 4
    verify_store(store)
    store.close()
    again = converts(name, "out", "--to", to, "--sample-dim", "time")
    assert again["was_finished"]
    assert again["shards"] == done["shards"]


def test_several_files_variables_and_targets(own, converts) -> None:
    names = own(*YR)
    converts(
        *names, "out", "--to", "numpy", "--sample-dim", "leadtime",
        "--variables", "static_predictors,predictors", "--target-variables", "target_mean",
    )  # fmt: skip
    assert {v.name: v.role for v in open_store(Path("out")).spec} == {
        "static_predictors": "input", "predictors": "input", "target_mean": "target",
    }  # fmt: skip


def test_a_tiny_stand_in_of_a_dataset(converts, tmp_path: Path, store_dir: Path) -> None:
    source = ("maelstrom-ens10", "--tiny", "--store-dir", str(store_dir))
    out, decoded = tmp_path / "out", tmp_path / "decoded"
    done = converts(*source, str(out), "--to", "tfrecord", "--format-option", "encoding=bytes")
    assert done["stand_in"]
    assert open_store(out).manifest.options == {"encoding": "bytes"}
    converts(*source, str(decoded), "--to", "numpy", "--stage", "decoded")
    assert "inputs" not in open_store(decoded).spec.names


def special(shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 values of every kind: -0.0, subnormals, infinities, NaNs with a payload."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, size=shape, dtype="u4")
    bits.ravel()[:5] = [0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC12345]
    return bits.view("f4")


T = ("own.nc", "--to", "numpy", "--sample-dim", "time", "--variables", "t")


@pytest.fixture
def netcdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a NetCDF file of 6 times, 8 rows and 10 columns; return the values of ``t``."""
    netcdf4 = pytest.importorskip("netCDF4", reason="writes the file")
    monkeypatch.chdir(tmp_path)

    def write(values: np.ndarray | None = None, *, zlib: bool = False) -> np.ndarray:
        values = special((6, 8, 10)) if values is None else values
        with netcdf4.Dataset("own.nc", "w") as file:
            for dim, length in (("time", 6), ("y", 8), ("x", 10)):
                file.createDimension(dim, length)
            chunks = {"zlib": True, "chunksizes": (3, 8, 10)} if zlib else {"contiguous": True}
            variable = file.createVariable(
                "t", "f4", ("time", "y", "x"), fill_value=False, **chunks
            )
            variable.set_auto_maskandscale(False)
            variable[:] = values
        return values

    return write


@pytest.fixture
def kelvin(netcdf) -> np.ndarray:
    return netcdf(np.random.default_rng(1).normal(280, 10, (6, 8, 10)).astype("f4"))


def test_lossy_on_request_and_measured(kelvin, converts, refused) -> None:
    done = converts(*T, "out", "--dtype", "float16")
    stored = np.stack([open_store(Path("out"))[n]["t"] for n in range(6)])
    off = stored.astype("f8") - kelvin
    assert done["lossy"]["t"]["max_absolute_error"] == np.abs(off).max() > 0
    assert done["lossy"]["t"]["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=5e-5)
    planned = converts(*T, "plan", "--dtype", "float16", "--dry-run")
    assert planned["probe_n_samples"] == 6  # all there are
    assert planned["lossy"] == done["lossy"]
    assert "own.nc sample 0" in refused(*T, "strict", "--dtype", "int16", "--range", "t=0:1")


def test_a_range_that_is_not_given_is_found_by_a_first_pass(kelvin, converts) -> None:
    own = ("--dtype", "int16", "--range", f"t={float(kelvin.min())!r}:{float(kelvin.max())!r}")
    planned = converts(*T, "plan", "--dtype", "int16", "--dry-run")
    given = converts(*T, "plan", *own, "--dry-run")
    assert (planned["unknown_ranges"], given["unknown_ranges"]) == (["t"], [])
    assert planned["in_nbytes"] == 2 * given["in_nbytes"]
    converts(*T, "out", "--dtype", "int16")
    converts(*T, "same", *own)
    found, same = (open_store(Path(name)) for name in ("out", "same"))
    assert found.manifest.spec == same.manifest.spec
    assert [found[n]["t"].tobytes() for n in range(6)] == [same[n]["t"].tobytes() for n in range(6)]


def test_the_plan(own, converts, tmp_path: Path) -> None:
    [name] = own(MEMBERS)
    common = (name, "out", "--to", "numpy", "--sample-dim", "time", "--shard-size", "2500000")
    planned = converts(*common, "--dry-run", "--workers", "1")
    assert set(planned) == PLAN
    assert {path.name for path in tmp_path.iterdir()} == {name}
    done = converts(*common)
    assert planned["n_shards"] == len(done["shards"]) == 2
    assert planned["n_samples"] == done["n_samples"]
    assert planned["in_nbytes"] == done["in_nbytes"]
    assert planned["out_nbytes"] == pytest.approx(done["out_nbytes"], rel=0.01)
    assert planned["fits"]
    assert planned["convert_s"] > 0


def test_the_plan_reads_each_chunk_once_as_the_conversion_does(netcdf, converts) -> None:
    netcdf(zlib=True)
    # Two samples a shard, of chunks that hold three.
    for more in ((), ("--memory", "3600"), ("--shard-size", "640")):
        planned = converts(*T, "out", "--dry-run", *more)
        assert (planned["read_amplification"], planned["passes"]) == (1, 1)
        done = converts(*T, f"out{len(more)}{more[:1]}", *more)
        assert done["in_nbytes"] == planned["in_nbytes"]


@pytest.mark.timeout(110)
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_conversion_goes_on(iobench, tmp_path: Path, number: int) -> None:
    (tmp_path / "objects.py").write_text(OBJECTS)
    words = ["--to", "numpy", "--shard-size", "32768", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "signal").write_text(str(int(number)))
    done = iobench("convert", "objects:Objects", "out", *words, env=environment)
    assert done.returncode == 75, done.stderr
    said = f"run it again: iobench convert objects:Objects out {' '.join(words)}"
    assert done.stderr.splitlines()[-1].endswith(said)
    assert not (tmp_path / "out/iobench.json").exists()
    (tmp_path / "signal").unlink()
    for out in ("out", "whole"):
        done = iobench("convert", "objects:Objects", out, *words, env=environment)
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_folder_that_another_process_begins_to_mark_is_ours(converts, netcdf) -> None:
    netcdf(zlib=True)
    Path("out").mkdir()
    Path("out/..iobench-item.json.dc2bb0d5.iobench-tmp").write_text("{")
    converts("own.nc", "out", "--to", "numpy", "--sample-dim", "time")
