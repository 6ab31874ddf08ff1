"""Collective operations of ``torch.distributed``, timed: for ``iobench run``.

Methods of torch's ``ProcessGroup``, which all of its functions and FSDP end in, and ``Work.wait``
are replaced. DistributedDataParallel reduces gradients in C++, and keeps the times of that itself:
a logger of our own reads them.
"""

from __future__ import annotations

import functools
import re
import threading
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from iobench.recording import activation
from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind
from iobench.recording.outside import thread_lane
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording

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
HOOK: Final = "hook"
GRADIENTS: Final = "gradients"
BUFFERS: Final = "buffers"
BUCKETS: Final = "buckets"
"""In its second pass DistributedDataParallel agrees on which gradients are sent together."""

_lock: Final = threading.RLock()
_installed: Final[list[Callable[[], None]]] = []
_waited_at_once: Final[dict[int, tuple[int, int, int, bytes]]] = {}
"""By thread, the operation that it is going to wait for: its work, start, bytes, description."""
_begun: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Operations that go on while the thread does something else, until it waits for them."""
_reducers: Final[weakref.WeakKeyDictionary[Any, _Gradients]] = weakref.WeakKeyDictionary()


def install() -> None:
    """See operations that begin from now on. Idempotent."""
    if not torch.distributed.is_available():
        return
    with _lock:
        if _installed:
            return
        try:
            _install()
        except BaseException:
            uninstall()
            raise


def _install() -> None:
    from torch.nn.parallel import DistributedDataParallel

    dist: Any = torch.distributed
    for method, name in NAMES.items():
        if method in vars(dist.ProcessGroup):
            _replace(dist.ProcessGroup, method, functools.partial(_timed, name))
    _replace(dist.Work, "wait", _timed_wait)
    _replace(dist, "_broadcast_coalesced", _timed_buffers)
    _replace(dist, "_register_comm_hook", _with_timed_hook)
    _replace(DistributedDataParallel, "__init__", _watched)
    _replace(dist.Reducer, "prepare_for_forward", _told)
    _replace(dist.Reducer, "_rebuild_buckets", _timed_rebuild)
    _installed.append(register_optimizer_step_post_hook(_stepped).remove)


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    with _lock:
        while _installed:
            _installed.pop()()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = vars(owner)[name]
    ours = functools.wraps(original)(make(original))
    setattr(owner, name, ours)

    def restore() -> None:
        if vars(owner).get(name) is ours:
            setattr(owner, name, original)

    _installed.append(restore)


# -- operations ---------------------------------------------------------------------------


_descriptions: Final[dict[str, bytes]] = {}
_describes: Recorder | None = None


def _described(recorder: Recorder, text: str) -> bytes:
    global _describes
    if _describes is not recorder:
        _describes = recorder
        _descriptions.clear()
    found = _descriptions.get(text)
    if found is None:
        found = layout.DESCRIPTION.pack(0, recorder.string(text), Kind.COMM, 0, 1)
        _descriptions[text] = found
    return found


def _timed(name: str, original: Any) -> Any:
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self, *args, **kwargs)
        lane = recorder.lane()
        now_ns = lane.now_ns
        start_ns = now_ns()
        work = original(self, *args, **kwargs)
        try:
            # torch's functions give options last, or by name.
            options = kwargs["opts"] if "opts" in kwargs else args[-1] if args else None
            nbytes, on_cpu = _message(args)
            described = _described(recorder, name)
            if work is not None and on_cpu and not getattr(options, "asyncOp", True):
                _waited_at_once[get_ident()] = id(work), start_ns, nbytes, described
            else:
                lane.write(start_ns, now_ns(), nbytes, -1, described)
                if work is not None and on_cpu:
                    _begun.add(work)
        except Exception as error:  # noqa: BLE001 - the operation is under way, and the script's
            _misfits(error)
        return work

    # By this name pybind11 knows that a method of a group written in Python asks for torch's own.
    begin.__code__ = begin.__code__.replace(co_name=original.__name__)
    return begin


def _misfits(error: Exception) -> None:
    """Say that a version of torch has something else than is known here."""
    recording = current_recording()
    if recording is not None:
        text = ADDRESS.sub("", f"{type(error).__name__}: {error}")
        recording.add_unseen(f"collective operations of torch: {text}")


def _timed_wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self, *args, **kwargs)
        at_once = _waited_at_once.pop(get_ident(), None)
        if at_once is not None and at_once[0] == id(self):
            try:
                return original(self, *args, **kwargs)
            finally:
                lane = recorder.lane()
                now_ns = lane.now_ns
                lane.write(at_once[1], now_ns(), at_once[2], -1, at_once[3])
        if self not in _begun:
            return original(self, *args, **kwargs)
        _begun.discard(self)
        lane = recorder.lane()
        now_ns = lane.now_ns
        start_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            lane.write(start_ns, now_ns(), -1, -1, _described(recorder, WAIT))

    return wait


def _message(args: tuple[Any, ...]) -> tuple[int, bool]:
    """Return the bytes of an operation, -1 where they are not known, and whether a CPU has them.

    The larger of what this rank hands in and what it gets, as NCCL's tests count.
    """
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


# -- DistributedDataParallel --------------------------------------------------------------


def _timed_buffers(original: Any) -> Any:
    def _broadcast_coalesced(*args: Any, **kwargs: Any) -> Any:
        lane = thread_lane()
        if lane is None:
            return original(*args, **kwargs)
        try:
            nbytes, _ = _message(args[1:2])
        except Exception as error:  # noqa: BLE001 - as for the operations
            _misfits(error)
            return original(*args, **kwargs)
        start_ns = lane.now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            lane.write(start_ns, lane.now_ns(), nbytes, -1, _described(lane.recorder, BUFFERS))

    return _broadcast_coalesced


def _timed_rebuild(original: Any) -> Any:
    def _rebuild_buckets(self: Any) -> Any:
        lane = thread_lane()
        if lane is None:
            return original(self)
        start_ns = lane.now_ns()
        rebuilt = original(self)
        if rebuilt:
            lane.write(start_ns, lane.now_ns(), 0, -1, _described(lane.recorder, BUCKETS))
        return rebuilt

    return _rebuild_buckets


def _with_timed_hook(original: Any) -> Any:
    """Time hooks that a script gives torch for its gradients; torch keeps the script's own."""

    def _register_comm_hook(reducer: Any, state: Any, hook: Any) -> Any:
        @functools.wraps(hook)
        def timed(*args: Any) -> Any:
            lane = thread_lane()
            if lane is None:
                return hook(*args)
            start_ns = lane.now_ns()
            try:
                return hook(*args)
            finally:
                described = _described(lane.recorder, HOOK)
                lane.write(start_ns, lane.now_ns(), -1, -1, described)

        watched = _reducers.get(reducer)
        if watched is not None:
            watched.nbytes = 0  # its own operations tell
        return original(reducer, state, timed)

    return _register_comm_hook


