"""What a script moves from the host's memory to its devices, timed from outside.

``Tensor.to``, ``cuda``, ``xpu``, ``copy_`` and ``pin_memory`` are methods of torch's own while
installed; movers of frameworks (accelerate's ``send_to_device``, Lightning's
``move_data_to_device``, ...) end in them. What torch compiles has them as operations of its own:
they are not called there. A move is of the batch whose memory it copies. What a script made of a
batch first has memory of its own: moved outside of a model's forward pass, of backward passes and
of steps, it is of the batch that its thread was handed last. All else is labelled `OTHER`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import Parameter

from iobench.recording import activation
from iobench.recording.kinds import Kind
from iobench.recording.lanes import NOWHERE
from iobench.torch import training_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording

__all__ = ["HOSTS", "OTHER", "deliver", "install", "uninstall", "watch"]

OTHER: Final = "other"
"""Label of what is moved and is not known to be of a batch."""
FRAMEWORK: Final = "torch"
HOSTS = frozenset({"cpu", "meta"})
"""Kinds of devices that nothing is moved to: the host's own memory, and none."""
MOVES: Final = ("to", "cuda", "xpu")
SILENT: Final = frozenset({"torch.nn.modules.module", "torch.utils.data._utils.pin_memory"})
"""Modules whose moves are none of a batch, or told already: of parameters, of a loader's thread."""
OWN: Final = "iobench."

DELIVERIES: Final = 16
"""Batches of which it is known where they lie."""
MOST_LEAVES: Final = 64
DEEPEST: Final = 6

PLAIN: Final = frozenset({torch.Tensor, Parameter})
_n_modes: Final = torch._C._len_torch_function_stack

_lock: Final = threading.Lock()
_replaced: Final[dict[str, Any]] = {}
_lying: Final[dict[int, tuple[StorageWeakRef, int, int]]] = {}
"""By the address of a storage of torch's, which none else gets meanwhile: batch and epoch."""
_deliveries: Final[deque[tuple[int, list[int]]]] = deque()
"""Of the last batches: their number, and where they lie."""
in_use = False
"""Whether anything was moved to a device so far: before, nobody asks where batches lie."""


def install() -> None:
    """Record what is moved from now on, as spans of kind ``h2d`` and ``pin``. Idempotent."""
    with _lock:
        if _replaced:
            return
        for name in MOVES:
            _replace(name, functools.partial(_moving, name))
        _replace("copy_", _copying)
        _replace("pin_memory", _pinning)


def uninstall() -> None:
    """Put torch's own methods back. Idempotent."""
    global in_use
    with _lock:
        for name, ours in _replaced.items():
            if vars(torch.Tensor).get(name) is ours:
                delattr(torch.Tensor, name)
        _replaced.clear()
        _lying.clear()
        _deliveries.clear()
        in_use = False


def watch(recording: Recording) -> None:
    """Install, and let a recording tell that what is moved is in it."""
    install()
    if FRAMEWORK not in recording.facts.moves:
        recording.facts.moves.append(FRAMEWORK)
        recording.write_facts()


def _replace(name: str, make: Callable[[Any], Any]) -> None:
    # Of torch's class in C; where another library has put its own there, it stays.
    if name in vars(torch.Tensor) or not hasattr(torch.Tensor, name):
        return
    original = getattr(torch.Tensor, name)
    ours: Any = functools.wraps(original)(make(original))
    # To be found, by whoever pickles it, where it is.
    ours.__module__, ours.__qualname__ = torch.Tensor.__module__, f"Tensor.{name}"
    setattr(torch.Tensor, name, ours)
    _replaced[name] = ours


