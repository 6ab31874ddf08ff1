"""Which runtime is found and tried, how a process is traced, and what happens to its logs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError, StorageError
from iobench.storage.darshan_setup import (
    config_text,
    find_runtime,
    gather_logs,
    read_choice,
    ready_runtime,
    set_up,
)
from iobench.testing import FakeClock
from tests.support.runtimes_in_c import (
    LEAVES_LOGS,
    LEAVES_NOTHING,
    NEVER_STARTS,
    OPENS_WITH_IT,
    WITH_HDF5,
    made_runtime,
)


def _file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_an_environment_leads_to_a_runtime_or_to_none(tmp_path: Path) -> None:
    library = _file(tmp_path / "lib" / "libdarshan.so")
    _file(tmp_path / "bin" / "darshan-config")
    for name, text in (
        ("DARSHAN_LIB", "ROOT/lib/libdarshan.so"), ("DARSHAN_LIB", "ROOT/lib"),
        ("DARSHAN_LIB", "ROOT"), ("LD_PRELOAD", "/x/other.so ROOT/lib/libdarshan.so"),
        ("LD_LIBRARY_PATH", "/x:ROOT/lib"), ("PATH", "/x:ROOT/bin"),
    ):  # fmt: skip
        environment = {"PATH": "", name: text.replace("ROOT", str(tmp_path))}
        assert find_runtime(environment) == library, (name, text)
    util = _file(tmp_path / "libdarshan-util.so")
    environment = {
        "DARSHAN_LIB": f"-L{tmp_path} -ldarshan", "LD_PRELOAD": str(util),
        "LD_LIBRARY_PATH": str(tmp_path), "PATH": f"{tmp_path}:/bin",
    }  # fmt: skip
    assert find_runtime(environment) is None


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which a small program has no libraries but those made here: quick to start."""
    for name in ("numpy", "h5py", "netCDF4"):
        _file(tmp_path / "modules" / f"{name}.py", "raise ImportError")
    kept = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    return kept | {"PYTHONPATH": str(tmp_path / "modules")}


@pytest.mark.parametrize(
    ("code", "module", "timeout_s", "problem"),
    [
        (LEAVES_LOGS, "", 60, ""),
        (WITH_HDF5, OPENS_WITH_IT, 60, "ended with 127"),
        (LEAVES_NOTHING, "", 60, "left no log"),
        (NEVER_STARTS, "", 0.3, "did not end within 0.3 s"),
    ],
)
def test_a_runtime_is_tried_before_it_is_used(
    tmp_path: Path,
    environment: dict[str, str],
    code: str,
    module: str,
    timeout_s: float,
    problem: str,
) -> None:
    library = made_runtime(tmp_path, code)
    if module:
        _file(tmp_path / "modules" / "h5py.py", module)
    environment["DARSHAN_LIB"] = str(library)
    if not problem:
        assert ready_runtime(environment, sys.executable) == library
        return
    with pytest.raises(StorageError, match=problem):
        ready_runtime(environment, sys.executable, timeout_s=timeout_s)


def _patterns(text: str, key: str) -> list[re.Pattern[str]]:
    lines = [line.split() for line in text.splitlines()]
    return [re.compile(words[1]) for words in lines if words[0] == key]


FOLLOWED = (
    "/data/t2m.grib", "/data/env/lib.nc", "/data/model.so.nc", "/env/data/t2m.grib",
    "/home/me/run/spans/iobench-clock-marker", "/env/lib/data/x.nc",
)  # fmt: skip
LEFT_OUT = (
    "/env/lib/python3.11/os.py", "/other/lib/python3.11/site-packages/sample/data.nc",
    "/env/share/eccodes/boot.def", "/home/me/train.py",
    "/home/me/__pycache__/train.cpython-311.pyc", "/home/me/native.so.6", "/tmp/pymp-abc/listener",
    "/home/me/run/spans/a.spans", "/env/lib/data/x.nc2",
)  # fmt: skip


def test_data_are_followed_and_pythons_own_files_are_not() -> None:
    text = config_text("/env/bin/python", [Path("/home/me/run")], [Path("/env/lib/data/x.nc")])
    for name in (*FOLLOWED, *LEFT_OUT):
        excluded = any(pattern.search(name) for pattern in _patterns(text, "NAME_EXCLUDE"))
        included = any(pattern.search(name) for pattern in _patterns(text, "NAME_INCLUDE"))
        assert (included or not excluded) == (name in FOLLOWED), name


def test_of_programs_only_python_is_followed() -> None:
    text = config_text("/opt/my env/bin/run")
    for program, followed in (
        ("python", True), ("/usr/bin/python3.11", True), ("/opt/my", True), ("uname", False),
        ("/usr/bin/git", False), ("/home/python/bin/gcc", False),
    ):  # fmt: skip
        assert any(pattern.search(program) for pattern in _patterns(text, "APP_EXCLUDE"))
        included = any(pattern.search(program) for pattern in _patterns(text, "APP_INCLUDE"))
        assert included == followed, program


@given(st.text(alphabet="ab .,+*[](){}|^$\\\t?", min_size=1, max_size=12))
def test_any_name_of_a_folder_makes_a_line_that_names_it(name: str) -> None:
    folder = Path("/data") / f"x{name}"
    lines = [line for line in config_text("p", [folder], [folder]).splitlines() if "/data" in line]
    assert [len(re.split(r"[ \t]+", line)) for line in lines] == [3, 3]
    assert all("," not in line.split()[1] for line in lines)
    (excluded,) = (re.compile(line.split()[1]) for line in lines if "EXCLUDE" in line)
    assert excluded.search(f"{folder}/x.nc")
    assert not excluded.search("/data/other/x.nc")


