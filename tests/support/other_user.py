"""A command run as another user than the test's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 65534
NAMES = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "USER", "LOGNAME", "LNAME", "USERNAME")


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Give a folder that others may look into, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def as_other_user(
    below: Path, *command: str | Path, user: int = OTHER
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who owns and may write ``below/theirs``, where it runs, alone.

    One whom the system knows nothing of has no home either.
    """
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to be two users")
    theirs = below / "theirs"
    theirs.mkdir(exist_ok=True)
    os.chown(theirs, user, user)
    # Where Python itself lies in a home that is closed to others, it must be readable all the same.
    may = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *may]
    environ = {**os.environ, "HOME": str(theirs), "XDG_CACHE_HOME": "", "TMPDIR": str(theirs)}
    if user != OTHER:
        environ = {name: told for name, told in environ.items() if name not in NAMES}
    return subprocess.run(
        [*who, *map(str, command)],
        cwd=theirs,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
