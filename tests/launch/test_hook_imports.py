"""What recording a script's own loaders imports of iobench: what it uses, and no more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_NEEDED = ("iobench.datasets", "iobench.stores", "iobench.loaders.ring", "iobench.files")


def _path(module):
    base = ROOT.joinpath(*module.split("."))
    return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)


def _imported(module, found):
    """Add a module of iobench and all that importing it imports, its packages first."""
    for place, sign in enumerate(f"{module}."):
        name = module[:place]
        path = _path(name) if sign == "." and name not in found else None
        if path is None:
            continue
        found.add(name)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("iobench"):
                _imported(node.module, found)
                for alias in node.names:
                    if _path(f"{node.module}.{alias.name}"):
                        _imported(f"{node.module}.{alias.name}", found)
    return found


@pytest.mark.parametrize("hooked", ["iobench.torch.observing", "iobench.tensorflow.hooks"])
def test_a_script_of_its_own_imports_no_dataset_and_no_store(hooked):
    found = _imported(hooked, set()) | _imported("iobench.launch.hooks", set())
    assert {"iobench.recording.session", hooked} < found
    assert sorted(name for name in found if name.startswith(NOT_NEEDED)) == []
    assert len(found) < 80
