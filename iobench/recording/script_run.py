"""What ``run.json`` says of the run of a user's script."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.command_words import KEEP_COMMAND, drop_values
from iobench.masking import mask_words
from iobench.recording.rotation import keep_nbytes
from iobench.recording.this_process import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.recording.job import JobRank

KERNEL_MODULE: Final = "ipykernel_launcher"
"""What Jupyter starts for a notebook: nobody typed it, and its arguments are temporary files."""
NOTEBOOK_NAME: Final = "JPY_SESSION_NAME"  # set by Jupyter to the notebook's path


class ScriptCommit(msgspec.Struct, frozen=True):
    """The commit of the repository that a script lay in; whether files differed is never known."""

    hash: str | None = None  # None if unknown


def script_document(
    command: Sequence[str],
    job: JobRank,
    *,
    detail: str,
    digests: bool = False,
    batches_per_step: int | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Return what ``run.json`` says of the run of a user's script."""
    return {
        "kind": "script",
        "name": name,
        "command": shlex.join(command),
        "job": job.token,
        "launcher": job.launcher,
        "world_size": job.world_size,
        "detail": detail,
        "digests": digests,
        "batches_per_step": batches_per_step,
        "keep_nbytes": keep_nbytes(),
        "machine": machine(),
    }


def command_line(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return how this process was started, as it may be kept; of a notebook, its name alone."""
    words = [str(part) for part in getattr(sys, "orig_argv", sys.argv)]
    if KERNEL_MODULE in words:
        return ["notebook", *filter(None, [Path(environ.get(NOTEBOOK_NAME, "")).name])]
    return words_to_keep(words, keep_values=environ.get(KEEP_COMMAND) == "1")


def words_to_keep(command: Sequence[str], *, keep_values: bool) -> list[str]:
    """Return what may be kept of a command: no credentials, and no values unless asked."""
    return mask_words(command if keep_values else drop_values(command))