RUNTIME = Path("/soft/lib/libdarshan.so")


def test_the_environment_of_a_traced_process(tmp_path: Path) -> None:
    base = {
        "LD_PRELOAD": "/a/liba.so:/old/libdarshan.so", "DARSHAN_LOGFILE": "/x",
        "DARSHAN_MODMEM": "8", "HOME": "/home/me",
    }  # fmt: skip
    setup = set_up(tmp_path, RUNTIME, "/env/bin/python", base, [Path("/var/d\udcff")])
    inside = setup.environment(base)
    assert inside["LD_PRELOAD"] == "/soft/lib/libdarshan.so:/a/liba.so"
    assert "DARSHAN_LOGFILE" not in inside  # a name for one log of several processes
    assert (inside["HOME"], inside["DARSHAN_MODMEM"]) == ("/home/me", "8")
    assert inside["DARSHAN_LOG_DIR_PATH"] == inside["DARSHAN_LOGPATH"] == str(tmp_path / "darshan")
    assert b"/var/d\xff(/|$)" in Path(inside["DARSHAN_CONFIG_PATH"]).read_bytes()
    assert Path(inside["DARSHAN_MMAP_LOGPATH"]).is_dir()
    document = setup.document(tmp_path / "numpy")
    assert (document["logs"], document["set"]) == ("../darshan", dict(setup.variables))
    days = list(setup.folder.glob("*/*/*"))
    assert len(days) >= 8
    setup.mmap.rmdir()
    other = tmp_path / "other"
    _file(other / "darshan")
    with pytest.raises(StorageError, match="darshan: cannot be made"):
        set_up(other, RUNTIME, "/env/bin/python", {})


def test_the_words_of_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    assert read_choice(["auto"])[0]
    assert read_choice(["off"]) == read_choice([])
    assert (read_choice([])[0], read_choice([])[1]["state"]) == (False, "off")
    assert read_choice(["logs"]) == (False, {"state": "on", "logs": [str(tmp_path / "logs")]})
    for words in (["nowhere"], ["auto", "off"], ["auto", "logs"], ["on"]):
        with pytest.raises(OptionError, match=f"--darshan {words[0]}"):
            read_choice(words)


STARTED_AGAIN = """
import os, sys
from pathlib import Path
from iobench.storage.darshan_setup import restart_under, set_up, tracing, waiting_runtime
folder, library = map(Path, sys.argv[1:])
runtime = waiting_runtime()
if runtime is None:
    restart_under(library)
assert runtime == library and waiting_runtime() is None
setup = set_up(folder, runtime, sys.executable, os.environ)
before = dict(os.environ)
with tracing(setup):
    assert os.environ["DARSHAN_ENABLE_NONMPI"] == "1"
assert dict(os.environ) == before
setup.mmap.rmdir()
print(os.getpid(), *sorted(path.name for path in setup.folder.iterdir() if path.is_file()))
"""


@pytest.mark.long
def test_a_process_started_again_is_traced_from_where_it_says(tmp_path: Path) -> None:
    library = made_runtime(tmp_path, LEAVES_LOGS)
    started = subprocess.Popen(
        [sys.executable, "-c", STARTED_AGAIN, tmp_path, library],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DARSHAN_ENABLE_NONMPI": "1"},
    )
    out, _ = started.communicate(timeout=60)
    pid, marker, name = sorted(out.split(), key=len)
    assert (started.returncode, marker) == (0, "iobench-clock-marker")
    assert int(pid) == started.pid
    assert f"-{pid}_" in name


GONE = 2**22 + 1
"""No process of Linux has a number above 2**22."""


def _log(folder: Path, pid: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"me_python3.11_id7-{pid}_11-22-18475-238893_1.darshan"
    path.write_bytes(b"log")
    return path


def test_processes_that_go_on_are_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    clock = FakeClock()
    _log(tmp_path, GONE)
    pids = [GONE, GONE + 1, os.getpid()]
    lines = gather_logs(tmp_path, tmp_path / "mmap", pids, clock=clock, patience_ns=10**9)
    assert 10**9 <= clock.now_ns() < 2 * 10**9
    one, missing, alive = lines
    assert one == f"darshan: 1 log in {tmp_path}"
    assert f"of processes {GONE + 1}: left no log" in missing
    assert f"of processes {os.getpid()}: still running" in alive
    # Nobody is waited for who is gone or has a log.
    _log(tmp_path, os.getpid())
    clock = FakeClock()
    assert len(gather_logs(tmp_path, tmp_path / "mmap", pids, clock=clock)) == 2
    assert clock.now_ns() == 0


def test_logs_in_folders_by_date_come_into_one_and_what_was_counted_goes(tmp_path: Path) -> None:
    folder, mmap = tmp_path / "run", tmp_path / "node"
    day, other = folder / "2026" / "11" / "22", folder / "2026" / "11" / "23"
    path = _log(day, GONE)
    _log(mmap, GONE + 1)
    other.mkdir(parents=True)
    (other / "being-written.darshan_partial").touch()
    gather_logs(folder, mmap, [GONE], clock=FakeClock())
    assert (folder / path.name).read_bytes() == b"log"
    assert [day.exists(), other.exists(), mmap.exists()] == [False, True, False]
