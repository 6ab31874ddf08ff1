"""Facts, as JSON has them, as the rows that commands print."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from iobench.report.document import Table, properties
from iobench.report.units import UNKNOWN, byte_rate, duration, nanoseconds, nbytes, number

FEW: Final = 8
"""More of a kind (files, shards) are shortened."""
UNITS: Final = ("nbytes", "_ns", "_s", "seconds")
"""What keys of figures with a unit end in."""


def fact_table(facts: Mapping[str, Any], without: Collection[str] = ()) -> Table:
    """Return a table of facts: an object or a list of objects with a row for each."""
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if name not in without:
            texts = _texts(name, value) or ["none"]
            rows += zip([_label(name), *[""] * len(texts)], texts, strict=False)
    return properties(rows)


def _texts(name: str, value: Any) -> list[str]:
    """Return the lines of a fact."""
    if isinstance(value, Mapping):
        texts = []
        for key, each in value.items():
            unit = key if key.endswith(UNITS) else name
            whole = _is_objects(each)
            texts += _texts(key, each) if whole else [f"{_label(key)}: {_phrase(each, unit)}"]
        return texts
    if _is_objects(value):
        return _shortened(map(_phrase, value))
    return [_phrase(value, name)]


def _is_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _label(key: str) -> str:
    """Return a key as words: what says its unit is shown with the value."""
    key = re.sub("^n_|_ns$|(?<!_per)_s$", "", key)
    return key.replace("nbytes", "size").replace("_n_", "_").replace("_", " ")


def _phrase(value: Any, name: str = "") -> str:
    """Return a value of JSON as words; an array as it is declared."""
    if isinstance(value, Mapping):
        if "dtype" in value and "shape" in value:
            return _array(value)
        return ", ".join(f"{_label(key)} {_phrase(value[key], key)}" for key in value) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_shortened(map(_phrase, value))) or "none"
    if value is None:
        return UNKNOWN if name.endswith(UNITS) else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("nbytes"):
        return nbytes(value)
    if name.endswith("bytes_per_s"):
        return byte_rate(value)
    if name.endswith(UNITS) and "_per_" not in name:
        return duration(value if name.endswith("_ns") else nanoseconds(value))
    return number(value) if isinstance(value, float) else str(value)


def _array(variable: Mapping[str, Any]) -> str:
    lengths = zip(variable["dims"], variable["shape"], strict=True)
    axes = ", ".join(f"{dim} {length}" for dim, length in lengths)
    units = variable["units"] or "units unknown"
    text = f"{variable['name']} ({axes}) {variable['dtype']}, {units}"
    for name in ("role", "chunk", "codec", "channels"):
        if variable.get(name):
            text += f"; {name} {_phrase(variable[name], name)}"
    return text


def _shortened(texts: Iterable[str]) -> list[str]:
    """Return texts; of more than `FEW` the first and the last, and how many there are."""
    listed = list(texts)
    if len(listed) <= FEW:
        return listed
    return [*listed[: FEW - 2], "...", f"{listed[-1]} ({len(listed)} in all)"]
