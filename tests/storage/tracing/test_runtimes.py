"""Which runtime an environment leads to, and which Python a command will run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from iobench.storage.darshan_runtime import find_runtime, interpreter_of


def _library(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libdarshan.so"
    path.touch()
    return path


def _program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("told", ["libdarshan.so", "", ".."])
def test_the_variable_may_name_the_library_or_a_folder_of_it(tmp_path: Path, told: str) -> None:
    library = _library(tmp_path / "lib")
    found = find_runtime({"DARSHAN_LIB": str(tmp_path / "lib" / told), "PATH": ""})
    assert found is not None
    assert found.path.resolve() == library
    assert found.found == "$DARSHAN_LIB"


def test_what_is_preloaded_is_found_also_beside_others_and_by_its_bare_name(
    tmp_path: Path,
) -> None:
    library = _library(tmp_path)
    named = find_runtime({"LD_PRELOAD": f"/x/other.so {library}", "PATH": ""})
    bare = find_runtime(
        {"LD_PRELOAD": "libdarshan.so:other.so", "LD_LIBRARY_PATH": f"/x:{tmp_path}", "PATH": ""}
    )
    assert named is not None
    assert bare is not None
    assert (named.path, named.found) == (library, "$LD_PRELOAD")
    assert (bare.path, bare.found) == (library, "$LD_PRELOAD")


def test_a_loaded_module_leads_to_it(tmp_path: Path) -> None:
    library = _library(tmp_path / "darshan" / "lib64")
    by_root = find_runtime({"DARSHAN_ROOT": str(tmp_path / "darshan"), "PATH": ""})
    by_path = find_runtime({"LD_LIBRARY_PATH": f"/x:{library.parent}", "PATH": ""})
    _program(tmp_path / "darshan" / "bin" / "darshan-config")
    by_program = find_runtime({"PATH": f"/x:{tmp_path / 'darshan' / 'bin'}"})
    assert [each and each.found for each in (by_root, by_path, by_program)] == [
        "$DARSHAN_ROOT", "$LD_LIBRARY_PATH", "darshan-config",
    ]  # fmt: skip
    assert {each and each.path for each in (by_root, by_path, by_program)} == {library}


def test_what_only_looks_like_it_is_none(tmp_path: Path) -> None:
    (tmp_path / "libdarshan-util.so").touch()
    environment = {
        "DARSHAN_LIB": f"-L{tmp_path} -ldarshan",
        "LD_PRELOAD": str(tmp_path / "libdarshan-util.so"),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PATH": f"{tmp_path}:/bin",
    }
    assert find_runtime(environment) is None


def test_the_interpreter_is_the_one_that_the_command_runs(tmp_path: Path) -> None:
    python = _program(tmp_path / "python3.11")
    _program(tmp_path / "torchrun", f"#!{python}\n")
    _program(tmp_path / "by-env", "#!/usr/bin/env python3.11\n")
    _program(tmp_path / "mpirun", "#!/bin/sh\n")
    environment = {"PATH": str(tmp_path)}
    for command in (
        ("python3.11", "train.py"),
        (str(python), "-m", "train"),
        ("torchrun", "train.py"),
        ("by-env",),
        ("mpirun", "-n", "4", "python3.11", "train.py"),
    ):
        assert interpreter_of(command, environment) == str(python), command
    assert interpreter_of(("mpirun", "-n", "4", "a.out"), environment) == sys.executable
