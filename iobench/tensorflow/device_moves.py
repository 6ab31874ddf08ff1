"""What a script moves from the host's memory to its devices with TensorFlow, timed from outside.

Eager TensorFlow returns when a copy is made, so that the call tells its time. What compiled
functions, Keras' own steps and tf.data copy is moved inside of their operations, of which no call
tells; so are tensors that an operation is given which lie elsewhere.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from iobench.adapters.patches import Patches
from iobench.recording import activation
from iobench.recording.kinds import OTHER, Kind
from iobench.recording.lanes import NOWHERE
from iobench.recording.session import current_recording
from iobench.recording.span_file import POSITION

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.lanes import Lane
    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording

FRAMEWORK: Final = "tensorflow"
FUNCTIONS: Final = {"identity": "input", "convert_to_tensor": "value", "constant": "value"}
"""Of ``tf``; by function, the argument that may lie in the host's memory."""
METHOD: Final = "_copy"
"""In which ``gpu`` and ``cpu`` of eager tensors end."""
DELIVERIES: Final = 16
"""Batches of which it is known which tensors they are."""
NUMBERS: Final = (bool, int, float, complex, str, bytes)

EagerTensor: Final[Any] = getattr(
    sys.modules.get("tensorflow.python.framework.ops"), "EagerTensor", None
)

INSIDE: Final = (
    "TensorFlow: copies to devices that its operations make by themselves, of tensors that lie "
    "elsewhere, in compiled functions, steps of Keras and tf.data"
)

_lock: Final = threading.Lock()
_patches: Final = Patches()
_installed = False
_holds: Final[dict[str, bool]] = {}
"""Whether memory is a device's, by the device that it belongs to, as TensorFlow calls it."""
_tensors: Final[dict[int, tuple[weakref.ref[Any], bytes]]] = {}
"""By ``id``: the tensors of the last batches, and what `Lane.position` is for each."""
_deliveries: Final[deque[tuple[bytes, list[int]]]] = deque()
_sizes: Final[dict[int, int]] = {}
"""Bytes of a value, by the number of its type."""
counted: Final[set[str]] = set()
"""What else counts as a device, as ``"CPU:1"``: for tests, where there is no other."""
in_use = False
"""Whether anything was moved to a device so far: before, nobody asks what batches are."""


def install() -> None:
    """Record what is moved from now on, as spans of kind ``h2d``. Idempotent.

    What does not fit an unknown version of TensorFlow is left alone, and told as unseen.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        try:
            for name, argument in FUNCTIONS.items():
                _patches.put(tf, name, _moving(name, argument))
            owner = next(each for each in EagerTensor.__mro__ if METHOD in vars(each))
            _patches.put(owner, METHOD, _moving("gpu", "self"))
        except (AttributeError, TypeError, StopIteration) as error:
            recording = current_recording()
            if recording is not None:
                recording.add_unseen(f"moves of TensorFlow {tf.__version__} to devices: {error}")


def uninstall() -> None:
    """Put TensorFlow's own back. Idempotent."""
    global _installed, in_use
    with _lock:
        _installed = in_use = False
        _patches.take_back()
        _holds.clear()
        _tensors.clear()
        _deliveries.clear()


def watch(recording: Recording) -> None:
    """Install, and let a recording tell that what is moved is in it."""
    install()
    if FRAMEWORK not in recording.facts.moves:
        recording.facts.moves.append(FRAMEWORK)
        recording.write_facts()


def place_of(batch: Any) -> str:
    """Return the device on which a batch is, as ``GPU:0``; ``""`` where that is the host."""
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if type(leaf) is EagerTensor and _is_device(leaf.backing_device):
            return str(leaf.backing_device.rpartition("device:")[2])
    return ""


def deliver(batch: Any, number: int, epoch: int) -> None:
    """Note the tensors of a batch that a training loop was handed."""
    position = POSITION.pack(-1, number, epoch)
    keys: list[int] = []
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if type(leaf) is EagerTensor:
            _tensors[id(leaf)] = weakref.ref(leaf), position
            keys.append(id(leaf))
    _deliveries.append((position, keys))
    while len(_deliveries) > DELIVERIES:
        earliest, keys = _deliveries.popleft()
        for key in keys:
            if key in _tensors and _tensors[key][1] is earliest:  # no later one has its place
                del _tensors[key]


def _moving(name: str, argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorder = activation._active
            if recorder is None:
                return original(*args, **kwargs)
            now_ns = recorder.clock.now_ns
            start_ns = now_ns()
            moved = original(*args, **kwargs)
            if type(moved) is EagerTensor and _is_device(moved.backing_device):
                end_ns = now_ns()
                _note(recorder, name, args[0] if args else kwargs.get(argument), moved,
                      start_ns, end_ns)  # fmt: skip
            return moved

        return call

    return make


def _is_device(name: str) -> bool:
    held = _holds.get(name)
    if held is None:
        device = tf.DeviceSpec.from_string(name)
        told = f"{device.device_type}:{device.device_index}"
        held = _holds[name] = device.device_type not in ("CPU", None) or told in counted
    return held


def _note(
    recorder: Recorder, name: str, source: Any, moved: Any, start_ns: int, end_ns: int
) -> None:
    """Record a call that is over and returned what lies on a device, if that came from the host."""
    global in_use
    if not in_use:
        in_use = True
        if (recording := current_recording()) is not None:
            recording.add_unseen(INSIDE)
    known = None
    kind = type(source)
    if kind is EagerTensor:
        if source is moved or _is_device(source.backing_device):
            return
        known = _tensors.get(id(source)) if _tensors else None
    elif kind is not np.ndarray and (source is None or isinstance(source, _not_moved())):
        return
    try:
        lane: Lane = recorder._local.lane
    except AttributeError:
        lane = recorder.lane()
    if lane.quiet:
        return
    before, label = lane.position, ""
    if known is not None and known[0]() is source:
        lane.position = known[1]
    elif before == NOWHERE:
        label = OTHER
    key = Kind.H2D, label, name
    described = recorder._descriptions.get(key) or recorder._describe(*key)
    lane.write(start_ns, end_ns, _nbytes(moved), -1, described)
    lane.position = before
    recorder.n_parts += 1


def _not_moved() -> tuple[type, ...]:
    """Return the types of what is on a device already, or of which TensorFlow keeps copies."""
    return (*NUMBERS, np.generic, tf.Tensor, tf.Variable)


def _nbytes(tensor: Any) -> int:
    try:  # as `Tensor.shape` and `Tensor.dtype` do, which take three times as long
        return int(tensor._num_elements() * _sizes[tensor._datatype_enum()])
    except (AttributeError, KeyError):
        _sizes[tensor.dtype.as_datatype_enum] = tensor.dtype.size
        return int(tensor.shape.num_elements() * tensor.dtype.size)
