"""Where a plain PyTorch training loop can be listened to: forward, backward, optimizer steps.

A model and optimizers have hooks for that. ``loss.backward()`` has none that ends with it: while
anybody watches, ``torch.autograd.backward``, which it calls, is a function that tells them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from iobench.torch.device_time import DeviceTimer

__all__ = ["Watch"]


class Watch:
    """Times a model, its backward passes and its optimizers; made by `DeviceTimer.watch`."""

    def __init__(
        self,
        timer: DeviceTimer,
        model: torch.nn.Module | None,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._timer = timer
        self._handles: list[Any] = []
        if model is not None:
            self._handles += [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]
        for optimizer in optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
        _listen(timer)

    def remove(self) -> None:
        """Stop. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _leave(self._timer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def _before_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if model.training:
            self._timer.start("forward")

    def _after_forward(self, model: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._timer.end("forward")

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._timer.start("step")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._timer.end("step")


_lock: Final = threading.Lock()
_listeners: Final[list[DeviceTimer]] = []
_original: Callable[..., None] | None = None
_installed: Callable[..., None] | None = None
_inside = False


def _listen(timer: DeviceTimer) -> None:
    global _original, _installed
    with _lock:
        _listeners.append(timer)
        if _original is None:
            _original = torch.autograd.backward
            _installed = torch.autograd.backward = _told(_original)


def _leave(timer: DeviceTimer) -> None:
    global _original, _installed
    with _lock:
        if timer not in _listeners:
            return
        _listeners.remove(timer)
        # Where somebody else has wrapped ours meanwhile, it stays, with nobody to tell.
        if not _listeners and _original is not None and torch.autograd.backward is _installed:
            torch.autograd.backward = _original
            _original = _installed = None


def _told(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        global _inside
        # A backward pass that recomputes parts of the forward one calls this again.
        if _inside or not _listeners:
            return original(*args, **kwargs)
        timers = tuple(_listeners)
        _inside = True
        for timer in timers:
            timer.start("backward")
        try:
            return original(*args, **kwargs)
        finally:
            for timer in reversed(timers):
                timer.end("backward")
            _inside = False

    return backward
