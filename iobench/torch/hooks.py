"""Every DataLoader of a script recorded, whoever imported the class: for ``iobench run``.

The method ``__iter__`` of torch's class, and of torchdata's ``StatefulDataLoader``, is replaced;
what it does is imported when the first loader is iterated over.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from typing import Any, Final

from iobench.recording.clocks import now_ns
from iobench.recording.session import loop_recording

STATEFUL: Final = ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader")

_lock: Final = threading.RLock()
_replaced: Final[dict[type, Any]] = {}


def install() -> None:
    """Record what loaders do that are iterated over from now on. Idempotent.

    Needs ``torch.utils.data`` imported; a StatefulDataLoader may be imported later.
    """
    from iobench.torch import device_moves, roles  # torch is whole by now

    roles.install()
    device_moves.install()
    loader: Any = sys.modules["torch.utils.data"].DataLoader
    with _lock:
        _replace(loader)
        module = sys.modules.get(STATEFUL[0])
        if module is not None:
            _replace(module.StatefulDataLoader)
        elif "__init_subclass__" not in vars(loader):
            _watch_subclasses(loader)


def uninstall() -> None:
    """Put torch's own methods back; passes that go on are recorded to their end."""
    from iobench.torch import device_moves, roles

    device_moves.uninstall()
    roles.uninstall()
    with _lock:
        for kind, original in _replaced.items():
            type.__setattr__(kind, "__iter__", original)
            if "_iobench_watches" in vars(kind):
                del kind.__init_subclass__, kind._iobench_watches  # type: ignore[attr-defined]
        _replaced.clear()


def _replace(kind: type) -> None:
    if kind in _replaced:
        return
    original: Any = vars(kind)["__iter__"]

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        return _observing().observed_iter(self, original)

    __iter__._iobench_original = original  # type: ignore[attr-defined]
    _replaced[kind] = original
    type.__setattr__(kind, "__iter__", __iter__)


def _observing() -> Any:
    """Return the module that observes, imported without a look for garbage meanwhile."""
    known = sys.modules.get("iobench.torch.observing")
    if known is not None and hasattr(known, "observed_iter"):
        return known
    began_ns, collects = now_ns(), gc.isenabled()
    gc.disable()
    try:
        from iobench.torch import observing
    finally:
        if collects:
            gc.enable()
    recording = loop_recording()
    if recording is not None:
        recording.recorder.once_ns += now_ns() - began_ns
    return observing


def _watch_subclasses(loader: Any) -> None:
    """Replace the method of StatefulDataLoader, which has its own, as its class is made."""

    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:
        super(loader, cls).__init_subclass__(**kwargs)
        if (cls.__module__, cls.__qualname__) == STATEFUL:
            with _lock:
                if loader in _replaced:
                    _replace(cls)

    loader.__init_subclass__ = classmethod(__init_subclass__)
    loader._iobench_watches = True
