"""What a script moves from the host's memory to its devices, timed from outside.

Movers of frameworks end in ``Tensor.to``, ``cuda``, ``xpu``, ``copy_`` and ``pin_memory``. A
compiled function has them as operations of its own, unless it calls ``torch.Tensor.to(x)``, or a
method of a subclass with a ``__torch_function__``: it is compiled in parts then, and
``fullgraph=True`` refuses it. A move is of the batch whose memory it copies. What a script made of
a batch first, moved outside of forward and backward passes and of steps, is of the batch that its
thread was handed last. All else is labelled `OTHER`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import Parameter
from torch.utils._pytree import tree_leaves

from iobench.recording import activation
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import OTHER, Kind
from iobench.recording.recorder import NOWHERE
from iobench.recording.span_file import POSITION
from iobench.torch import training_hooks
from iobench.torch.device import TorchAccelerator

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from iobench.recording.recorder import Recorder

MOVES: Final = ("to", "cuda", "xpu")
COPY: Final = "copy_"
PINNING: Final = "pin_memory"
SILENT: Final = frozenset({"torch.nn.modules.module"})
"""Modules whose moves are of parameters."""
PINS: Final = "torch.utils.data._utils.pin_memory"
"""Where loaders pin batches, or let them pin themselves: which is told already."""
OWN: Final = "iobench."
ON_BEHALF: Final = "__torch_function__"
"""The method that is called in between, and calls."""

MOST_LYING: Final = 256
"""Tensors of the latest batches of which it is known where they lie."""
MOST_FRAMES: Final = 16

H2D, PIN = int(Kind.H2D), int(Kind.PIN)  # of an enumeration each look-up takes as long as a call
_own_names: Final = globals()
PLAIN: Final = frozenset({torch.Tensor, Parameter})
_n_modes: Final = torch._C._len_torch_function_stack


class _Here(threading.local):
    """Whether the script itself times on the device what the calling thread moves."""

    is_timed = False


here: Final = _Here()
_lock: Final = threading.Lock()
_replaced: Final[dict[str, tuple[Any, Any]]] = {}
"""What a class had of a name, and what is there now; or around ours, if somebody has wrapped it."""
_lanes: Final[dict[torch.device, DeviceLane]] = {}
"""Of devices that something was moved to."""
_lying: Final[OrderedDict[int, tuple[StorageWeakRef, bytes]]] = OrderedDict()
"""By the address of a storage of torch's, which none else gets meanwhile: `Lane.position` of the
batch that lies there, the latest ones last."""
counts_meta = False
"""Whether torch's ``meta`` is a device: for tests, where there is no other."""
in_use = False
"""Whether anything was moved to a device so far: before, nobody asks where batches lie."""


def install() -> None:
    """Record what is moved from now on, as spans of kind ``h2d`` and ``pin``. Idempotent."""
    with _lock:
        for name in (*MOVES, COPY, PINNING):
            if name in _replaced or not hasattr(torch.Tensor, name):
                continue
            original = getattr(torch.Tensor, name)
            ours: Any = functools.wraps(original)(_timed(name, original))
            # To be found, by whoever pickles it, where it is.
            ours.__module__, ours.__qualname__ = torch.Tensor.__module__, f"Tensor.{name}"
            _replaced[name] = vars(torch.Tensor).get(name), ours
            setattr(torch.Tensor, name, ours)


def uninstall() -> None:
    """Put torch's own methods back, unless somebody has wrapped ours. Idempotent."""
    global in_use
    with _lock:
        for name, (before, ours) in [*_replaced.items()]:
            if vars(torch.Tensor).get(name) is not ours:
                continue
            del _replaced[name]
            if before is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, before)
        _lanes.clear()
        _lying.clear()
        in_use = False


