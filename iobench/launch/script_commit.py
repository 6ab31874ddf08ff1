"""Which commit a command's script is of, asked of git so that it runs nothing of the repository's.

Configuration of the user and the system is trusted, as with any git command; that of a repository
may be a stranger's, and can name programs: hooks, monitors, filters, transports. None is run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.recording.script_run import ScriptCommit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOK_S: Final = 3
"""Of one question; looking at all files of a large repository far away may take longer."""
SAFE: Final = (
    "--no-optional-locks", "--no-pager", "-c", "core.fsmonitor=false", "-c",
    f"core.hooksPath={os.devnull}", "-c", "protocol.allow=never", "-c",
    "safe.bareRepository=explicit",
)  # fmt: skip
TRUSTED: Final = ("system", "global", "command")
SCRIPTS: Final = (".py", ".sh", ".ipynb")


def commit_of(command: Sequence[str], environment: Mapping[str, str]) -> ScriptCommit:
    """Return the commit that a command's script is of, and whether files differ from it.

    What cannot be known is None, with the reason in ``unknown``.
    """
    script = _script(command)
    if script is None:
        return ScriptCommit(unknown="the command names no script that lies here")
    git = _Git(script.parent, environment)
    try:
        found = git.ask("rev-parse", "--verify", "HEAD")
        if found.returncode:
            return ScriptCommit(unknown=_why(found.stderr))
        commit = found.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return ScriptCommit(unknown="git did not answer in time" if late else "there is no git")
    try:
        listed = git.ask("ls-files", "--error-unmatch", "--", script.name)
        dirty, why = git.differs()
    except (OSError, subprocess.SubprocessError):
        why = "whether files differ from it: git did not answer in time"
        return ScriptCommit(hash=commit, unknown=why)
    return ScriptCommit(hash=commit, dirty=dirty, has_script=not listed.returncode, unknown=why)


def _script(command: Sequence[str]) -> Path | None:
    """Return the file of a command's script, or of the module that it runs, where it lies here."""
    found = [Path(word) for word in command if word.endswith(SCRIPTS)]
    name = command[command.index("-m") + 1] if "-m" in command[1:-1] else ""
    if name.replace(".", "").isidentifier():
        module = Path(*name.split("."))
        found += [module / "__main__.py", module.with_name(f"{module.name}.py")]
    try:
        return next((path.resolve() for path in found if path.is_file()), None)
    except OSError:  # a name that is too long for one
        return None


class _Git:
    """Questions to git about the repository of a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {
            name: value for name, value in environment.items() if not name.startswith("GIT_")
        } | {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}

    def ask(self, *words: str, settings: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Return how a git command ended.

        Raises
        ------
        OSError
            If there is no git.
        subprocess.SubprocessError
            If it takes too long.
        """
        return subprocess.run(
            ["git", *SAFE, *settings, "-C", str(self._folder), *words],
            env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=LOOK_S, check=False,
        )  # fmt: skip

    def differs(self) -> tuple[bool | None, str]:
        """Return whether files that git knows differ from the commit, and why that is unknown."""
        told = self.ask("config", "--show-scope", "-z", "--name-only", "--get-regexp", r"^filter\.")
        words = told.stdout.split("\0")
        filters = [
            name
            for scope, name in zip(words[::2], words[1::2], strict=False)
            if scope not in TRUSTED
        ]
        unknown = "whether files differ from it: its repository has filters, which were not run"
        if told.returncode not in (0, 1) or any("=" in name for name in filters):
            return None, unknown
        settings = [word for name in filters for word in ("-c", f"{name}=")]
        found = self.ask(
            "status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all",
            "--no-renames", settings=settings,
        )  # fmt: skip
        if found.returncode:
            return None, f"whether files differ from it: {_why(found.stderr)}"
        if found.stdout and filters:
            return None, unknown
        return bool(found.stdout), ""


def _why(said: str) -> str:
    """Return why git did not tell, without paths."""
    if "not a git repository" in said:
        return "the script is in no git repository"
    if "dubious ownership" in said:
        return "the repository is somebody else's, whom git does not trust (safe.directory)"
    if "single revision" in said:
        return "the repository has no commit yet"
    return "git refused to tell"
