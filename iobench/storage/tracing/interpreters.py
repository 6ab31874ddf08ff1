"""Which Python a command will run."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["interpreter_of"]


def interpreter_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command will run, as far as its words tell.

    ``python`` itself, the one in the first line of a script such as ``torchrun``, also after
    ``srun`` or ``mpirun``; else the first on the ``$PATH``, else this one.
    """
    path = environment.get("PATH")
    for word in (*command, "python", "python3"):
        program = shutil.which(word, path=path)
        if program is None:
            continue
        if _is_python(program):
            return program
        if python := _of_script(program, path):
            return python
    return sys.executable


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name) is not None


def _of_script(program: str, path: str | None) -> str:
    """Return the Python that a script names in its first line; ``""`` for anything else."""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return ""
    if not first.startswith("#!"):
        return ""
    for word in first[2:].split():
        found = shutil.which(word, path=path)
        if found is not None and _is_python(found):
            return found
    return ""
