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
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.lanes import Lane
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
FROM_ROOT: Final = ("broadcast", "scatter", "buffers")
TO_ROOT: Final = ("reduce", "gather")
GRADIENTS: Final = "gradients"
BUFFERS: Final = "buffers"
BUCKETS: Final = "buckets from 0"
"""In its second pass DistributedDataParallel agrees on which gradients are sent together."""
MOST_BEGUN: Final = 4096
LANE: Final = "communication"

_lock: Final = threading.RLock()
_installed: Final[list[Callable[[], None]]] = []
_waited_at_once: Final[dict[int, tuple[int, int, int, bytes]]] = {}
"""By thread, the operation that it is going to wait for: its work, start, bytes, description."""
_begun: Final[dict[int, tuple[weakref.ref[Any], int, int, str]]] = {}
"""By work, those that go on beside: start, bytes, name."""
_names: Final[dict[tuple[int, str, int], _Name]] = {}
_reducers: Final[weakref.WeakKeyDictionary[Any, _Gradients]] = weakref.WeakKeyDictionary()


def install() -> None:
    """See operations that begin from now on. Idempotent.

    Raises
    ------
    KeyError
        If this version of torch has not what is to be replaced; nothing is, then.
    """
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


class _Name:
    """What an operation of a group is called, and how its spans are described."""

    __slots__ = ("begun", "group", "plain", "recorder", "text")

    def __init__(self, recorder: Recorder, group: Any, text: str) -> None:
        self.recorder, self.group, self.text = recorder, weakref.ref(group), text
        self.plain = _described(recorder, text)
        self.begun = _described(recorder, text, Flag.BEGUN)


def _named(recorder: Recorder, group: Any, name: str, root: int = -1) -> _Name:
    """Return the name of an operation, with its root; of a part of the ranks, with these."""
    known = _names.get((id(group), name, root))
    if known is not None and known.recorder is recorder and known.group() is group:
        return known
    dist: Any = torch.distributed
    text = name
    if root >= 0:
        way = "from" if name in FROM_ROOT else "to"
        text = f"{name} {way} {dist.get_global_rank(group, root)}"
    if group.size() != dist.get_world_size():
        text += f" of ranks {_ranges(dist.get_process_group_ranks(group))}"
    found = _names[id(group), name, root] = _Name(recorder, group, text)
    return found


def _ranges(ranks: list[int]) -> str:
    """Return numbers as ``"0-3,8"``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ",".join("-".join(map(str, each)) for each in found)


_descriptions: Final[dict[tuple[str, int], bytes]] = {}
_describes: Recorder | None = None


def _described(recorder: Recorder, text: str, flags: int = 0) -> bytes:
    global _describes
    if _describes is not recorder:
        _describes = recorder
        _descriptions.clear()
    found = _descriptions.get((text, flags))
    if found is None:
        found = layout.DESCRIPTION.pack(0, recorder.string(text), Kind.COMM, flags, 1)
        _descriptions[text, flags] = found
    return found


def _timed(name: str, original: Any) -> Any:
    has_root = name in FROM_ROOT or name in TO_ROOT

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
            root = getattr(options, "rootRank", -1) if has_root else -1
            known = _named(recorder, self, name, root)
            if work is None:  # it has waited, or the device is going to
                described = known.plain if on_cpu else known.begun
                lane.write(start_ns, now_ns(), nbytes, -1, described)
            elif on_cpu and not getattr(options, "asyncOp", True):
                _waited_at_once[get_ident()] = id(work), start_ns, nbytes, known.plain
            else:
                lane.write(start_ns, now_ns(), nbytes, -1, known.begun)
                if on_cpu:
                    if len(_begun) >= MOST_BEGUN:  # nobody waits for them
                        _begun.pop(next(iter(_begun)), None)
                    _begun[id(work)] = weakref.ref(work), start_ns, nbytes, known.text
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
        begun = _begun.pop(id(self), None)
        if begun is None or not _is(begun[0], self):
            return original(self, *args, **kwargs)
        try:
            was_done = self.is_completed()
        except RuntimeError:  # it failed, as waiting for it is going to say
            was_done = True
        lane = recorder.lane()
        now_ns = lane.now_ns
        start_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            end_ns = now_ns()
            lane.write(start_ns, end_ns, -1, -1, _described(recorder, WAIT))
            if not was_done:  # else nobody knows when it was
                _, begun_ns, nbytes, text = begun
                _write_apart(lane, text, begun_ns, end_ns, nbytes)

    return wait


def _is(reference: weakref.ref[Any], work: Any) -> bool:
    """Tell whether an operation is what it was, and not another in the same place of memory."""
    return reference() is work


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


_beside: tuple[Recorder | None, Lane | None] = None, None


def _write_apart(lane: Lane, name: str, start_ns: int, end_ns: int, nbytes: int) -> None:
    """Write an operation's own time, beside what the thread did meanwhile."""
    global _beside
    recorder = lane.recorder
    with _lock:
        if _beside[0] is not recorder:
            _beside = recorder, recorder.foreign_lane(LANE)
        own = _beside[1]
        assert own is not None
        own.position = lane.position
        own.write(start_ns, end_ns, nbytes, -1, _described(recorder, name, Flag.DETAIL))


# -- DistributedDataParallel --------------------------------------------------------------


def _timed_buffers(original: Any) -> Any:
    def _broadcast_coalesced(*args: Any, **kwargs: Any) -> Any:
        lane = thread_lane()
        if lane is None:
            return original(*args, **kwargs)
        try:
            nbytes, on_cpu = _message(args[1:2])
            known = _named(lane.recorder, args[0], BUFFERS, args[3] if len(args) > 3 else 0)
        except Exception as error:  # noqa: BLE001 - as for the operations
            _misfits(error)
            return original(*args, **kwargs)
        start_ns = lane.now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            described = known.plain if on_cpu else known.begun
            lane.write(start_ns, lane.now_ns(), nbytes, -1, described)

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

    def __init__(self, reducer: Any, name: str, nbytes: int) -> None:
        self._logger = torch.distributed.Logger(reducer)
        self._name, self.nbytes = name, nbytes
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
        described = _described(recorder, self._name, Flag.BEGUN)
        lane.write(held_ns, end_ns, self.nbytes, -1, described)
        _write_apart(lane, self._name, start_ns, end_ns, self.nbytes)

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
    name = _named(recording.recorder, model.process_group, GRADIENTS).text
    watched = _Gradients(reducer, name, nbytes)
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
    if recorder is not None and torch._C._current_graph_task_id() < 0:
        for watched in [*_reducers.values()]:
            if watched.thread == get_ident():
                watched.tell(recorder)
