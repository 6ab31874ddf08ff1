"""``iobench doctor``: which extras, plugins and Darshan are here, and what installs the rest."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Final

from iobench.cli.documents import print_answer
from iobench.extras import extra_requirements, install_command
from iobench.report.document import Command, Section, properties
from iobench.storage.darshan_setup import find_runtime

UNION: Final = "all"
"""The extra made of other ones."""
ALTERNATIVES: Final = {"tensorflow-cpu": "tensorflow", "mlflow-skinny": "mlflow"}
"""Packages that bring the same modules under another name."""
# No dependencies: those of power-production forbid the climetlab the others need, and yr's hold
# packages that shadow the standard library. climetlab itself brings all that they use.
PLUGINS: Final = {
    "climetlab-maelstrom-yr": "0.6.3",
    "climetlab-maelstrom-radiation": "0.7.5",
    "climetlab-maelstrom-ens10": "0.1.1",
    "climetlab-maelstrom-downscaling": "0.4.0",
    "climetlab-maelstrom-power-production": "0.2.2",
}


def doctor(*, json: bool) -> None:
    """Print which optional libraries, plugins and Darshan runtime are here."""
    rows = []
    for extra, requirements in sorted(extra_requirements().items()):
        if extra == UNION:
            continue
        packages = _packages(requirements)
        present = {name: _version(name) for name in packages}
        lacking = ", ".join(filter(None, map(_lacks, present.items(), packages.values())))
        state = lacking or ", ".join(map(" ".join, present.items()))
        rows.append((extra, state, install_command(extra) if lacking else ""))
    for name, pinned in PLUGINS.items():
        install = "" if _version(name) else f"pip install --no-deps {name}=={pinned}"
        rows.append((name, _version(name) or "not installed", install))
    missing = "not found; load its module, or set DARSHAN_LIB to its libdarshan.so"
    rows.append(("Darshan's runtime", str(find_runtime(os.environ) or missing), ""))
    commands = (Command(line, f"{name} is not complete") for name, _, line in rows if line)
    versions = {"iobench": _version("iobench"), "python": platform.python_version()}
    keyed = [dict(zip(("name", "state", "install"), row, strict=True)) for row in rows]
    print_answer(
        f"iobench {versions['iobench']}, Python {versions['python']}",
        Section("installed", "", (properties([row[:2] for row in rows]), *commands)),
        figures={**versions, "installed": keyed},
        json=json,
    )


def _packages(requirements: Iterable[str]) -> dict[str, str]:
    """Return the versions that requirements ask for, by package."""
    found = (re.match(r"([\w.-]+)(?:\[[^\]]*\])?(.*)", each) for each in requirements)
    return {each[1].lower(): each[2] for each in found if each}


def _version(name: str) -> str:
    """Return the version of a package, or of what stands for it; "" where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _version(ALTERNATIVES[name]) if name in ALTERNATIVES else ""


def _lacks(package: tuple[str, str], required: str) -> str:
    """Return what is wrong with a package, "" for nothing; by the versions >= and == alone."""
    name, version = package
    if not version:
        return f"no {name}"
    for sign, least in re.findall(r"(>=|==)\s*([\w.]+)", required):
        here, there = _numbers(version), _numbers(least)
        if here < there or (sign == "==" and here != there):
            return f"{name} {version}, expected {required}"
    return ""


def _numbers(version: str) -> list[int]:
    parts = re.findall(r"\d+", re.split(r"[a-z+]", version)[0])
    return [int(part) for part in (*parts, *"0000")][:4]
