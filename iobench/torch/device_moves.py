"""What a script moves from the host's memory to its devices, timed from outside.

Movers of frameworks end in ``Tensor.to``, ``cuda`` and ``copy_``. A compiled function has them as
operations of its own, unless it calls ``torch.Tensor.to(x)``, or a method of a subclass with a
``__torch_function__``: it is compiled in parts then, and ``fullgraph=True`` refuses it. A move
outside of forward and backward passes and of steps is of the batch that its thread was handed last.
All else is labelled `OTHER`.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parameter import Parameter

from iobench.adapters.patches import Hooks, Patches
from iobench.recording import activation
from iobench.recording.kinds import OTHER, Kind
from iobench.recording.recorder import NOWHERE
from iobench.torch import training_hooks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from iobench.recording.recorder import Recorder

MOVES: Final = ("to", "cuda")
COPY: Final = "copy_"
PARAMETERS: Final = "torch.nn.modules.module"
"""Which moves these."""
OWN: Final = "iobench."
ON_BEHALF: Final = "__torch_function__"
"""The method that is called in between, and calls."""

H2D: Final = int(Kind.H2D)  # of an enumeration each look-up takes as long as a call
_own_names: Final = globals()
PLAIN: Final = frozenset({torch.Tensor, Parameter})
_n_modes: Final = torch._C._len_torch_function_stack

counts_meta = False
"""Whether torch's ``meta`` is a device: for tests, where there is no other."""


def _begin(patches: Patches) -> None:
    for name in (*MOVES, COPY):
        patches.put(torch.Tensor, name, functools.partial(_timed, name), inherited=True)


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall


def _timed(name: str, original: Any) -> Callable[..., Any]:
    """Return a method that times moves; it is called for every tensor of a script."""
    copies, key = name == COPY, (H2D, "", name)

    def method(*args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not args or not _is_work(args[0]) or args[0].is_cpu is copies:
            return original(*args, **kwargs) if kwargs else original(*args)
        # Tracing names values after local variables that hold them: there is none for ``args[0]``.
        if copies:
            source = args[1] if len(args) > 1 else kwargs.get("src")
            if not isinstance(source, torch.Tensor) or not _is_work(source) or not source.is_cpu:
                return original(*args, **kwargs)
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        moved = original(*args, **kwargs) if kwargs else original(*args)
        if not moved.is_cpu:
            _note(recorder, key, moved, start_ns, now_ns())
        return moved

    return method


def _is_work(tensor: Any) -> bool:
    """Tell whether a method of this tensor is the work itself, and not its announcement."""
    if _n_modes():
        return False
    kind = type(tensor)
    if kind in PLAIN:
        return True
    if not issubclass(kind, torch.Tensor):
        return False  # torch will say so itself
    if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return False
    if kind.__torch_function__ is torch._C._disabled_torch_function_impl:
        return True
    return not torch._C._is_torch_function_enabled()


def _note(
    recorder: Recorder, key: tuple[int, str, str], moved: Any, start_ns: int, end_ns: int
) -> None:
    """Record a move that is over, if it was one; ``key`` is its kind, label and call."""
    if type(moved) not in PLAIN and not _is_work(moved):
        return
    if moved.is_meta and not counts_meta:
        return
    lane = recorder.lane()
    if lane.quiet or _is_silent(sys._getframe(2)):
        return
    if lane.position == NOWHERE or training_hooks.within_part():
        key = key[0], OTHER, key[2]
    try:
        nbytes = moved.nbytes
    except RuntimeError:  # a sparse one's
        nbytes = -1
    recorder.n_parts += 1
    lane.write(
        start_ns, end_ns, nbytes, -1, recorder._descriptions.get(key) or recorder._describe(*key)
    )


def _is_silent(frame: FrameType) -> bool:
    """Tell whether a call is one of those whose moves are none of a batch, or recorded already."""
    while frame.f_back is not None and (
        frame.f_globals is _own_names or frame.f_code.co_name == ON_BEHALF
    ):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", ""))
    return module == PARAMETERS or module.startswith(OWN)
