"""Collective operations of ``torch.distributed``, timed: for ``iobench run``.

Methods of ``ProcessGroup``, which its functions and FSDP end in, and ``Work.wait`` are replaced.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Final

import torch

from iobench.adapters.patches import Hooks, Patches
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
REDUCED: Final = (
    "gradients of DistributedDataParallel: they are reduced in C++, as a part of the backward pass"
)

_begun: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
"""Operations that nobody has waited for yet."""


def _begin(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    dist: Any = torch.distributed
    for method in NAMES.keys() & vars(dist.ProcessGroup).keys():
        patches.put(dist.ProcessGroup, method, functools.partial(_timed, NAMES[method]))
    patches.put(dist.Work, "wait", _timed_wait)
    patches.put(DistributedDataParallel, "__init__", _noted)


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall


def _timed(name: str, original: Any) -> Any:
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self, *args, **kwargs)
        with recorder.span(Kind.COMM, name):
            work = original(self, *args, **kwargs)
        if isinstance(work, torch.distributed.Work):
            _begun[work] = name
        return work

    # By this name pybind11 knows that a method of a group written in Python asks for torch's own.
    begin.__code__ = begin.__code__.replace(co_name=original.__name__)
    return begin


def _timed_wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, name = activation._active, _begun.pop(self, None)
        if recorder is None or name is None:
            return original(self, *args, **kwargs)
        with recorder.span(Kind.COMM, name):
            return original(self, *args, **kwargs)

    return wait


def _noted(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recording = current_recording()
        if recording is not None:
            recording.add_unseen(REDUCED)

    return __init__
