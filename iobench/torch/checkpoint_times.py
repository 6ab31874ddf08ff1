"""Time that goes into checkpoints: that of ``torch.save``."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from iobench.recording.activation import active_recorder
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_original: Callable[..., Any] | None = None
_installed: Callable[..., Any] | None = None


def _nbytes(path: Any) -> int:
    if not isinstance(path, str | os.PathLike):
        return -1
    try:
        return Path(path).stat().st_size if Path(path).is_file() else -1  # or a folder of shards
    except OSError:
        return -1


def install() -> None:
    """Let every ``torch.save`` of this process be timed; scripts are not edited for it.

    Who has taken the function itself out of the module before is not seen. Idempotent.
    """
    global _original, _installed
    if _original is not None:
        return
    _original = torch.save
    _installed = torch.save = torch.serialization.save = _timed(_original)


def uninstall() -> None:
    """Put the original function back, unless somebody else has replaced ours. Idempotent."""
    global _original, _installed
    if _original is None:
        return
    for module in (torch, torch.serialization):
        if module.save is _installed:
            module.save = _original
    _original = _installed = None


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        recorder = active_recorder()
        if recorder is None:
            return original(*args, **kwargs)
        with recorder.full_span(Kind.CHECKPOINT) as span:
            saved = original(*args, **kwargs)
            span.nbytes = _nbytes(args[1] if len(args) > 1 else kwargs.get("f"))
        return saved

    return save
