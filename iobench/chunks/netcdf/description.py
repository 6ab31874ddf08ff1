"""What a NetCDF file says of itself and its variables: attributes, and the texts in it."""

from __future__ import annotations

from contextlib import suppress
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


class Description(msgspec.Struct, frozen=True, eq=False):
    """A file, or store, as it describes itself; attributes are as `json_attributes` has them."""

    attributes: Mapping[str, Any]
    variables: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, tuple[tuple[str, ...], NDArray[np.str_]]]  # dimensions and values


def describe_netcdf(path: Path, group: str = "") -> Description:
    """Return what a NetCDF file says, without reading its numbers."""
    opened = open_source_file(path)
    variables, texts = {}, {}
    if opened.read_at(0, 4) in CLASSIC_MAGIC:
        _, described, attributes = read_classic_header(path, opened)
        for each in described:
            variables[each.name] = each.attributes
            nbytes = int(np.prod(each.shape, dtype=np.int64))
            if each.dtype.kind == "S" and "offset" in each.where and nbytes <= MAX_TEXT_NBYTES:
                content = bytes(opened.read_at(each.where["offset"], nbytes))
                texts[each.name] = each.dims, np.frombuffer(content, "S1").reshape(each.shape)
    else:
        with open_hdf5(path, opened) as (file, raw):
            if group:
                file, raw = file[group], raw[group]
            attributes = _attributes(file.attrs)
            for name, each in file.variables.items():
                variables[name], dataset = _attributes(each.attrs), raw[name]
                # Texts of variable length are objects, with metadata.
                width = dataset.dtype.itemsize if dataset.dtype.kind == "S" else 8
                is_text = dataset.dtype.kind == "S" or dataset.dtype.metadata
                if is_text and width * dataset.size <= MAX_TEXT_NBYTES:
                    texts[name] = tuple(each.dimensions), np.asarray(dataset[()])
    return Description(
        _plain(attributes),
        {name: _plain(each) for name, each in variables.items()},
        {name: _texts(dims, values) for name, (dims, values) in texts.items()},
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    """Return attributes but those of types that h5netcdf has no values for."""
    values = {}
    for name in attributes:
        # A reference, an opaque or compound type: of HDF5, not of CF.
        with suppress(TypeError, KeyError, OSError, ValueError, AttributeError):
            values[name] = attributes[name]
    return values


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return one number where an array of one is there, as NetCDF has no others."""
    single = {
        name: value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value
        for name, value in attributes.items()
    }
    return json_attributes(single, without=NOT_KEPT)


def _texts(dims: tuple[str, ...], values: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.str_]]:
    """Return texts; those of single letters along the last axis."""
    if values.dtype == "S1" and values.ndim:
        width = max(1, values.shape[-1])
        padded = np.zeros((*values.shape[:-1], width), "S1")
        padded[..., : values.shape[-1]] = values
        values, dims = padded.view(f"S{width}")[..., 0], dims[:-1]
    texts = [
        each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
        for each in values.reshape(-1).tolist()
    ]
    stripped = np.array([each.rstrip("\0 ") for each in texts], np.str_)
    return dims, stripped.reshape(values.shape)
