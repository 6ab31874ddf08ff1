"""The configuration file that Darshan's runtime is given: all reads of data, none of Python's own.

Its defaults lose the data: ``import torch`` opens more files than it keeps by default. Keys and
their order of precedence: https://www.mcs.anl.gov/research/projects/darshan/docs/darshan-runtime.html
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["NEVER_SEEN", "config_text", "hidden_folders"]

MODULES: Final = "POSIX,STDIO,DXT_POSIX"
N_FILES: Final = 16384
N_SEGMENT_KIB: Final = 32768
"""What DXT may use, by 1024 B: 32 B a segment, taken as it is needed."""
MODULE_MIB: Final = 32
"""Room for the counters of so many files: about 0.9 KB each in POSIX and STDIO together."""
NAME_MIB: Final = 8
NEVER_SEEN: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var",
)  # fmt: skip
"""What the runtime itself leaves out, wherever no NAME_INCLUDE says otherwise."""
CODE: Final = (r"\.py[ci]?$", r"\.so(\.[0-9]+)*$", r"/pymp-[^/]*/")
OF_PREFIX: Final = "(bin|etc|include|lib|lib32|lib64|libexec|share)/"
SPECIAL: Final = re.compile(r"[\\.\[\]*^$+?(){}|]")


def config_text(
    *,
    interpreter: str,
    prefixes: Iterable[str],
    packages: Iterable[str],
    hidden: Iterable[Path],
    data: Iterable[Path] = (),
) -> str:
    """Return the text of a configuration file.

    Parameters
    ----------
    interpreter : str
        The Python that runs.
    prefixes, packages : iterable of str
        Where it and its environment are installed; folders of its packages.
    hidden : iterable of Path
        Folders to leave out besides: the run directory.
    data : iterable of Path
        Files and folders to see wherever they lie.
    """
    excluded = [*CODE]
    excluded += [_at(prefix) + OF_PREFIX for prefix in _unique(prefixes) if prefix.strip("/")]
    excluded += [_at(folder) for folder in _unique(packages) if folder.strip("/")]
    excluded += [_at(str(folder)) for folder in hidden]
    lines = [
        "# Made by iobench for one run.",
        "MOD_ENABLE DXT_POSIX",
        f"MAX_RECORDS {N_FILES} POSIX,STDIO",
        f"MAX_RECORDS {N_SEGMENT_KIB} DXT_POSIX",
        f"MODMEM {MODULE_MIB}",
        f"NAMEMEM {NAME_MIB}",
        # Every uname, git and gcc that a script starts would leave a log as well.
        "APP_EXCLUDE .",
        "APP_INCLUDE (^|/)(python|pypy)[^/]*$",
        # Of its name the runtime knows what stands before the first space.
        f"APP_INCLUDE ^{_literal(interpreter.split(maxsplit=1)[0])}$",
        *(f"NAME_EXCLUDE {pattern} {MODULES}" for pattern in excluded),
        *(f"NAME_INCLUDE ^{_literal(str(path))}(/|$) {MODULES}" for path in data),
    ]
    return "\n".join(lines) + "\n"


def hidden_folders(paths: Iterable[Path], leave_out: Sequence[str] = ()) -> list[Path]:
    """Return those of some paths that the runtime would not see unless it is told of them.

    ``leave_out`` are further folders that the configuration leaves out.
    """
    roots = [Path(root) for root in (*NEVER_SEEN, *leave_out)]
    return sorted({path for path in paths if any(path.is_relative_to(root) for root in roots)})


def _unique(words: Iterable[str]) -> list[str]:
    return sorted({word.rstrip("/") for word in words})


def _at(folder: str) -> str:
    return f"^{_literal(folder.rstrip('/'))}/"


def _literal(text: str) -> str:
    """Return an extended regular expression for a path; spaces and commas would end it."""
    return re.sub(r"[\s,]", ".", SPECIAL.sub(r"\\\g<0>", text))
