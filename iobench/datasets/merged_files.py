"""Files that hold other variables of the same samples, as one file of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.datasets.file_variables import sample_names
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.datasets.file_variables import Selection, SourceFile


def variables_of_files(
    files: Sequence[SourceFile], selection: Selection, dims: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return which variables of a sample each file has."""
    every = dict.fromkeys(name for file in files for name in file.variables)
    selection.check_names(
        list(every), {name: why for file in files for name, why in file.skipped.items()}
    )
    return [sample_names(file, selection, dims) for file in files]


def holder(file: Any, name: str) -> Any:
    """Return the file that holds a variable: one of those that were merged."""
    return getattr(file, "others", {}).get(name, file)


def merged_files(
    files: Sequence[Any],
    names: Sequence[tuple[str, ...]],
    dims: Sequence[str],
    places: Callable[[Sequence[Any]], Sequence[bytes]],
) -> list[Any]:
    """Return files that have all variables: ``others`` of each says which lie elsewhere."""
    if len(set(map(frozenset, names))) == 1:
        return list(files)
    every = dict.fromkeys(name for own in names for name in own)
    shared = ",".join(name for name in every if all(name in own for own in names))
    advice = f", or take what all have: --variables {shared}" if shared else ""
    same = f"for the same {' and '.join(dims)}"
    by_place: dict[bytes, list[tuple[tuple[str, ...], Any]]] = {}
    for place, file, own in zip(places(files), files, names, strict=True):
        by_place.setdefault(place, []).append((own, file))
    merged = []
    for parts in by_place.values():
        held = dict.fromkeys(name for own, _ in parts for name in own)
        first, *others = [file for _, file in sorted(parts, key=lambda part: sorted(part[0]))]
        if sum(len(own) for own, _ in parts) > len(held):
            raise FileFormatError(
                f"{first.path}: has variables {same} as {others[0].path}, and other files have "
                f"other variables; name files of one member, or forecast, at a time{advice}"
            )
        if lacking := [name for name in every if name not in held]:
            other = next(file for own, file in zip(names, files, strict=True) if lacking[0] in own)
            raise FileFormatError(
                f"{first.path}: variable {lacking[0]!r} is missing, expected as in {other.path}: "
                f"no file has it {same}; add that file, or cut files alike{advice}"
            )
        merged.append(_merged(first, others) if others else first)
    return merged


def _merged(first: Any, others: Sequence[Any]) -> Any:
    """Return a file with what others have beside it."""
    fields = [each for each in ("dims", "variables", "dates", "described") if hasattr(first, each)]
    union = {each: dict(getattr(first, each)) for each in fields}
    held = {}
    for file in others:
        for each in fields:
            for name, one in getattr(file, each).items():
                if name not in union[each]:
                    union[each][name], held[name] = one, file
    skipped = {
        name: why
        for file in (first, *others)
        for name, why in file.skipped.items()
        if name not in union["variables"]
    }
    return replace(first, **union, skipped=skipped, others=held)


def with_one_dtype(
    files: Sequence[Any], names: Sequence[tuple[str, ...]]
) -> tuple[Sequence[Any], list[str]]:
    """Return files whose variables have one dtype each, and a line for each that is made wider.

    Where that is exact: floats of several widths, and whole numbers up to 32 bits as float64.
    """
    dtypes: dict[str, set[np.dtype[Any]]] = {}
    for file, own in zip(files, names, strict=True):
        for name in own:
            dtypes.setdefault(name, set()).add(np.dtype(file.variables[name].packing.dtype))
    wide = {
        name: np.result_type(*several)
        for name, several in dtypes.items()
        if len(several) > 1 and all(each.kind == "f" or each.itemsize <= 4 for each in several)
    }

    def widened(each: Any) -> Any:
        dtype = wide.get(each.name)
        if dtype is None or each.packing.dtype == dtype.str:
            return each
        packing = replace(each.packing, dtype=dtype.str, narrow=each.packing.dtype)
        return replace(each, packing=packing)

    if wide:
        files = [
            replace(file, variables={name: widened(each) for name, each in file.variables.items()})
            for file in files
        ]
    return files, [
        f"variable {name!r} has several dtypes in files "
        f"({', '.join(sorted(each.name for each in dtypes[name]))}): all are made {dtype.name}, "
        "which is exact"
        for name, dtype in wide.items()
    ]
