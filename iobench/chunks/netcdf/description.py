"""What a NetCDF file says of its variables: all attributes, and the texts among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.chunks.netcdf.classic import read_classic_header
from iobench.chunks.netcdf.file import CLASSIC_MAGIC, open_hdf5
from iobench.chunks.packing import CODING
from iobench.coordinates import json_attributes
from iobench.files.ranges import open_source_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

MAX_TEXT_NBYTES: Final = 1 << 22
NOT_KEPT: Final = frozenset((
    *CODING, "_NCProperties", "_Netcdf4Coordinates", "_Netcdf4Dimid", "_ARRAY_DIMENSIONS",
    "valid_min", "valid_max", "valid_range",
))  # fmt: skip
"""Attributes of how numbers are stored: untrue of decoded ones."""


class DescribedVariable(msgspec.Struct, frozen=True, eq=False):
    """A variable as its source describes it."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]  # of texts without the dimension along which their letters are
    attributes: Mapping[str, Any]  # JSON-ready, without those of how numbers are stored
    is_number: bool = True  # whether it has numbers
    texts: NDArray[np.str_] | None = None  # the texts it has; None where it has none, or too many


class DescribedFile(msgspec.Struct, frozen=True, eq=False):
    """A file, or store, as it describes itself."""

    variables: Mapping[str, DescribedVariable]
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)


def describe_netcdf(path: Path, group: str = "") -> DescribedFile:
    """Return what a NetCDF file says of its variables, without reading their numbers."""
    opened = open_source_file(path)
    if opened.read_at(0, 4) in CLASSIC_MAGIC:
        return _described_classic(path, opened)
    with open_hdf5(path, opened) as (file, raw):
        if group:
            file, raw = file[group], raw[group]
        return DescribedFile(
            {name: _described(each, raw[name]) for name, each in file.variables.items()},
            json_attributes(_attributes(file.attrs), without=NOT_KEPT),
        )


def _attributes(attributes: Any) -> dict[str, Any]:
    """Return attributes but those of types that h5netcdf has no values for."""
    values = {}
    for name in attributes:
        try:
            values[name] = _plain(attributes[name])
        except (TypeError, KeyError, OSError, ValueError, AttributeError):
            continue  # a reference, an opaque or compound type: of HDF5, not of CF
    return values


def _plain(value: Any) -> Any:
    """Return one number where an array of one is there, as NetCDF has no others."""
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.reshape(-1)[0]
    return value


def _described(variable: Any, dataset: Any) -> DescribedVariable:
    dims, shape = tuple(variable.dimensions), tuple(dataset.shape)
    attributes = json_attributes(_attributes(variable.attrs), without=NOT_KEPT)
    dtype = dataset.dtype
    if dtype.kind in "iuf":
        if dataset.chunks:  # as `inspect_netcdf` has it
            shape = tuple(map(max, shape, variable.shape))
        return DescribedVariable(dims, shape, attributes)
    texts = None
    if dtype.kind == "S" and dtype.itemsize * dataset.size <= MAX_TEXT_NBYTES:
        texts = _texts(np.asarray(dataset[()]))
    elif dtype.kind == "O" and dtype.metadata and dataset.size * 8 <= MAX_TEXT_NBYTES:
        texts = _texts(np.asarray(dataset[()], dtype=object))
    if texts is not None and texts.ndim < len(dims):
        dims, shape = dims[:-1], shape[:-1]
    return DescribedVariable(dims, shape, attributes, False, texts)


def _described_classic(path: Path, opened: Any) -> DescribedFile:
    _, described, attributes_of_file = read_classic_header(path, opened)
    variables = {}
    for each in described:
        attributes = json_attributes(
            {name: _plain(value) for name, value in each.attributes.items()}, without=NOT_KEPT
        )
        dims, shape, texts = each.dims, each.shape, None
        is_number = each.dtype.kind in "iuf"
        nbytes = int(np.prod(shape, dtype=np.int64))
        if not is_number and "offset" in each.where and nbytes <= MAX_TEXT_NBYTES:
            content = bytes(opened.read_at(each.where["offset"], nbytes))
            texts = _texts(np.frombuffer(content, "S1").reshape(shape))
            if texts.ndim < len(dims):
                dims, shape = dims[:-1], shape[:-1]
        variables[each.name] = DescribedVariable(dims, shape, attributes, is_number, texts)
    plain = {name: _plain(value) for name, value in attributes_of_file.items()}
    return DescribedFile(variables, json_attributes(plain, without=NOT_KEPT))


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    """Return texts; those of single letters along the last axis."""
    if values.dtype == "S1" and values.ndim:
        width = max(1, values.shape[-1])
        padded = np.zeros((*values.shape[:-1], width), "S1")
        padded[..., : values.shape[-1]] = values
        values = padded.view(f"S{width}")[..., 0]
    texts = [
        each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
        for each in values.reshape(-1).tolist()
    ]
    return np.array([each.rstrip("\0 ") for each in texts], np.str_).reshape(values.shape)
