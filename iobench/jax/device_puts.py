"""What a script moves to its devices with ``jax.device_put`` and its like, timed from outside.

JAX returns before a copy is over, and waits where a result is needed: a span is the call alone.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.adapters.patches import Hooks, Patches
from iobench.recording import activation
from iobench.recording.kinds import OTHER, Kind
from iobench.recording.recorder import NOWHERE
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

FUNCTIONS: Final = {
    "device_put": (0, "x"),
    "device_put_sharded": (0, "shards"),  # until jax 0.8
    "device_put_replicated": (0, "x"),
    "make_array_from_process_local_data": (1, "local_data"),
}
"""By function, place and name of the argument that lies in the host's memory."""
ASYNCHRONOUS: Final = (
    "jax.device_put: it returns before a copy is complete, so only the time of its calls is "
    "reported"
)
_within = threading.local()


def _begin(patches: Patches) -> None:
    jax: Any = sys.modules["jax"]
    for name in FUNCTIONS.keys() & vars(jax).keys():
        patches.put(jax, name, _timed(name, *FUNCTIONS[name]))


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall


def _timed(name: str, place: int, argument: str) -> Callable[..., Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorder = activation._active
            if recorder is None or getattr(_within, "call", False):
                return original(*args, **kwargs)
            nbytes = host_nbytes(args[place] if len(args) > place else kwargs.get(argument))
            if not nbytes:  # it lies on a device already
                return original(*args, **kwargs)
            _within.call = True
            try:
                if (recording := current_recording()) is not None:
                    recording.add_unseen(ASYNCHRONOUS)
                # As of torch's moves: of a batch is what comes after one was handed out.
                label = OTHER if recorder.lane().position == NOWHERE else ""
                with recorder.span(Kind.H2D, label, nbytes=nbytes, detail=name):
                    return original(*args, **kwargs)
            finally:
                _within.call = False

        return call

    return make


def host_nbytes(value: Any) -> int:
    """Return the bytes of the arrays in the host's memory that a tree of JAX's holds."""
    leaves = sys.modules["jax"].tree_util.tree_leaves(value)
    return sum(each.nbytes for each in leaves if isinstance(each, (np.ndarray, np.generic)))
