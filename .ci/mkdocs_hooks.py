"""Adds two pages to the site: the Python API by its docstrings, and the list of all modules."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1] / "iobench"
SOURCES = (
    ROOT,
    *(ROOT.parent / "plugins" / name for name in ("iobench_maelstrom", "iobench_mlperf_hpc")),
    ROOT.parent / "converters" / "iobench_converters",
)
FACES = ("torch", "tensorflow", "dali", "datasets", "stores", "samples", "errors", "testing")
"""Modules below iobench whose names are public."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, as mkdocs asks."""
    parts = ["# Python API", _part("iobench", ROOT / "__init__.py")]
    for face in FACES:
        stub = ROOT / face / "__init__.pyi"
        package = stub if stub.exists() else stub.with_suffix(".py")
        module = package if package.exists() else ROOT / f"{face}.py"
        parts.append(_part(f"iobench.{face}", module))
    files.append(File.generated(config, "reference/python.md", content="\n\n".join(parts)))
    content = "\n\n".join(["# Modules", *_packages()])
    files.append(File.generated(config, "reference/modules.md", content=content))
    return files


def _packages() -> list[str]:
    parts = []
    for source in SOURCES:
        for package in sorted({path.parent for path in source.rglob("*.py")}):
            name = package.relative_to(source.parent).as_posix()
            rows = [(path.name, _first_line(path)) for path in sorted(package.glob("*.py"))]
            lines = [f"| `{each}` | {text} |" for each, text in rows if text]
            parts.append("\n".join([f"## {name}\n", "| module | what |", "| --- | --- |", *lines]))
    return parts


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _part(name: str, path: Path) -> str:
    names = sorted(_names(ast.parse(path.read_text())), key=str.lower)
    return "\n\n".join([f"## {name}", *(f"::: {name}.{each}" for each in names)])


def _names(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    if all(alias.asname for node in imports for alias in node.names):  # a stub
        names = [alias.name for node in imports for alias in node.names]
        return [name for name in names if not name.isupper()]
    own = [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [node.name for node in own if not node.name.startswith("_")]
