"""Where the runtime of Darshan lies, the site's own and no package; and which Python will run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["DarshanRuntime", "find_runtime", "interpreter_of", "preloaded"]

LIBRARY: Final = "libdarshan.so"
FOLDERS: Final = ("", "lib", "lib64")
LISTED: Final = re.compile(rf"^\s*{re.escape(LIBRARY)}\S*\s.*=>\s*(\S+)$", re.MULTILINE)
LDCONFIG_S: Final = 10


@dataclass(frozen=True, slots=True)
class DarshanRuntime:
    """A ``libdarshan.so``.

    Parameters
    ----------
    path : Path
        Absolute.
    found : str
        What led to it: ``"$DARSHAN_LIB"``, ``"ldconfig"``.
    """

    path: Path
    found: str


def find_runtime(environment: Mapping[str, str]) -> DarshanRuntime | None:
    """Return the runtime that an environment leads to; None if it leads to none.

    ``$DARSHAN_LIB`` (the library, or a folder of it) comes first, then what ``$LD_PRELOAD`` holds
    already, then what a loaded module tells: variables with DARSHAN in their name,
    ``$LD_LIBRARY_PATH``, ``darshan-config`` on the ``$PATH``. The system's own comes last.
    """
    for found, path in _places(environment):
        if path.is_file() and path.name.startswith(LIBRARY):
            return DarshanRuntime(path.absolute(), found)
    return None


def preloaded(environment: Mapping[str, str]) -> list[str]:
    """Return what ``$LD_PRELOAD`` lists; spaces and colons part its words."""
    return [word for word in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")) if word]


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield where it may be, best first."""
    searched = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if told := environment.get("DARSHAN_LIB"):
        yield from _below("$DARSHAN_LIB", Path(told))
    for word in preloaded(environment):
        if Path(word).name.startswith(LIBRARY):
            # A word without a folder is looked for as any library is.
            at = [Path(word)] if "/" in word else [Path(folder, word) for folder in searched]
            yield from (("$LD_PRELOAD", path) for path in at)
    for name in sorted(environment):
        if "DARSHAN" in name and environment[name].startswith("/"):
            yield from _below(f"${name}", Path(environment[name]))
    for folder in searched:
        yield "$LD_LIBRARY_PATH", Path(folder, LIBRARY)
    if script := shutil.which("darshan-config", path=environment.get("PATH")):
        for path in (Path(script), Path(script).resolve()):
            yield from _below("darshan-config", path.parent.parent)
    for path in LISTED.findall(_ldconfig(environment)):
        yield "ldconfig", Path(path)


def _below(found: str, path: Path) -> Iterator[tuple[str, Path]]:
    yield found, path
    for folder in FOLDERS:
        yield found, path / folder / LIBRARY


def _ldconfig(environment: Mapping[str, str]) -> str:
    """Return the libraries that the system's linker knows; nothing where it cannot be asked."""
    path = f"{environment.get('PATH', '')}:/sbin:/usr/sbin"
    program = shutil.which("ldconfig", path=path)
    if program is None:
        return ""
    try:
        asked = subprocess.run(
            [program, "-p"], capture_output=True, text=True, timeout=LDCONFIG_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout


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