def _moving(name: str, original: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not _is_seen(self) or not self.is_cpu:
            return original(self, *args, **kwargs)
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        moved = original(self, *args, **kwargs)
        if moved is not self and not (type(moved) in PLAIN and moved.is_cpu):
            _note(recorder, Kind.H2D, name, self, moved, start_ns, now_ns())
        return moved

    return method


def _copying(original: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not _is_seen(self) or self.is_cpu:
            return original(self, *args, **kwargs)
        source = args[0] if args else kwargs.get("src")
        if not isinstance(source, torch.Tensor) or not _is_seen(source) or not source.is_cpu:
            return original(self, *args, **kwargs)
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        copied = original(self, *args, **kwargs)
        _note(recorder, Kind.H2D, "copy_", source, copied, start_ns, now_ns())
        return copied

    return method


def _pinning(original: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not _is_seen(self) or not self.is_cpu:
            return original(self, *args, **kwargs)
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        pinned = original(self, *args, **kwargs)
        if pinned is not self:
            _note(recorder, Kind.PIN, "pin_memory", self, pinned, start_ns, now_ns())
        return pinned

    return method


def _is_seen(tensor: Any) -> bool:
    """Tell whether a method of this tensor is the work itself, and not its announcement.

    Modes and classes with a ``__torch_function__`` are given the method, and call it again where
    they want it done; asking them for a property would be seen by them. Tensors of classes that
    do what torch dispatches are stand-ins for others, or consist of others.
    """
    if _n_modes():
        return False
    kind = type(tensor)
    if kind in PLAIN:
        return True
    if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return False
    if kind.__torch_function__ is torch._C._disabled_torch_function_impl:
        return True
    return not torch._C._is_torch_function_enabled()


def _note(
    recorder: Recorder, kind: Kind, name: str, source: Any, moved: Any, start_ns: int, end_ns: int
) -> None:
    """Record a move that is over, if it was one."""
    global in_use
    if not _is_seen(moved) or (kind is Kind.H2D and moved.device.type in HOSTS):
        return
    in_use = True
    by = _calling_module()
    if by in SILENT or by.startswith(OWN):
        return
    lane = recorder.lane()
    if lane.quiet:
        return
    storage = _storage(source)
    known = None if storage is None else _lying.get(storage._cdata)
    label = ""
    if known is None and (lane.position == NOWHERE or training_hooks.within_part()):
        label = OTHER
    try:
        nbytes = moved.nbytes
    except RuntimeError:  # a sparse one's
        nbytes = -1
    recorder.n_parts += 1
    if known is None:
        lane.write(start_ns, end_ns, nbytes, -1, recorder.described(kind, label, name))
        return
    _, batch, epoch = known
    recorder.emit(
        kind, start_ns, end_ns, nbytes, batch=batch, epoch=epoch, detail=recorder.string(name)
    )
    if kind is Kind.PIN:
        keys: list[int] = []
        _lie(_storage(moved), batch, epoch, keys)
        _keep(batch, keys)


def _calling_module() -> str:
    """Return the name of the module whose code moves a tensor."""
    frame = sys._getframe(2)
    own = globals()
    while frame.f_back is not None and (
        frame.f_globals is own or frame.f_code.co_name == "__torch_function__"
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


# -- where batches lie --------------------------------------------------------------------


def deliver(data: Any, batch: int, epoch: int) -> None:
    """Note where a batch lies that a training loop was handed."""
    keys: list[int] = []
    _find(data, batch, epoch, keys, DEEPEST)
    _keep(batch, keys)


def _keep(batch: int, keys: list[int]) -> None:
    _deliveries.append((batch, keys))
    while len(_deliveries) > DELIVERIES:
        earliest, keys = _deliveries.popleft()
        for key in keys:
            lies = _lying.get(key)
            if lies is not None and lies[1] == earliest:  # no later batch lies there
                _lying.pop(key, None)


def _find(data: Any, batch: int, epoch: int, keys: list[int], depth: int) -> None:
    """Look for tensors, in what is known to be looked into without a method of its own."""
    if isinstance(data, torch.Tensor):
        _lie(_storage(data), batch, epoch, keys)
    elif not depth or len(keys) >= MOST_LEAVES:
        return
    elif isinstance(data, dict):
        for each in dict.values(data):
            _find(each, batch, epoch, keys, depth - 1)
    elif isinstance(data, list):
        for each in list.__iter__(data):
            _find(each, batch, epoch, keys, depth - 1)
    elif isinstance(data, tuple):
        for each in tuple.__iter__(data):
            _find(each, batch, epoch, keys, depth - 1)
    else:
        try:
            fields = object.__getattribute__(data, "__dict__")
        except AttributeError:  # numbers, texts, arrays
            return
        if isinstance(fields, dict) and not isinstance(data, (type, torch.nn.Module)):
            _find(fields, batch, epoch, keys, depth - 1)


def _lie(storage: Any, batch: int, epoch: int, keys: list[int]) -> None:
    if storage is None:
        return
    kept = StorageWeakRef(storage)
    _lying[kept.cdata] = kept, batch, epoch
    keys.append(kept.cdata)


def _storage(tensor: torch.Tensor) -> Any:
    """Return where a tensor of the host's memory lies; None of one that has no place."""
    if not _is_seen(tensor):
        return None
    try:
        return tensor.untyped_storage() if tensor.is_cpu else None
    except (RuntimeError, NotImplementedError):  # a sparse one, or one that a transform stands for
        return None
