"""Which Python a command runs, and whether iobench can record in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ISOLATING: Final = frozenset("IES")
"""Flags of Python by which it ignores ``$PYTHONPATH`` or its sitecustomize."""
OLDEST: Final = (3, 11)
PROBE: Final = """\
import sys
sys.path[:] = [each for each in sys.path if each]
try:
    from importlib.util import find_spec
    installed = find_spec("iobench") is not None
except ImportError:
    installed = False
print(sys.version_info[0], sys.version_info[1], int(installed))
"""
"""Program of a Python of any version: its own version, and whether it has iobench."""
PROBE_S: Final = 20


def interpreter_of(word: str, environment: Mapping[str, str]) -> str | None:
    """Return the Python that a program is, or is read by (``torchrun``); None of anything else."""
    path = environment.get("PATH")
    program = shutil.which(word, path=path)
    for each in () if program is None else (program, *_words_of_script(program)):
        result = shutil.which(each, path=path)
        if result and re.fullmatch(r"(python|pypy)[\d.]*", Path(result).name):
            return result
    return None


def _words_of_script(program: str) -> list[str]:
    """Return what the first line of a script names; nothing of other programs."""
    try:
        with Path(program).open("rb") as file:
            line = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return []
    return line[2:].split() if line.startswith("#!") else []


def isolating_flags(command: Sequence[str]) -> list[str]:
    """Return the flags of a Python command that keep iobench out."""
    if not Path(command[0]).name.startswith("python"):
        return []
    result = []
    words = iter(command[1:])
    for word in words:
        if word in {"-W", "-X"}:
            next(words, "")
            continue
        if not word.startswith("-") or word.startswith("--"):
            break
        result += [f"-{letter}" for letter in word[1:] if letter in ISOLATING]
        if "c" in word or "m" in word:
            break
    return result


def why_unseen(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return why, before a command starts, nothing of its Python can be recorded.

    ``""`` where all is well or unknown: of shells, srun, compiled launchers.
    """
    python = interpreter_of(command[0], environment)
    if python is None:
        return ""
    if flags := isolating_flags(command):
        return f"{python}: {', '.join(flags)} keeps iobench out; leave it out"
    own, other = Path(sys.executable), Path(python).absolute()
    if own.parent == other.parent and own.resolve() == other.resolve():
        return ""
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=dict(environment), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PROBE_S, check=True,
        )  # fmt: skip
        major, minor, has_iobench = map(int, done.stdout.split()[-3:])
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""  # the command itself will say what is wrong with it
    if (major, minor) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return f"{python}: is Python {major}.{minor}, and iobench needs {needed} or later"
    if not has_iobench:
        return f"{python}: has no iobench; install it there: {python} -m pip install iobench"
    return ""
