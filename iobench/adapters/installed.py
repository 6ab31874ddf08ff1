"""What is installed in this process: adapters to what is imported, and a hook for the rest."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import ADAPTERS, scope
from iobench.adapters.patches import Patches
from iobench.adapters.table import PRESENT, SPECIAL, TABLE, time_module

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from iobench.adapters.scope import Where

_lock = threading.RLock()
_installed: Final[dict[str, Patches]] = {}
_unseen: Final[dict[str, str]] = {}
_others: Final[dict[str, str]] = {}


class ImportHook:
    """A finder that asks the others, and calls ``imported`` with name and module after it ran."""

    def __init__(self, imported: Callable[[str, ModuleType], None]) -> None:
        self._names: frozenset[str] = frozenset()
        self._imported = imported
        self._local = threading.local()

    def install(self, names: Collection[str]) -> None:
        """Listen for these modules, before all other finders. Idempotent."""
        self._names = frozenset(names)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Be asked no more; imports that are under way end as they would have."""
        self._names = frozenset()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, listening; None for what we do not listen for."""
        asking: set[str] = self._local.__dict__.setdefault("asking", set())
        if name not in self._names or name in asking:  # another hook asks all finders in turn
            return None
        asking.add(name)
        try:
            others = [each for each in sys.meta_path if each is not self]
            finders = (getattr(each, "find_spec", None) for each in others)
            specs = (find(name, path, target) for find in finders if find is not None)
            spec: ModuleSpec | None = next((each for each in specs if each is not None), None)
        finally:
            asking.discard(name)
        if spec is not None and spec.loader is not None:
            self._listen(name, spec.loader)
        return spec

    def _listen(self, name: str, loader: Any) -> None:
        """Put our ``exec_module`` on a loader, if it is one that can carry it."""
        original = getattr(loader, "exec_module", None)
        if original is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return
        before = vars(loader).get("exec_module")
        if getattr(before, "listens", None) == (self, name):  # found before, and not run
            return

        @functools.wraps(original)
        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:  # one loader may be there for many modules
                original(module)
                return
            if vars(loader).get("exec_module") is exec_module:
                if before is None:
                    del loader.exec_module
                else:
                    loader.exec_module = before
            original(module)
            if name in self._names:
                self._imported(name, module)

        exec_module.listens = (self, name)  # type: ignore[attr-defined]
        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return


def install(where: Where = "loading") -> None:
    """Time what is read and decoded in this process, as far as it can be seen from outside."""
    with _lock:
        if scope.where_now() != "everywhere":
            scope.set_where(where)
        for name in PRESENT:
            _adapt(name, sys.modules[name])
        _others.update(_rows_of_others())
        names = {*TABLE, *SPECIAL, *_others} - {*PRESENT}
        _hook.install(names)
        # After the hook: what another thread imports meanwhile is seen by one of the two.
        for name in sorted(names & sys.modules.keys()):
            module = sys.modules[name]
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                _adapt(name, module)


def uninstall() -> None:
    """Put everything back as it was. Timed functions somebody kept go on working, untimed."""
    with _lock:
        scope.set_where(None)
        _hook.remove()
        for name in reversed(list(_installed)):
            _installed.pop(name).take_back()
        _unseen.clear()
        _others.clear()


def unseen() -> dict[str, str]:
    """Return the modules that are imported but of which something cannot be timed, and why."""
    with _lock:
        return dict(_unseen)


def _adapt(name: str, module: Any) -> None:
    if name in _installed:
        return
    patches = _installed[name] = Patches()
    faults = [*time_module(patches, name, module, _others)]
    if faults:
        _unseen[name] = "; ".join(faults)


def _imported(name: str, module: ModuleType) -> None:
    with _lock:
        # A module that is loaded again has new functions, in the place of ours.
        before = _installed.pop(name, None)
        if before is not None:
            before.take_back()
        _unseen.pop(name, None)
        _adapt(name, module)


def _rows_of_others() -> dict[str, str]:
    """Return where packages have rows, by module; a process above has looked, or this one does."""
    listed = os.environ.get(ADAPTERS)
    if listed is None:
        from iobench.registry import adapter_places

        return adapter_places()
    return dict(each.split("=", 1) for each in listed.split(",") if each)


_hook = ImportHook(_imported)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