def _timed(name: str, original: Any) -> Callable[..., Any]:
    """Return a method that times moves; it is called for every tensor of a script."""
    copies, pins = name == COPY, name == PINNING
    key = PIN if pins else H2D, "", name

    def method(*args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or not args or not _is_work(args[0]) or args[0].is_cpu is copies:
            return original(*args, **kwargs) if kwargs else original(*args)
        # Tracing names values after local variables that hold them: there is none for ``args[0]``.
        source = None
        if copies:
            source = args[1] if len(args) > 1 else kwargs.get("src")
            if not isinstance(source, torch.Tensor) or not _is_work(source) or not source.is_cpu:
                return original(*args, **kwargs)
        now_ns, region = recorder.clock.now_ns, None
        if _lanes and not pins and not here.is_timed and _leaves_host(name, args, kwargs):
            region = _Region(now_ns())
        start_ns = now_ns()
        moved = original(*args, **kwargs) if kwargs else original(*args)
        if moved is not args[0] if pins else not moved.is_cpu:
            _note(recorder, key, source if copies else args[0], moved, start_ns, now_ns(), region)
        elif region is not None:
            region.drop()
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


def _leaves_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a call may move something: not where it names a dtype alone, or the host."""
    target: Any = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, torch.dtype):
        target = kwargs.get("device")
    if isinstance(target, torch.Tensor):
        return type(target) not in PLAIN or not target.is_cpu
    return name != "to" or (target is not None and not str(target).startswith("cpu"))


def _note(
    recorder: Recorder,
    key: tuple[int, str, str],
    source: Any,
    moved: Any,
    start_ns: int,
    end_ns: int,
    region: _Region | None = None,
) -> None:
    """Record a move that is over, if it was one; ``key`` is its kind, label and call."""
    global in_use
    if region is not None:
        region.end()
    if type(moved) not in PLAIN and not _is_work(moved):
        return
    if moved.is_meta:
        if not counts_meta:
            return
    elif moved.device not in _lanes and (moved.is_cuda or moved.is_xpu):
        _lanes[moved.device] = DeviceLane(TorchAccelerator(moved.device))
    in_use = True
    frame = sys._getframe(2)
    pins = key[0] == PIN
    lane = recorder.lane()
    if lane.quiet or _is_silent(frame) or (pins and _pins_for_loader(frame)):
        if region is not None:
            region.drop()
        return
    before = position = lane.position
    known = _lying.get(_address(source)) if _lying else None
    if known is not None:
        position = known[1]
    elif position == NOWHERE or training_hooks.within_part():
        key = key[0], OTHER, key[2]
    try:
        nbytes = moved.nbytes
    except RuntimeError:  # a sparse one's
        nbytes = -1
    recorder.n_parts += 1
    lane.position = position
    lane.write(
        start_ns, end_ns, nbytes, -1, recorder._descriptions.get(key) or recorder._describe(*key)
    )
    lane.position = before
    if region is not None:
        region.keep(recorder, moved.device, key[1], nbytes, position)
    if pins and known is not None:
        _lie(moved, position)


def _is_silent(frame: FrameType) -> bool:
    """Tell whether a call is one of those whose moves are none of a batch, or recorded already."""
    while frame.f_back is not None and (
        frame.f_globals is _own_names or frame.f_code.co_name == ON_BEHALF
    ):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", ""))
    return module in SILENT or module.startswith(OWN)


def _pins_for_loader(frame: FrameType | None) -> bool:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == PINS:
            return True
        frame = frame.f_back
    return False


# -- the device's own time ----------------------------------------------------------------


class _Region:
    """One move, between two marks in the queue of the device that was moved to first."""

    __slots__ = ("_device", "_lane", "_marks", "_put_ns")

    def __init__(self, put_ns: int) -> None:
        self._device, self._lane = next(iter(_lanes.items()))
        self._put_ns, self._marks = put_ns, [self._lane.mark()]

    def end(self) -> None:
        """Put the second mark."""
        if self._marks[0] is not None:
            self._marks.append(self._lane.mark())

    def drop(self) -> None:
        """Forget it: nothing was moved, or nothing of a batch."""
        for mark in self._marks:
            if mark is not None:
                self._lane.clock.release(mark)

    def keep(
        self, recorder: Recorder, device: torch.device, label: str, nbytes: int, position: bytes
    ) -> None:
        """Let it become a span once the device is seen to have passed it."""
        first, last = self._marks[0], self._marks[-1]
        if len(self._marks) < 2 or last is None or device != self._device:
            self.drop()
            return
        _, batch, epoch = POSITION.unpack(position)
        region = DeviceRegion(Kind.H2D, label, first, last, self._put_ns, batch, epoch, nbytes)
        self._lane.add(recorder, region)
        self._lane.look()


def look() -> None:
    """Write the moves that devices are seen to have made by now; wait for none."""
    for lane in tuple(_lanes.values()):
        lane.look()


# -- where batches lie --------------------------------------------------------------------


def deliver(data: Any, batch: int, epoch: int) -> None:
    """Note where a batch lies that a training loop was handed."""
    position = POSITION.pack(-1, batch, epoch)
    for leaf in tree_leaves(data):
        if isinstance(leaf, torch.Tensor):
            _lie(leaf, position)


def _lie(tensor: Any, position: bytes) -> None:
    """Note which batch lies where a tensor of the host's memory does."""
    if (type(tensor) in PLAIN or _is_work(tensor)) and tensor.is_cpu and _address(tensor):
        reference = StorageWeakRef(tensor.untyped_storage())
        _lying.pop(reference.cdata, None)
        _lying[reference.cdata] = reference, position
        if len(_lying) > MOST_LYING:
            _lying.popitem(last=False)


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 of one that has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse one, or one that a transform stands for
        return 0
