"""Being told that a library was imported, whoever imports it and by whatever finder."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportHook:
    """A finder that asks the others, and calls ``imported`` with name and module after it ran."""

    def __init__(self, imported: Callable[[str, ModuleType], None]) -> None:
        self._names: frozenset[str] = frozenset()
        self._imported = imported
        self._local = threading.local()
        self.active = False

    def install(self, names: Collection[str]) -> None:
        """Listen for these modules, before all other finders. Idempotent."""
        self._names = frozenset(names)
        self.active = True
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Be asked no more; imports that are under way end as they would have."""
        self.active = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, listening; None for what we do not listen for."""
        if name not in self._names or not self.active:
            return None
        asking: set[str] = self._local.__dict__.setdefault("asking", set())
        if name in asking:  # another hook asks all finders in turn
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
            if self.active:
                self._imported(name, module)

        exec_module.listens = (self, name)  # type: ignore[attr-defined]
        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return
