"""How the process beside a training is started: its command and its environment."""

from __future__ import annotations

import os
import sys
from typing import Final

TOLD_ON: Final = ("MLFLOW_", "WANDB_")
"""Parts of the environment that a script may change meanwhile, as a token that ran out."""
NOT_TOLD: Final = ("IOBENCH_", "DARSHAN_", "DFTRACER_")
"""Parts by which processes are recorded and traced: that beside is none of the training's."""
MODULE: Final = "iobench.tracking.live_process"
_START: Final = (
    "import sys; sys.path += [each for each in sys.argv[2:] if each not in sys.path]; "
    f"del sys.argv[1:]; from {MODULE} import main; sys.exit(main())"
)


def beside_command() -> list[str]:
    """Return the command of the process beside.

    Where the training finds modules, its script's folder and its working folder among them, is
    looked through last, and not first as with ``-m``: a ``queue.py`` there shadows nothing.
    """
    folders = [os.path.abspath(each) for each in sys.path if not _is_boot(each)]  # noqa: PTH100
    return [sys.executable, "-P", "-c", _START, MODULE, *dict.fromkeys(folders)]


def told_on() -> dict[str, str]:
    """Return what of the environment is told on with each order."""
    return {name: value for name, value in os.environ.items() if name.startswith(TOLD_ON)}


def beside_environment() -> dict[str, str]:
    """Return the environment of the process beside: as this one's, but it is not watched."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_TOLD)}
    paths = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if not _is_boot(path))
    return kept


def _is_boot(path: str) -> bool:
    """Tell the folder from which ``iobench run`` is started in each Python."""
    return path.rstrip("/").endswith("iobench/launch/boot")
