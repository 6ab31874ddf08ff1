"""The product's source files, each read and parsed once by the tests of rules."""

from __future__ import annotations

import ast
import functools
import gc
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "iobench": ROOT,
    "iobench_maelstrom": ROOT / "plugins",
    "iobench_mlperf_hpc": ROOT / "plugins",
    "iobench_converters": ROOT / "converters",
}
"""Where each of our import packages lies."""
MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
    for package, folder in FOLDERS.items()
    for path in sorted((folder / package).rglob("*.py"))
}
SOURCES = list(MODULES.values())


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree, the module first."""
    gc.disable()  # which would look through all trees so far, again and again: twice the time
    try:
        return list(ast.walk(ast.parse(text_of(path))))
    finally:
        gc.enable()


@functools.cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
