"""Time that goes into checkpoints: ``torch.save``, and what libraries wrap around it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from iobench.recording.activation import active_recorder
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_saving: Final = threading.local()
_original: Callable[..., Any] | None = None
_installed: Callable[..., Any] | None = None


@contextlib.contextmanager
def checkpoint_span(path: Any = None) -> Iterator[None]:
    """Time the writing of a checkpoint; inside another one, that one is enough.

    Parameters
    ----------
    path : path-like, optional
        Where the checkpoint is going to be, so that its size can be told.
    """
    recorder = active_recorder()
    if recorder is None or getattr(_saving, "inside", False):
        yield
        return
    _saving.inside = True
    try:
        with recorder.full_span(Kind.CHECKPOINT) as span:
            yield
            span.nbytes = _nbytes(path)
    finally:
        _saving.inside = False


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
        if active_recorder() is None:
            return original(*args, **kwargs)
        path = args[1] if len(args) > 1 else kwargs.get("f")
        with checkpoint_span(path):
            return original(*args, **kwargs)

    return save
