"""What is kept of source files is what inspecting them gives, and holds for no changed file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.datasets import catalogue, setup_processes, source_files
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.setup_processes import run_jobs
from iobench.datasets.source_files import inspect_files
from iobench.errors import FileFormatError, OptionError, WorkerError

LONG_AGO = 1_600_000_000 * 10**9


class Seen(msgspec.Struct, frozen=True):
    """What the inspection of these tests finds out."""

    path: Path
    words: Mapping[str, int]
    numbers: np.ndarray[Any, Any]


def look(path: Path) -> Seen:
    content = path.read_bytes()
    return Seen(path, {"size": len(content)}, np.frombuffer(content, np.uint8))


def look_noting(path: Path) -> Seen:
    """Note in a file beside it that the file was inspected: seen from other processes, too."""
    with path.with_suffix(".inspected").open("a") as stream:
        stream.write("x")
    return look(path)


LOOK = Inspection("a test's look", look_noting, Seen)


def put(path: Path, content: bytes, *, at_ns: int = LONG_AGO) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(at_ns, at_ns))
    return path


def times_inspected(path: Path) -> int:
    noted = path.with_suffix(".inspected")
    return len(noted.read_text()) if noted.exists() else 0


def contents(files: Sequence[Path], folder: Path) -> list[bytes]:
    found = catalogued(files, LOOK, cache_dir=folder)
    assert [seen.path for seen in found] == list(files)
    assert [seen.words["size"] for seen in found] == [len(seen.numbers) for seen in found]
    return [seen.numbers.tobytes() for seen in found]


@pytest.fixture
def files(tmp_path):
    return [put(tmp_path / f"{n}.bin", bytes(range(n, n + 3))) for n in range(5)]


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


def test_a_file_is_inspected_once(files, kept):
    expected = [file.read_bytes() for file in files]
    assert [contents(files, kept) for _ in range(3)] == [expected] * 3
    assert list(map(times_inspected, files)) == [1] * 5


def test_a_set_of_files_is_one_file_that_names_none(tmp_path, kept):
    folders = [tmp_path / f"day-{n}" for n in range(40)]
    for folder in folders:
        folder.mkdir()
    files = [put(folder / "secret.bin", b"abc") for folder in folders]
    for some in (files[:30], files):
        contents(some, kept)
        assert len(list(kept.glob(f"*{catalogue.SUFFIX}"))) == 1
    assert list(map(times_inspected, files)) == [1] * 40
    assert not any(b"secret" in path.read_bytes() for path in kept.iterdir())


@pytest.mark.parametrize("what", ["size", "time", "inode"])
def test_a_changed_file_is_inspected_anew(tmp_path, kept, what):
    file = put(tmp_path / "a.bin", b"abc")
    assert contents([file], kept) == [b"abc"]
    if what == "inode":
        put(tmp_path / "b.bin", b"xyz").replace(file)
    else:
        changed = b"abcd" if what == "size" else b"xyz"
        put(file, changed, at_ns=LONG_AGO + (what == "time"))
    expected = file.read_bytes()
    assert contents([file], kept) == [expected] != [b"abc"]
    assert contents([file], kept) == [expected]


def test_a_file_that_grows_while_it_is_inspected_is_not_kept(tmp_path, kept):
    def look_slowly(path: Path) -> Seen:
        seen = look(path)
        put(path, b"abcdef")
        return seen

    file = put(tmp_path / "a.bin", b"abc")
    slow = Inspection(LOOK.name, look_slowly, Seen)
    assert catalogued([file], slow, cache_dir=kept)[0].words["size"] == 3
    put(file, b"abc")
    contents([file], kept)
    assert times_inspected(file) == 1


def test_a_file_just_written_or_gone_is_not_kept(tmp_path, kept):
    """It may change again before the clock of its file system moves on."""
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc")
    contents([file], kept)
    contents([file], kept)
    assert times_inspected(file) == 2
    contents([put(file, b"abc")], kept)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        contents([file], kept)


def test_other_kinds_or_names_are_other_entries(files, kept):
    class Less(msgspec.Struct, frozen=True):
        path: Path

    contents(files, kept)
    less = Inspection(LOOK.name, lambda path: Less(path), Less)
    assert catalogued(files, less, cache_dir=kept) == [Less(path) for path in files]
    named = Inspection("another", look_noting, Seen)
    catalogued(files, named, cache_dir=kept)
    assert times_inspected(files[0]) == 2


def test_what_cannot_be_kept_is_found_each_time(files, kept, tmp_path):
    odd = Inspection("odd", lambda path: {path.name: object()}, dict[str, Any])
    in_the_way = put(tmp_path / "in-the-way", b"")
    for _ in range(2):
        assert catalogued(files[:1], odd, cache_dir=kept)[0].keys() == {"0.bin"}
        assert contents(files, in_the_way) == [file.read_bytes() for file in files]
    contents(files, kept)
    [part] = kept.glob("*.catalogue-*")
    for make in (os.mkfifo, os.mkdir):
        part.rmdir() if part.is_dir() else part.unlink()
        make(part)
        assert contents(files, kept) == [file.read_bytes() for file in files]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_catalogue_is_never_an_error_nor_believed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    files = [put(folder / f"{n}.bin", bytes([n]) * (n + 300)) for n in range(3)]
    expected = [file.read_bytes() for file in files]
    kept = folder / "kept"
    contents(files, kept)
    [part] = kept.glob("*.catalogue-*")
    content = bytearray(part.read_bytes())
    place = data.draw(st.integers(0, 999)) * len(content) // 1000
    how = data.draw(st.sampled_from(["cut", "flip", "zero", "swap", "more"]))
    if how == "cut":
        del content[place:]
    elif how == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "zero":
        content[place : place + 8] = bytes(8)
    elif how == "swap":
        content[place:] = content[place:][::-1]
    else:
        content += content[place:]
    part.write_bytes(content)
    assert contents(files, kept) == expected
    before = list(map(times_inspected, files))
    assert contents(files, kept) == expected
    assert list(map(times_inspected, files)) == before, "it is made anew"


@pytest.mark.long
def test_processes_find_what_one_finds(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(catalogue, "MANY_FILES", 2)
    monkeypatch.setattr(setup_processes, "available_cpus", lambda: 2)
    files = [write(tmp_path / f"{n}.nc", n + 1) for n in range(6)]
    told: list[tuple[int, int]] = []
    expected = [plain(inspect_netcdf(file)) for file in files]
    found = inspect_files(files, cache_dir=kept, progress=lambda *each: told.append(each))
    assert [plain(each) for each in found] == expected
    assert told == [(done, 6) for done in range(7)]
    monkeypatch.setitem(source_files.IN_GROUPS, "NetCDF", lambda path, group: pytest.fail("again"))
    assert [plain(each) for each in inspect_files(files, cache_dir=kept)] == expected
    monkeypatch.undo()
    files[4].write_bytes(files[4].read_bytes()[:5000])
    with pytest.raises(FileFormatError, match=r"4\.nc"):
        inspect_files(files, cache_dir=kept)


def plain(value: Any) -> Any:
    """Return everything an inspected file holds, with the types of numbers, to be compared."""
    if isinstance(value, msgspec.Struct):
        return type(value), {n: plain(each) for n, each in msgspec.structs.asdict(value).items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    return type(value), value


def write(path: Path, n: int) -> Path:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("column", n)
        file.createDimension("level", 5)
        variable = file.createVariable("q", "f4", ("column", "level"), zlib=True)
        variable.units = "kg kg-1"
        variable[...] = np.arange(5 * n).reshape(n, 5)
        file.createVariable("never_written", "i2", ("column",), fill_value=-7)
        file.createVariable("scalar", "f8", ())[...] = 2.5
        packed = file.createVariable("packed", "i2", ("level",), fill_value=-32768)
        packed.scale_factor, packed.add_offset = np.float32(0.01), np.float64(273.15)
        packed[...] = 280.0
        file.createVariable("words", str, ("level",))
        file.createGroup("inside")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return path


# ---- processes that inspect files, write stand-ins

JOBS = """
import os
from iobench.errors import OptionError

def double(job):
    print("noise on standard output")
    return 2 * job, os.getpid()

def refuse(job):
    raise OptionError(f"job {job} is wrong")

def vanish(job):
    os._exit(3)
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    (tmp_path / "set_up_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("set_up_jobs")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_done_once_and_errors_on_purpose_arrive(jobs, processes):
    outcomes = list(run_jobs(jobs.double, range(5), processes=processes))
    values = sorted((number, value) for number, (value, _) in outcomes)
    assert values == [(number, 2 * number) for number in range(5)]
    assert len({pid for _, (_, pid) in outcomes}) == processes
    with pytest.raises(OptionError, match="is wrong"):
        list(run_jobs(jobs.refuse, range(2), processes=processes))


@pytest.mark.timeout(60)
def test_a_child_that_vanishes_is_an_error_and_leaving_early_ends_the_others(jobs):
    with pytest.raises(WorkerError, match="exit code 3"):
        list(run_jobs(jobs.vanish, range(2), processes=2))
    outcomes = run_jobs(jobs.double, range(100), processes=2)
    next(outcomes)
    outcomes.close()
