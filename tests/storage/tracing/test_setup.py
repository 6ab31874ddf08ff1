"""What a traced run is told: its configuration file and its environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError, StorageError
from iobench.storage.darshan_runtime import (
    DarshanRuntime,
    ProbedRuntime,
    config_text,
    hidden_folders,
)
from iobench.storage.darshan_setup import DarshanChoice, set_up

PROBED = ProbedRuntime(
    DarshanRuntime(Path("/soft/lib/libdarshan.so"), "$DARSHAN_LIB"),
    "/env/bin/python",
    version="3.5.0",
    prefixes=("/env", "/usr"),
    packages=("/env/lib/python3.11/site-packages",),
)


def _patterns(text: str, key: str) -> list[re.Pattern[str]]:
    lines = [line.split() for line in text.splitlines()]
    return [re.compile(words[1]) for words in lines if words[0] == key]


def _seen(text: str, name: str) -> bool:
    """Whether the runtime would follow a file, as far as the configuration decides."""
    excluded = any(pattern.search(name) for pattern in _patterns(text, "NAME_EXCLUDE"))
    included = any(pattern.search(name) for pattern in _patterns(text, "NAME_INCLUDE"))
    return included or not excluded


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("/data/t2m.grib", True),
        ("/data/env/lib.nc", True),
        ("/data/model.so.nc", True),
        ("/env/lib/python3.11/os.py", False),
        ("/env/lib/python3.11/site-packages/sample/data.nc", False),
        ("/env/data/t2m.grib", True),
        ("/home/me/train.py", False),
        ("/home/me/__pycache__/train.cpython-311.pyc", False),
        ("/home/me/native.so.6", False),
        ("/tmp/pymp-abc/listener", False),
        ("/home/me/run/spans/a.spans", False),
        ("/home/me/run/spans/iobench-clock-marker", True),
    ],
)
def test_data_are_seen_and_pythons_own_files_are_not(name: str, seen: bool) -> None:
    text = config_text(
        interpreter="/env/bin/python",
        prefixes=PROBED.prefixes,
        packages=PROBED.packages,
        hidden=[Path("/home/me/run")],
    )
    assert _seen(text, name) == seen


def test_there_is_room_for_the_files_of_a_training_run_and_its_segments() -> None:
    text = config_text(interpreter="python", prefixes=(), packages=(), hidden=())
    assert "MOD_ENABLE DXT_POSIX" in text
    told = dict(line.split()[:0:-1] for line in text.splitlines() if line.startswith("MAX_"))
    assert int(told["POSIX,STDIO"]) >= 16384
    assert int(told["DXT_POSIX"]) * 1024 // 32 >= 1_000_000
    room = int(re.search(r"^MODMEM (\d+)$", text, re.MULTILINE)[1])
    assert room << 20 > 16384 * 1000


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        ("python", True), ("/usr/bin/python3.11", True), ("/opt/my", True), ("uname", False),
        ("/usr/bin/git", False), ("/home/python/bin/gcc", False),
    ],
)  # fmt: skip
def test_of_programs_only_python_is_followed(program: str, seen: bool) -> None:
    text = config_text(interpreter="/opt/my env/bin/run", prefixes=(), packages=(), hidden=())
    assert any(pattern.search(program) for pattern in _patterns(text, "APP_EXCLUDE"))
    assert any(pattern.search(program) for pattern in _patterns(text, "APP_INCLUDE")) == seen


@given(st.text(alphabet="ab .,+*[](){}|^$\\\t?", min_size=1, max_size=12))
def test_any_name_of_a_folder_makes_a_line_that_names_it(name: str) -> None:
    folder = Path("/data") / f"x{name}"
    text = config_text(interpreter="p", prefixes=(), packages=(), hidden=[folder], data=[folder])
    lines = [line for line in text.splitlines() if "/data" in line]
    assert [len(re.split(r"[ \t]+", line)) for line in lines] == [3, 3]
    assert all("," not in line.split()[1] for line in lines)
    (excluded,) = (re.compile(line.split()[1]) for line in lines if "EXCLUDE" in line)
    assert excluded.search(f"{folder}/x.nc")
    assert not excluded.search("/data/other/x.nc")


def test_data_where_darshan_does_not_look_are_named() -> None:
    paths = [Path("/var/lib/data"), Path("/varied/data"), Path("/srv/x"), Path("/env/data/x.nc")]
    hidden = hidden_folders(paths, ["/env"])
    assert hidden == [Path("/env/data/x.nc"), Path("/var/lib/data")]
    text = config_text(
        interpreter="p", prefixes=["/env"], packages=["/env/data"], hidden=(), data=hidden
    )
    assert _seen(text, "/env/data/x.nc")
    assert not _seen(text, "/env/data/x.nc2")
    assert _seen(text, "/var/lib/data/1.nc")


def test_the_environment_adds_to_what_is_preloaded_and_drops_the_name_of_one_log(
    tmp_path: Path,
) -> None:
    base = {
        "LD_PRELOAD": "/a/liba.so:/old/libdarshan.so",
        "DARSHAN_LOGFILE": "/x",
        "DARSHAN_MODMEM": "8",
        "DARSHAN_CONFIG_PATH": "/mine",
        "DARSHAN_ENABLE_NONMPI": "1",
        "HOME": "/home/me",
    }
    setup = set_up(tmp_path, PROBED, base)
    inside = setup.environment(base)
    assert inside["LD_PRELOAD"] == "/soft/lib/libdarshan.so:/a/liba.so"
    assert "DARSHAN_LOGFILE" not in inside
    assert (inside["HOME"], inside["DARSHAN_MODMEM"]) == ("/home/me", "8")
    assert inside["DARSHAN_LOG_DIR_PATH"] == inside["DARSHAN_LOGPATH"] == str(tmp_path / "darshan")
    assert Path(inside["DARSHAN_CONFIG_PATH"]).read_text().startswith("# ")
    assert Path(inside["DARSHAN_MMAP_LOGPATH"]).is_dir()
    assert any("DARSHAN_LOGFILE is not passed on" in line for line in setup.lines())
    assert setup.replaced == ("DARSHAN_CONFIG_PATH",)
    assert any("your own DARSHAN_CONFIG_PATH do not count" in line for line in setup.lines())
    told = setup.document(tmp_path)
    assert (told["state"], told["logs"], told["set"]) == ("on", "darshan", dict(setup.variables))
    assert setup.document(tmp_path / "numpy")["logs"] == "../darshan"
    if setup.mmap != setup.folder:
        setup.mmap.rmdir()


def test_folders_by_date_are_there(tmp_path: Path) -> None:
    setup = set_up(tmp_path, PROBED, {})
    days = list((tmp_path / "darshan").glob("*/*/*"))
    assert len(days) >= 8
    assert all(part.isdecimal() for day in days for part in day.relative_to(setup.folder).parts)
    if setup.mmap != setup.folder:
        setup.mmap.rmdir()


def test_a_run_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "darshan").write_text("")
    with pytest.raises(StorageError, match="darshan: cannot be made"):
        set_up(tmp_path, PROBED, {})


def test_data_whose_name_is_no_text_are_named_by_their_bytes(tmp_path: Path) -> None:
    setup = set_up(tmp_path, PROBED, {}, data=[Path("/var/d\udcff")])
    assert b"/var/d\xff(/|$)" in (tmp_path / "darshan.config").read_bytes()
    if setup.mmap != setup.folder:
        setup.mmap.rmdir()


def test_the_words_of_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    assert DarshanChoice.parse(["auto"]).auto
    assert DarshanChoice.parse(["off"]) == DarshanChoice.parse([]) == DarshanChoice()
    own = DarshanChoice.parse(["logs"])
    assert own.document()["logs"] == [str(tmp_path / "logs")]
    assert DarshanChoice().document()["state"] == "off"
    for words in (["nowhere"], ["auto", "off"], ["auto", "logs"], ["on"]):
        with pytest.raises(OptionError, match=f"--darshan {words[0]}"):
            DarshanChoice.parse(words)
