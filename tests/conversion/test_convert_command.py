"""``iobench convert`` and ``verify``: what they make, what they say, what they refuse."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from iobench.conversion import conversion_run
from iobench.conversion.convert_request import ConvertRequest
from iobench.errors import OptionError, UnknownNameError
from iobench.sizes import parse_nbytes
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_store
from iobench.testing import flip_bit

netCDF4 = pytest.importorskip("netCDF4", reason="writes the source files")
xarray = pytest.importorskip("xarray", reason="says what the source files hold")

DATA = Path(__file__).parents[1] / "data"
MEMBERS = "era5/era5-levels-members.grib"
YR = [f"maelstrom-yr/air_temperature/5GB/{day}.nc" for day in ("20200301T03Z", "20200302T09Z")]
OUTCOME = {
    "kind", "path", "dataset", "format", "stand_in", "was_finished", "n_samples", "in_nbytes",
    "out_nbytes", "wrote_nbytes", "wall_s", "stages_s", "stages_nbytes", "memory_nbytes",
    "n_resumed", "n_written", "shards", "is_finished",
    "lossy", "bytes_per_s", "next_command",
}  # fmt: skip
PLAN = {
    "kind", "out", "n_samples", "n_shards", "shard_n_samples", "in_nbytes", "out_nbytes",
    "read_amplification", "passes", "memory_nbytes", "scratch_nbytes", "free_nbytes",
    "convert_s", "fits", "probe_n_samples", "lossy", "unknown_ranges",
}  # fmt: skip


@pytest.fixture
def own(iobench_here, tmp_path):
    """Copy files of tests/data into the folder the command runs in; return their names."""
    return lambda *names: [Path(shutil.copy(DATA / name, tmp_path)).name for name in names]


@pytest.fixture
def converts(iobench_here):
    """Convert; return the JSON it prints, and what was noted."""

    def run(*arguments):
        done = iobench_here("convert", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) | {"noted": done.stderr.splitlines()}

    return run


@pytest.fixture
def refused(iobench_here):
    """Convert, or run another command, that is refused; return the line that is said."""

    def run(*arguments, command="convert"):
        done = iobench_here(command, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr.splitlines()[-1]

    return run


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# ---- what is made and said


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("to", ["numpy", "tfrecord", "zarr"])
def test_own_grib_in_every_format(own, converts, to):
    [name] = own(MEMBERS)
    done = converts(name, "out", "--to", to, "--sample-dim", "time")
    assert set(done) - {"noted"} == OUTCOME
    assert (done["n_samples"], done["n_written"], done["was_finished"]) == (4, 1, False)
    assert set(done["stages_s"]) >= {"read", "decode", "preprocess", "write"}
    assert done["in_nbytes"] == done["stages_nbytes"]["read"] > 2_000_000
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


def test_several_files_variables_and_targets(own, converts):
    converts(
        *own(*YR), "out", "--to", "numpy", "--sample-dim", "leadtime",
        "--variables", "static_predictors,predictors", "--target-variables", "target_mean",
    )  # fmt: skip
    assert {v.name: v.role for v in open_store(Path("out")).spec} == {
        "static_predictors": "input", "predictors": "input", "target_mean": "target",
    }  # fmt: skip


@pytest.mark.long
def test_a_tiny_stand_in_of_a_dataset(converts, store_dir):
    source = ("maelstrom-ens10", "--tiny", "--store-dir", store_dir)
    done = converts(*source, "out", "--to", "tfrecord", "--format-option", "encoding=bytes")
    assert done["stand_in"]
    assert open_store("out").manifest.options == {"encoding": "bytes"}


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


def test_without_a_terminal_a_line_a_shard_has_rate_and_time_left(converts, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("objects.py").write_text(OBJECTS)
    seconds = itertools.count()
    monkeypatch.setattr(conversion_run, "stopwatch", lambda: lambda: float(next(seconds)))
    done = converts("objects:Objects", "out", "--to", "numpy", "--shard-size", "16KiB")
    lines = [line for line in done["noted"] if "shards written" in line]
    assert len(lines) >= 9
    pattern = r"\d+ shards written: \d+ of 12 samples, [\d.e+-]+ MB/s, \d+ s left"
    assert all(re.fullmatch(pattern, line) for line in lines)


def test_what_a_dataset_raises_is_one_line_that_names_sample_and_line(iobench, tmp_path):
    source = OBJECTS.replace('return {"x"', 'return 1 // (number - 7) and {"x"')
    (tmp_path / "objects.py").write_text(source)
    done = iobench("convert", "objects:Objects", "out", "--to", "numpy")
    line = source[: source.index("return 1 //")].count("\n") + 1
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "iobench: objects:Objects: read+decode+preprocess of sample 7 raised ZeroDivisionError: "
        f"integer division or modulo by zero ({tmp_path}/objects.py:{line}); mend it"
    )


@pytest.mark.timeout(110)
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_conversion_goes_on(iobench, tmp_path, number):
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


# ---- sources that are written here


ROW = 8, 9


def numbers(n, dtype="f4"):
    return np.random.default_rng(n).integers(0, 100, (n, *ROW)).astype(dtype)


def write(name, times, values, *, chunks=None, fill=None, zlib=True, **attributes):
    """Write one variable as its numbers are stored."""
    with netCDF4.Dataset(name, "w") as file:
        for dim, length in zip(("time", "y", "x"), values.shape, strict=True):
            file.createDimension(dim, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time[:] = "hours since 2020-01-01", times
        variable = file.createVariable(
            "t", values.dtype, ("time", "y", "x"), chunksizes=chunks, fill_value=fill, zlib=zlib
        )
        variable.set_auto_maskandscale(False)
        variable.setncatts(attributes)
        variable[:] = values
    return name


T = ("--to", "numpy", "--sample-dim", "time", "--variables", "t")


def assert_holds(out, *names):
    """Compare a store with what xarray reads of its files, bit for bit."""
    values = []
    for name in names:
        with xarray.open_dataset(name, decode_times=False) as opened:
            values.append(opened["t"].values)
    expected = np.concatenate(values)
    store = open_store(out)
    verify_store(store)
    assert len(store) == len(expected)
    for number, each in enumerate(expected):
        assert store[number]["t"].dtype == each.dtype
        assert store[number]["t"].tobytes() == each.tobytes()


@pytest.fixture
def kelvin(iobench_here):
    values = np.random.default_rng(1).normal(280, 10, (6, *ROW)).astype("f4")
    write("own.nc", range(6), values, chunks=(3, *ROW))
    return values


def test_lossy_on_request_and_measured(kelvin, converts, refused):
    done = converts("own.nc", "out", *T, "--dtype", "float16")
    stored = np.stack([open_store("out")[n]["t"] for n in range(6)])
    off = stored.astype("f8") - kelvin
    assert done["lossy"]["t"]["max_absolute_error"] == np.abs(off).max() > 0
    assert done["lossy"]["t"]["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=5e-5)
    planned = converts("own.nc", "plan", *T, "--dtype", "float16", "--dry-run")
    assert planned["probe_n_samples"] == 6  # all there are
    assert planned["lossy"] == done["lossy"]
    line = refused("own.nc", "strict", *T, "--dtype", "int16", "--range", "t=0:1")
    assert "own.nc sample 0" in line


def test_a_range_that_is_not_given_is_found_by_a_first_pass(kelvin, converts):
    own = ("--dtype", "int16", "--range", f"t={float(kelvin.min())!r}:{float(kelvin.max())!r}")
    planned = converts("own.nc", "plan", *T, "--dtype", "int16", "--dry-run")
    given = converts("own.nc", "plan", *T, *own, "--dry-run")
    assert (planned["unknown_ranges"], given["unknown_ranges"]) == (["t"], [])
    assert planned["in_nbytes"] == 2 * given["in_nbytes"]
    converts("own.nc", "out", *T, "--dtype", "int16")
    converts("own.nc", "same", *T, *own)
    found, same = open_store("out"), open_store("same")
    assert found.manifest.spec == same.manifest.spec
    assert [found[n]["t"].tobytes() for n in range(6)] == [same[n]["t"].tobytes() for n in range(6)]


def test_the_plan(own, converts):
    [name] = own(MEMBERS)
    common = (name, "out", "--to", "numpy", "--sample-dim", "time", "--shard-size", "2500000")
    planned = converts(*common, "--dry-run", "--workers", "1")
    assert set(planned) - {"noted"} == PLAN
    assert {path.name for path in Path().iterdir()} == {name}
    done = converts(*common)
    assert planned["n_shards"] == len(done["shards"]) == 2
    assert planned["n_samples"] == done["n_samples"]
    assert planned["in_nbytes"] == done["in_nbytes"]
    assert planned["out_nbytes"] == pytest.approx(done["out_nbytes"], rel=0.01)
    assert planned["fits"]
    assert planned["convert_s"] > 0


def test_the_plan_reads_each_chunk_once_as_the_conversion_does(kelvin, converts):
    # Two samples a shard, of chunks that hold three.
    for number, more in enumerate([(), ("--memory", "3600"), ("--shard-size", "640")]):
        planned = converts("own.nc", "out", *T, "--dry-run", *more)
        assert (planned["read_amplification"], planned["passes"]) == (1, 1)
        done = converts("own.nc", f"out{number}", *T, *more)
        assert done["in_nbytes"] == planned["in_nbytes"]
    # A folder that another process begins to mark is ours.
    Path("new").mkdir()
    Path("new/..iobench-item.json.dc2bb0d5.iobench-tmp").write_text("{")
    converts("own.nc", "new", *T)


@pytest.mark.parametrize("memory", [(), ("--memory", "1MiB")], ids=["default", "little"])
def test_files_of_other_chunkings_filters_and_packings(converts, memory):
    half, quarter = np.float32(0.5), np.float32(0.25)
    names = [
        write("a.nc", range(5), numbers(5), chunks=(3, 4, 9)),
        write("b.nc", range(5, 9), numbers(4), chunks=(1, 8, 3), zlib=False),
        write("c.nc", range(9, 12), numbers(3), chunks=(3, 1, 1), fill=np.float32(50)),
        write("d.nc", range(12, 14), numbers(2), zlib=False),
        write("e.nc", range(14, 17), numbers(3, "i2"), fill=np.int16(7), scale_factor=half),
        write("f.nc", range(17, 19), numbers(2, "i2"), fill=np.int16(9), scale_factor=quarter,
              add_offset=np.float32(-3)),
        write("g.nc", range(19, 20), numbers(1, "i1"), _Unsigned="true", scale_factor=half),
    ]  # fmt: skip
    converts(*names, "out", *T, *memory)
    assert_holds("out", *names)


@pytest.mark.parametrize(
    ("kept", "word"), [(0.0, "is not NetCDF"), (0.5, "truncated"), (0.97, "truncated")]
)
def test_a_file_that_ends_early_among_others(refused, converts, kept, word):
    names = [write(f"{n}.nc", [n], numbers(1)) for n in range(3)]
    whole = Path("1.nc").read_bytes()
    os.truncate("1.nc", int(kept * len(whole)))
    line = refused(*names, "out", *T)
    assert "1.nc" in line
    assert word in line
    assert line.endswith(("fetch the file again", "fetch it again"))
    assert not Path("out").exists()
    Path("1.nc").write_bytes(whole)
    assert converts(*names, "out", *T)["noted"] == []
    assert_holds("out", *names)
    for name, units in zip(names, ("K", "degC", "K"), strict=True):
        with netCDF4.Dataset(name, "a") as file:
            file["t"].setncattr("units", units)
    [line] = converts(*names, "other", *T)["noted"]  # that units differ
    assert "degC" in line


# ---- iobench verify


@pytest.fixture(params=["numpy", "tfrecord", "zarr"])
def store(request, own, converts):
    """Convert a GRIB file beside the store to two shards."""
    words = ("--to", request.param, "--sample-dim", "time", "--shard-size", "2500000")
    converts(*own(MEMBERS), "out", *words)
    return Path("out").absolute()


@pytest.mark.quick_cases(1)
def test_a_store_as_written_and_as_its_source_has_it(store, iobench_here):
    def verified(*words):
        done = iobench_here("verify", store, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found, name = verified(), Path(MEMBERS).name
    assert (found["as_written"], found["n_compared"], found["n_samples"]) == (True, 0, 4)
    assert found["nbytes"] > 4_600_000
    assert len(found["not_covered"]) == 1
    found = verified("--against", name)
    assert (found["against"], found["not_covered"]) == (name, [])
    assert found["n_compared"] == 4


@pytest.mark.quick_cases(1)
def test_one_bit_of_a_store_or_of_its_source_is_found_and_named(store, iobench_here, refused):
    manifest = json.loads((store / "iobench.json").read_text())
    files = [store / file["name"] for file in manifest["shards"][1]["files"]]
    file = max(files, key=lambda path: path.stat().st_size)
    flip_bit(file, file.stat().st_size // 3)
    line = refused(store, command="verify")
    assert line.startswith(f"iobench: {file}: ")
    assert "shard 1" in line
    said = json.loads(iobench_here("verify", store, "--json").stdout)
    assert (said["as_written"], f"iobench: {said['error']}") == (False, line)
    flip_bit(file, file.stat().st_size // 3)

    file = store / "iobench.json"
    text = file.read_bytes()
    for place in ('"provenance"', '"fingerprints"', '"plan"', '"samples"', '\n  "crc32c": '):
        start = text.rindex(place.encode()) + len(place)
        flip_bit(file, next(n for n in range(start, len(text)) if text[n : n + 1].isalnum()))
        assert refused(store, command="verify").startswith(f"iobench: {file}: "), place
        file.write_bytes(text)

    message = bytearray(Path(Path(MEMBERS).name).read_bytes())
    message[-5000] ^= 0x10  # a packed value of the last field
    Path("other.grib").write_bytes(message)
    line = refused(store, "--against", "other.grib", command="verify")
    assert "sample 3" in line
    other = DATA / "era5" / "test4.nc"
    assert "out: z" in refused(store, "--against", other, command="verify")


@pytest.mark.parametrize("store", ["numpy"], indirect=True)
def test_a_request_edited_by_hand_is_refused(store, refused):
    manifest = json.loads((store / "iobench.json").read_text())
    for request in ([], {"stage": "decoded"}, {"options": ["a"]}, {"variables": 1}):
        manifest["provenance"]["request"] = request
        (store / "iobench.json").write_text(json.dumps(manifest))
        line = refused(store, "--against", Path(MEMBERS).name, command="verify")
        assert line.startswith("iobench: ")


# ---- requests


def test_sizes():
    sizes = {"1GiB": 1 << 30, "256mib": 256 << 20, "1.5 GB": 1_500_000_000, "4096": 4096}
    assert {text: parse_nbytes("--memory", text) for text in sizes} == sizes
    for text in ("", "0", "-1", "1XB", "big", "1e9", "nan", "9" * 30, "1 G i B"):
        with pytest.raises(OptionError, match=r"--memory .*expected a size"):
            parse_nbytes("--memory", text)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"to": "numpi"}, UnknownNameError, "did you mean numpy"),
        ({"to": "source"}, OptionError, "there is already"),
        ({"workers": 0}, OptionError, "--workers 0"),
        ({"part": "3/2"}, OptionError, "expected K/N, K from 1 to N"),
    ],
)
def test_requests_that_cannot_be(given, error, words):
    with pytest.raises(error, match=words):
        ConvertRequest(**{"targets": ("a",), "to": "numpy", "out": Path("o"), **given})


def test_what_a_manifest_keeps_names_no_path():
    request = ConvertRequest(
        targets=("/some/where.nc",), to="numpy", out=Path("/else/where"), data_dir=Path("/d"),
        sample_dim="time", variables=("t",), workers=3, memory_nbytes=5,
    )  # fmt: skip
    assert request.to_dict() == {
        "sample_dim": "time", "variables": ["t"], "stage": "preprocessed",
    }  # fmt: skip
    assert replace(request, tiny=True).to_dict()["tiny"]
