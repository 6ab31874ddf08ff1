"""Which commit a command's script is of, as ``git rev-parse`` says.

That reads references alone: nothing that a stranger's repository configures is run for it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT_S: Final = 2
SCRIPTS: Final = (".py", ".sh", ".ipynb")


def commit_of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the commit of the repository that a command's script lies in; None if unknown."""
    script = _script(command)
    if script is None:
        return None
    own = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "-C", str(script.parent), "rev-parse", "--verify", "HEAD"],
            env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LIMIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _script(command: Sequence[str]) -> Path | None:
    """Return the file of a command's script, or of the module that it runs, where it lies here."""
    result = [Path(word) for word in command if word.endswith(SCRIPTS)]
    name = command[command.index("-m") + 1] if "-m" in command[1:-1] else ""
    if name.replace(".", "").isidentifier():
        module = Path(*name.split("."))
        result += [module / "__main__.py", module.with_name(f"{module.name}.py")]
    try:
        return next((path.resolve() for path in result if path.is_file()), None)
    except OSError:  # a name that is too long for one
        return None
