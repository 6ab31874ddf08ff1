"""What a script moves to its devices with ``jax.device_put`` and its like, timed from outside.

JAX returns before a copy is over, and waits where a result is needed: a span is the call alone.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.adapters.patches import Patches
from iobench.recording import activation
from iobench.recording.kinds import OTHER, Kind
from iobench.recording.lanes import NOWHERE
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.session import Recording

FUNCTIONS: Final = {
    "device_put": "x",
    "device_put_sharded": "shards",  # until jax 0.8
    "device_put_replicated": "x",
    "make_array_from_process_local_data": "local_data",
}
"""By function, the argument that lies in the host's memory; by name, or second where it is."""
PLACES: Final = {"make_array_from_process_local_data": 1}

ASYNCHRONOUS: Final = (
    "jax.device_put: it returns before a copy is complete, so only the time of its calls is "
    "reported"
)

UNTOLD: Final = (
    "host-to-device: no jax.device_put in a pass; arrays given to compiled functions are copied "
    "there, within compute"
)

_lock: Final = threading.Lock()
_n_moved = 0
_patches: Final = Patches()
_installed = False
_within = threading.local()
_told: Final[weakref.WeakValueDictionary[str, Recording]] = weakref.WeakValueDictionary()


def install() -> None:
    """Record a span of kind ``h2d`` for each call from now on. Idempotent."""
    global _installed
    jax: Any = sys.modules["jax"]
    with _lock:
        if _installed:
            return
        _installed = True
        for name, argument in FUNCTIONS.items():
            if name in vars(jax):
                _patches.put(jax, name, _timed(name, argument))


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    global _installed
    with _lock:
        _installed = False
        _patches.take_back()


def _timed(name: str, argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    place = PLACES.get(name, 0)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorder = activation._active
            if recorder is None or getattr(_within, "call", False):
                return original(*args, **kwargs)
            value = args[place] if len(args) > place else kwargs.get(argument)
            nbytes = host_nbytes(value)
            if not nbytes:  # it lies on a device already
                return original(*args, **kwargs)
            _within.call = True
            try:
                _tell_once()
                # As of torch's moves: of a batch is what comes after one was handed out.
                label = OTHER if recorder.lane().position == NOWHERE else ""
                with recorder.span(Kind.H2D, label, nbytes=nbytes, detail=name):
                    return original(*args, **kwargs)
            finally:
                _within.call = False

        return call

    return make


def n_moved() -> int:
    """Return how many calls moved arrays so far."""
    return _n_moved


def moved_none(since: int) -> bool:
    """Tell whether a script that has a device of JAX's moved nothing to it since then."""
    # grain imports JAX where it is installed: that alone does not say that a script uses it.
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    is_used: Callable[[], bool] = getattr(bridge, "backends_are_initialized", bool)
    return _installed and since == _n_moved and is_used()


def _tell_once() -> None:
    """Count a call, and let the report say what its time is of."""
    global _n_moved
    _n_moved += 1
    recording = current_recording()
    if recording is not None and _told.get("of") is not recording:
        _told["of"] = recording
        recording.add_unseen(ASYNCHRONOUS)


def host_nbytes(value: Any) -> int:
    """Return the bytes of the arrays in the host's memory that a tree of JAX's holds."""
    kind = type(value)
    if kind is np.ndarray or isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if kind is dict:
        return sum(map(host_nbytes, value.values()))
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return sum(map(host_nbytes, tuple.__iter__(value) if kind is not list else value))
    jax: Any = sys.modules["jax"]
    if isinstance(value, (jax.Array, int, float, complex, str, bytes, type(None))):
        return 0
    leaves = jax.tree_util.tree_leaves(value)  # of a class that is registered, as Flax's
    return sum(host_nbytes(each) for each in leaves if each is not value)
