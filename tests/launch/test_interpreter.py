"""Which Python a command runs."""

from __future__ import annotations

from pathlib import Path

from iobench.launch.interpreter import interpreter_of


def _program(path: Path, text: str = "") -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_is_the_one_that_a_program_names(tmp_path: Path) -> None:
    python = _program(tmp_path / "python3.11")
    _program(tmp_path / "torchrun", f"#!{python}\n")
    _program(tmp_path / "by-env", "#!/usr/bin/env python3.11\n")
    _program(tmp_path / "mpirun", "#!/bin/sh\n")
    environment = {"PATH": str(tmp_path)}
    for word in ("python3.11", python, "torchrun", "by-env"):
        assert interpreter_of(word, environment) == python, word
    for word in ("mpirun", "train.py"):
        assert interpreter_of(word, environment) is None, word
