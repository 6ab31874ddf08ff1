"""The face of a package for authors: names that its modules define, each loaded on first use.

The stub beside the package (``__init__.pyi``) says which name comes from where: type checkers and
editors read it as it is, and nothing is listed twice.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_face(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, of its ``__name__`` and ``__file__``."""

    @cache
    def homes() -> dict[str, str]:
        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = (each for each in stub.body if isinstance(each, ast.ImportFrom))
        return {alias.name: str(each.module) for each in imports for alias in each.names}

    def get(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})