class _Gradients:
    """Reads the times of the reductions of one reducer, whose own logger is left alone.

    What torch tells is of the last backward pass, and of wall time.
    """

    def __init__(self, reducer: Any, nbytes: int) -> None:
        self._logger = torch.distributed.Logger(reducer)
        self.nbytes = nbytes
        self._last = self.thread = 0
        self._recorder: Recorder | None = None  # of a pass that is not told yet

    def began(self, recorder: Recorder) -> None:
        """Note that a forward pass begins, whose gradients are to be recorded."""
        self.thread = get_ident()
        self._recorder = recorder

    def tell(self, recorder: Recorder) -> None:
        """Write the last reduction, unless that was done."""
        if self._recorder is not recorder:
            return
        try:
            self._tell(recorder)
        except Exception as error:  # noqa: BLE001 - between two steps of the script's
            self._recorder = None
            _misfits(error)

    def _tell(self, recorder: Recorder) -> None:
        self._logger.set_runtime_stats_and_log()
        told = self._logger._get_ddp_logging_data().ints_map
        end = told.get("backward_comm_time_end", 0)
        if end <= self._last:
            return
        self._last, self._recorder = end, None
        lane = thread_lane()
        if lane is None:
            return
        clock = recorder.clock
        now_ns = clock.now_ns()
        shift_ns = now_ns - clock.wall_ns()
        start_ns = told.get("backward_comm_time_start", 0) + shift_ns
        held_ns = told.get("backward_compute_time_end", 0) + shift_ns
        end_ns = end + shift_ns
        if not 0 < start_ns <= held_ns <= end_ns <= now_ns:
            raise ValueError("gradients: the wall clock was set while they were sent")
        lane.write(held_ns, end_ns, self.nbytes, -1, _described(recorder, GRADIENTS))

    def leave(self) -> None:
        """Write the last reduction: the recording, or its window, ends."""
        if self._recorder is not None:
            self.tell(self._recorder)


def _watched(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recording = current_recording()
        if recording is None:
            return
        try:
            _watch(recording, self)
        except Exception as error:  # noqa: BLE001 - the model is made, whatever it is like
            _misfits(error)

    return __init__


def _watch(recording: Recording, model: Any) -> None:
    """Read the times of a model's reductions, where they can be."""
    if model.device_type != "cpu":
        recording.add_unseen(
            f"gradients of DistributedDataParallel on {model.device_type}: their reduction is "
            "work of the device"
        )
        return
    if torch.distributed.get_debug_level() != torch.distributed.DebugLevel.OFF:
        recording.add_unseen(
            "gradients of DistributedDataParallel: under TORCH_DISTRIBUTED_DEBUG torch's own times "
            "go to its log, and are left as they are"
        )
        return
    nbytes = sum(
        each.nbytes
        for name, each in model.module.named_parameters()
        if each.requires_grad and name not in model.parameters_to_ignore
    )
    reducer = model.reducer
    watched = _Gradients(reducer, nbytes)
    reducer._set_ddp_runtime_logging_sample_rate(1)
    _reducers[reducer] = watched
    recording.open_log(watched)


def _told(original: Any) -> Any:
    def prepare_for_forward(self: Any) -> Any:
        recorder = activation._active
        if recorder is not None:
            watched = _reducers.get(self)
            if watched is not None:
                watched.tell(recorder)
                watched.began(recorder)
        return original(self)

    return prepare_for_forward


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    recorder = activation._active
    # Within a backward pass, and in what it waits for, a reducer may hold the lock that asking it
    # for its times takes.
    if recorder is not None and _reducers and torch._C._current_graph_task_id() < 0:
        for watched in [*_reducers.values()]:
            if watched.thread == get_ident():
                watched.tell(recorder)
