"""What the extras of iobench need, as its metadata say, and the line that installs it."""

from __future__ import annotations

import re


def extra_requirements() -> dict[str, tuple[str, ...]]:
    """Return the requirements of each extra, such as ``("eccodes>=2.42", "cfgrib>=0.9.15")``."""
    from importlib import metadata  # 20 ms, and only messages need it

    extras: dict[str, tuple[str, ...]] = {}
    try:
        lines = metadata.requires("iobench") or []
    except metadata.PackageNotFoundError:  # a copy of the source that nobody installed
        lines = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        if extra := re.search(r"extra == ['\"]([\w-]+)['\"]", marker):
            extras[extra[1]] = (*extras.get(extra[1], ()), requirement.replace(" ", ""))
    return extras


def install_command(*extras: str) -> str:
    """Return the line that installs what extras need, wherever iobench itself came from."""
    known = extra_requirements()
    needed = sorted({e for extra in extras for e in known.get(extra, (f"iobench[{extra}]",))})
    return " ".join(["pip install", *(f"'{each}'" for each in needed)])
