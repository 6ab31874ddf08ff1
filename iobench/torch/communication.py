"""Collective operations of ``torch.distributed``, timed: for ``iobench run``.

Methods of ``ProcessGroup``, which its functions and FSDP end in, and ``Work.wait`` are replaced.
"""

from __future__ import annotations

import functools
import re
import threading
import weakref
from threading import get_ident
from typing import Any, Final

import torch

from iobench.adapters.patches import Patches
from iobench.recording import activation
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording

NAMES: Final = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all_gather", "_allgather_base": "all_gather", "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather", "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all",
    "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv",
    "recv_anysource": "recv", "barrier": "barrier", "monitored_barrier": "barrier",
}  # fmt: skip
"""Methods of a process group, as versions of torch have them, and the operation each begins."""
ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
WAIT: Final = "wait"
REDUCED: Final = (
    "gradients of DistributedDataParallel: they are reduced in C++, as a part of the backward pass"
)

_lock: Final = threading.RLock()
_patches: Final = Patches()
_waited_at_once: Final[dict[int, tuple[int, int, int, bytes]]] = {}
"""By thread, the operation that it is going to wait for: its work, start, bytes, description."""
_begun: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Operations that go on while the thread does something else, until it waits for them."""


def install() -> None:
    """See operations that begin from now on. Idempotent."""
    with _lock:
        if _patches or not torch.distributed.is_available():
            return
        from torch.nn.parallel import DistributedDataParallel

        dist: Any = torch.distributed
        try:
            for method in NAMES.keys() & vars(dist.ProcessGroup).keys():
                _patches.put(dist.ProcessGroup, method, functools.partial(_timed, NAMES[method]))
            _patches.put(dist.Work, "wait", _timed_wait)
            _patches.put(DistributedDataParallel, "__init__", _noted)
        except BaseException:
            uninstall()
            raise


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    with _lock:
        _patches.take_back()


def _timed(name: str, original: Any) -> Any:
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self, *args, **kwargs)
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        work = original(self, *args, **kwargs)
        try:
            # torch's functions give options last, or by name.
            options = kwargs["opts"] if "opts" in kwargs else args[-1] if args else None
            nbytes, on_cpu = _message(args)
            described = recorder.described(Kind.COMM, name)
            if work is not None and on_cpu and not getattr(options, "asyncOp", True):
                _waited_at_once[get_ident()] = id(work), start_ns, nbytes, described
            else:
                recorder.lane().write(start_ns, now_ns(), nbytes, -1, described)
                if work is not None and on_cpu:
                    _begun.add(work)
        except Exception as error:  # noqa: BLE001 - the operation is under way, and the script's
            recording = current_recording()
            if recording is not None:  # of a version of torch that is not known
                text = ADDRESS.sub("", f"{type(error).__name__}: {error}")
                recording.add_unseen(f"collective operations of torch: {text}")
        return work

    # By this name pybind11 knows that a method of a group written in Python asks for torch's own.
    begin.__code__ = begin.__code__.replace(co_name=original.__name__)
    return begin


def _timed_wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self, *args, **kwargs)
        at_once, now_ns = _waited_at_once.pop(get_ident(), None), recorder.clock.now_ns
        if at_once is not None and at_once[0] == id(self):
            _, start_ns, nbytes, described = at_once
        elif self in _begun:
            _begun.discard(self)
            start_ns, nbytes, described = now_ns(), -1, recorder.described(Kind.COMM, WAIT)
        else:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.lane().write(start_ns, now_ns(), nbytes, -1, described)

    return wait


def _message(args: tuple[Any, ...]) -> tuple[int, bool]:
    """Return the bytes of an operation, -1 where they are not known, and whether a CPU has them."""
    nbytes, on_cpu = 0, True
    try:
        for each in args[:2]:
            while type(each) is list and len(each) == 1:
                each = each[0]
            if type(each) is list:
                sizes = [_message((part,)) for part in each]
                nbytes = max(nbytes, sum(own for own, _ in sizes))
                on_cpu = on_cpu and all(here for _, here in sizes)
            elif hasattr(each, "nbytes"):
                nbytes, on_cpu = max(nbytes, each.nbytes), on_cpu and each.is_cpu
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):  # sparse ones
        return -1, True
    return nbytes, on_cpu


def _noted(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recording = current_recording()
        if recording is not None:
            recording.add_unseen(REDUCED)

    return __init__
