"""Facts, as JSON has them, as the rows that commands print."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from iobench.report.document import Table, properties
from iobench.report.units import UNKNOWN, byte_rate, duration, nanoseconds, nbytes, number

FEW: Final = 8
"""More of a kind (files, shards) are shortened."""
UNITS: Final = ("nbytes", "_ns", "_s")
"""What keys of figures with a unit end in."""


def fact_table(facts: Mapping[str, Any], without: Collection[str] = ()) -> Table:
    """Return a table of facts: an object or a list of objects with a row for each."""
    rows = ((name, value) for name, value in facts.items() if name not in without)
    return properties([row for name, value in rows for row in _rows(name, value)])


def _rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    texts: Iterable[str] = (_phrase(value, name),)
    if isinstance(value, Mapping) and value:
        texts = _lines(value, name)
    elif _is_objects(value):
        texts = [_phrase(each) for each in value[:FEW]]
        if len(value) > FEW:
            texts += [f"and {len(value) - FEW} more"]
    for place, text in enumerate(texts):
        yield "" if place else _label(name), text


def _is_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _lines(known: Mapping[str, Any], whole: str) -> Iterator[str]:
    for name, value in known.items():
        if _is_objects(value):
            yield from map(_phrase, value)
        else:
            yield f"{_label(name)}: {_phrase(value, whole if whole.endswith(UNITS) else name)}"


def _label(key: str) -> str:
    """Return a key as words: what says its unit is shown with the value."""
    unit = "" if key.endswith("_per_s") else "_s"
    key = key.removeprefix("n_").removesuffix("_ns").removesuffix(unit)
    return key.replace("nbytes", "size").replace("_n_", "_").replace("_", " ")


def _phrase(value: Any, name: str = "") -> str:
    """Return a value of JSON as words; an array as it is declared."""
    if isinstance(value, Mapping):
        if "dtype" in value and "shape" in value:
            return _array(value)
        inner = ((key, each) for key, each in value.items() if key != "fingerprints")
        return ", ".join(f"{_label(key)} {_phrase(each, key)}" for key, each in inner) or "none"
    if isinstance(value, list | tuple):
        return _shortened([_phrase(inner) for inner in value]) or "none"
    if value is None:
        return UNKNOWN if name.endswith(UNITS) else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _figure(value, name)
    return str(value)


def _figure(value: float, name: str) -> str:
    if name.endswith("nbytes"):
        return nbytes(value)
    if name.endswith("bytes_per_s"):
        return byte_rate(value)
    if name.endswith(("_ns", "_s", "seconds")) and "wall_ns" not in name and "_per_" not in name:
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


def _shortened(names: Sequence[str]) -> str:
    """Return names with commas; of more than `FEW` the last one and how many there are."""
    if len(names) <= FEW:
        return ", ".join(names)
    return f"{', '.join(names[: FEW - 1])}, ... {names[-1]} ({len(names)} in all)"
