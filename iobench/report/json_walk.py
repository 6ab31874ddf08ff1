"""Figures as plain values for strict JSON: one walk over structs and dataclasses.

Values are unrounded, and what is unknown is null. Fields are keys. `iobench.json_keys` says where a
field has another name or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np

from iobench.json_keys import INSIDE, ITSELF, KEY_OF_ROW, KEYS, figure


class ShownFigure(msgspec.Struct, frozen=True):
    """One field or property of a struct, and how JSON shows it.

    Parameters
    ----------
    keys : tuple of str
        Its keys.
    inside : bool
        Whether its own figures stand in its place.
    key_of_row : str or None
        By which field its rows are separated, where they are an object.
    """

    name: str
    keys: tuple[str, ...]
    inside: bool
    key_of_row: str | None


KNOWN: Final[dict[type, tuple[ShownFigure, ...]]] = {}
"""What JSON has of each struct seen so far."""


def to_plain(value: Any) -> Any:
    """Return a value made of structs as dicts, lists, numbers and texts, ready for JSON.

    Parameters
    ----------
    value : object
        A struct or dataclass, or a mapping or sequence of such; NumPy's numbers and arrays too. An
        empty text of a struct is null, as nothing is known of it.

    Raises
    ------
    TypeError
        If a value is of no sort that JSON has.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        return _of_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Sequence):
        return [to_plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} is no figure: expected a dataclass or a plain value")


def _of_fields(value: object) -> Any:
    result: dict[str, Any] = {}
    kind = type(value)
    if kind not in KNOWN:
        KNOWN[kind] = _figures_of(kind)
    for each in KNOWN[kind]:
        known = getattr(value, each.name)
        if each.inside:
            result |= to_plain(known) or {}
            continue
        if each.key_of_row is not None and known is not None:
            plain: Any = {getattr(row, each.key_of_row): to_plain(row) for row in known}
            for row in plain.values():
                row.pop(each.key_of_row, None)
        else:
            plain = None if known == "" else to_plain(known)
        result |= dict.fromkeys(each.keys, plain)
    return result.get(ITSELF, result)


def _figures_of(kind: type) -> tuple[ShownFigure, ...]:
    """Return what JSON has of a struct: its fields, then its properties that are figures."""
    known: list[tuple[str, Mapping[str, Any]]]
    if issubclass(kind, msgspec.Struct):
        keys_of: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            keys_of |= vars(base).get("JSON_KEYS", {})
        known = [(name, keys_of.get(name, {})) for name in kind.__struct_fields__]
    else:
        known = [(each.name, each.metadata) for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for base in reversed(kind.__mro__):
        known += [(name, v.metadata) for name, v in vars(base).items() if isinstance(v, figure)]
    result = []
    for name, metadata in known:
        if keys := tuple(metadata.get(KEYS, (name,))):
            result.append(ShownFigure(name, keys, INSIDE in metadata, metadata.get(KEY_OF_ROW)))
    return tuple(result)
