"""Files that hold other variables of the same samples, as one file of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.zarr_arrays.array_metadata import ZarrStore
from iobench.datasets.selection import sample_names
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iobench.datasets.selection import Selection, SourceFile

Holders = dict["Path", "Mapping[str, Any]"]
"""By the path of a merged file: the file that holds a variable, by its name, where another does."""


def variables_of_files(
    files: Sequence[SourceFile], selection: Selection, dims: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return which variables of a sample each file has.

    Raises
    ------
    OptionError
        If no file has one that is asked for.
    """
    every = dict.fromkeys(name for file in files for name in file.variables)
    selection.check_names(
        list(every), {name: why for file in files for name, why in file.skipped.items()}
    )
    return [sample_names(file, selection, dims) for file in files]


def merged_files(
    files: Sequence[Any],
    names: Sequence[tuple[str, ...]],
    dims: Sequence[str],
    places: Callable[[Sequence[Any]], Sequence[bytes]],
) -> tuple[list[Any], Holders]:
    """Return files that have all variables, and which others hold some of them.

    Parameters
    ----------
    files, names : sequence
        Files, and which variables of a sample each has.
    dims : sequence of str
        The sample dimensions.
    places : callable
        Returns for each of some files where its samples lie: bytes that are equal where they are.

    Raises
    ------
    FileFormatError
        If files have one variable at the same place and lack another, or others lie elsewhere.
    """
    there = list(zip(files, names, strict=True))
    if len(set(map(frozenset, names))) == 1:
        return list(files), {}
    every = list(dict.fromkeys(name for _, own in there for name in own))
    shared = [name for name in every if all(name in own for _, own in there)]
    by_place: dict[bytes, list[tuple[Any, tuple[str, ...]]]] = {}
    for place, each in zip(places([file for file, _ in there]), there, strict=True):
        by_place.setdefault(place, []).append(each)
    found: list[Any] = []
    holders: Holders = {}
    for parts in by_place.values():
        held: dict[str, Any] = {}
        for file, own in parts:
            if twice := [name for name in own if name in held]:
                raise FileFormatError(
                    f"{file.path}: has {twice[0]!r} for the same {' and '.join(dims)} as "
                    f"{held[twice[0]].path}, and files beside them have other variables; name "
                    f"files of one member, or forecast, at a time{_only(shared)}"
                )
            held |= dict.fromkeys(own, file)
        if lacking := [name for name in every if name not in held]:
            other = next(file for file, own in there if lacking[0] in own)
            raise FileFormatError(
                f"{parts[0][0].path}: variable {lacking[0]!r} is missing, expected as in "
                f"{other.path}: no file has it for the same {' and '.join(dims)}; add that file, "
                f"or cut files at the same {' and '.join(dims)}{_only(shared)}"
            )
        in_order = [file for file, own in sorted(parts, key=lambda part: sorted(part[1]))]
        found.append(_merged(in_order))
        if len(parts) > 1:
            first = in_order[0]
            holders[first.path] = {
                name: file
                for file in reversed(in_order[1:])
                for name in (*file.variables, *getattr(file, "dates", ()))
                if name not in first.variables and name not in getattr(first, "dates", ())
            }
    return found, holders


def _only(shared: Sequence[str]) -> str:
    return f", or take what all have: --variables {','.join(shared)}" if shared else ""


def _merged(files: Sequence[Any]) -> Any:
    first = files[0]
    if len(files) == 1:
        return first
    fields = ["dims", "variables", "skipped"]
    fields += ["dates", "described"] if isinstance(first, ZarrStore) else []
    union: dict[str, dict[str, Any]] = {field: {} for field in fields}
    for field, own in union.items():
        for file in files:
            for name, each in getattr(file, field).items():
                own.setdefault(name, each)
    union["skipped"] = {
        name: why for name, why in union["skipped"].items() if name not in union["variables"]
    }
    return replace(first, **union)


def with_one_dtype(
    files: Sequence[Any], names: Sequence[tuple[str, ...]]
) -> tuple[list[Any], list[str]]:
    """Return files whose variables have one dtype each, and a line for each that is made wider.

    Where that is exact: floats of several widths, and whole numbers up to 32 bits as float64.
    """
    dtypes: dict[str, set[str]] = {}
    for file, own in zip(files, names, strict=True):
        for name in own:
            dtypes.setdefault(name, set()).add(file.variables[name].packing.dtype)
    wide = {}
    for name, several in dtypes.items():
        found = [np.dtype(each) for each in several]
        widest = np.result_type(*found)
        if len(found) > 1 and all(each.kind == "f" or each.itemsize <= 4 for each in found):
            wide[name] = widest.newbyteorder("<").str
    if not wide:
        return list(files), []
    made = []
    for file, own in zip(files, names, strict=True):
        variables = dict(file.variables)
        for name in set(own) & set(wide):
            each = variables[name]
            if each.packing.dtype != wide[name]:
                packing = replace(each.packing, dtype=wide[name], narrow=each.packing.dtype)
                variables[name] = replace(each, packing=packing)
        made.append(replace(file, variables=variables))
    return made, [
        f"variable {name!r} has several dtypes in files "
        f"({', '.join(sorted(np.dtype(each).name for each in dtypes[name]))}): all are made "
        f"{np.dtype(each).name}, which is exact"
        for name, each in wide.items()
    ]
