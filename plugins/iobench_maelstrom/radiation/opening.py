"""Opens pairs of radiation files and checks that all have the schema of the data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import inspect_files
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.radiation.pairs import COLUMN, OUTPUT_PRESSURE, Pairs, Part
from iobench_maelstrom.radiation.schema import FLUXES, INPUTS, POSITIONS, SHARED, ColumnVariable

if TYPE_CHECKING:
    from iobench.datasets import NetcdfFile, Progress, StoredVariable

__all__ = ["open_pairs"]

KNOWN = {**INPUTS, **POSITIONS, **FLUXES}


def open_pairs(
    input_files: Sequence[Path],
    output_files: Sequence[Path],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str] | None,
    cache_dir: Path,
    progress: Progress,
) -> Pairs:
    """Open pairs of files and check that all have the schema of the data set.

    Parameters
    ----------
    input_files, output_files : sequence of Path
        As many, in the same order.
    inputs : sequence of str
        The variables wanted of the inputs.
    outputs : sequence of str or None
        Those wanted of the outputs; None: all that have columns.
    cache_dir : Path
        Where what is found out about the files is kept.
    progress : Progress
        Called with (bytes done, in all).

    Raises
    ------
    FileFormatError
        Naming the first variable or dimension that differs from the schema or the first file.
    """
    if not input_files or len(input_files) != len(output_files):
        raise OptionError(
            f"maelstrom-radiation: {len(input_files)} files of inputs and {len(output_files)} of "
            "outputs; give as many of each"
        )
    files = [path for pair in zip(input_files, output_files, strict=True) for path in pair]
    inspected = inspect_files(files, cache_dir=cache_dir, progress=progress)
    pairs = list(zip(inspected[::2], inspected[1::2], strict=True))
    parts: tuple[Part, ...] = ()
    for pair in pairs:
        found = _parts(pair, inputs, outputs)
        parts = parts or found
        _check_same(parts, found, pair, pairs[0])
    return Pairs(parts, tuple(pairs))


def _parts(
    pair: tuple[NetcdfFile, NetcdfFile], inputs: Sequence[str], outputs: Sequence[str] | None
) -> tuple[Part, ...]:
    for file in pair:
        if COLUMN not in file.dims:
            raise FileFormatError(
                f"{file.path}: lacks the dimension {COLUMN!r}; it has {', '.join(file.dims)}"
            )
    counts = [file.dims[COLUMN] for file in pair]
    if counts[0] != counts[1]:
        raise FileFormatError(
            f"{pair[1].path}: dimension {COLUMN!r} is {counts[1]}, expected {counts[0]} as in "
            f"{pair[0].path}"
        )
    if outputs is None:
        found = pair[1].variables.items()
        outputs = [*FLUXES, "pressure_hl"] + [
            name
            for name, variable in found
            if COLUMN in variable.dims and name not in FLUXES and name not in INPUTS
        ]
    return (
        *(_part(pair[0], name, in_outputs=False) for name in inputs),
        *(_part(pair[1], name, in_outputs=True) for name in outputs),
    )


def _part(file: NetcdfFile, name: str, *, in_outputs: bool) -> Part:
    variable = file.variables.get(name)
    if variable is None:
        why = f" ({file.skipped[name]})" if name in file.skipped else ""
        raise FileFormatError(f"{file.path}: lacks the variable {name!r}{why}")
    _check_variable(file, variable, KNOWN.get(name))
    kept = [
        (dim, length)
        for dim, length in zip(variable.dims, variable.shape, strict=True)
        if dim != COLUMN
    ]
    return Part(
        decoded=OUTPUT_PRESSURE if in_outputs and name == "pressure_hl" else name,
        in_outputs=in_outputs,
        name=name,
        dims=tuple(dim for dim, _ in kept),
        shape=tuple(length for _, length in kept),
        packing=variable.packing,
    )


def _check_variable(
    file: NetcdfFile, variable: StoredVariable, known: ColumnVariable | None
) -> None:
    """Check a variable against the schema; ``known`` None: one only `all_outputs` asks for."""
    if np.dtype(variable.packing.dtype) != np.float32:
        raise FileFormatError(
            f"{file.path}: variable {variable.name!r} is {variable.packing.dtype}, expected float32"
        )
    if known is None:
        return
    found = dict(zip(variable.dims, variable.shape, strict=True))
    has_columns = found.pop(COLUMN, None) is not None
    expected = dict(zip(known.dims, known.shape, strict=True))
    agrees = found == expected if known.sure else tuple(found.values()) == known.shape
    # Upstream broadcasts a scalar irradiance; one that comes by column needs no help.
    if not agrees or not (has_columns or variable.name == SHARED):
        wanted = ", ".join([COLUMN, *(f"{dim} {length}" for dim, length in expected.items())])
        there = ", ".join(
            f"{dim} {length}" for dim, length in zip(variable.dims, variable.shape, strict=True)
        )
        raise FileFormatError(
            f"{file.path}: variable {variable.name!r} is ({there}), expected ({wanted})"
        )


def _check_same(
    first: tuple[Part, ...],
    found: tuple[Part, ...],
    pair: tuple[NetcdfFile, NetcdfFile],
    first_pair: tuple[NetcdfFile, NetcdfFile],
) -> None:
    names = {part.decoded for part in found}
    for expected in first:
        file = pair[expected.in_outputs]
        if expected.decoded not in names:
            raise FileFormatError(f"{file.path}: lacks the variable {expected.name!r}")
    for expected, part in zip(first, found, strict=False):
        file, model = pair[part.in_outputs], first_pair[part.in_outputs]
        dims, wanted = file.variables[part.name].dims, model.variables.get(part.name)
        if part != expected or wanted is None or dims != wanted.dims:
            raise FileFormatError(
                f"{file.path}: variable {part.name!r} is {part.packing.stored} "
                f"({', '.join(dims)}), which differs from {model.path}"
            )
    if len(found) != len(first):
        more = next(part for part in found if part.decoded not in {p.decoded for p in first})
        raise FileFormatError(
            f"{pair[1].path}: holds the variable {more.name!r}, which {first_pair[1].path} lacks"
        )
