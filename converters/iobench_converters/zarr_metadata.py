"""The ``zarr.json`` files of a store: of its group and of each array.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html and
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html. They are written
by us, not by zarr-python: its text differs from version to version, so that a conversion resumed
elsewhere would not end with the same bytes; and no library has to be there to convert. That the
real libraries read them is tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StoreError
from iobench.stores import canonical_json, open_file_size, read_json, storage_errors
from iobench_converters.zarr_chunks import BLOSC_LEVEL
from iobench_converters.zarr_layout import BLOSC_LZ4, SAMPLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.samples import Variable
    from iobench.stores import ShardFile
    from iobench_converters.zarr_layout import ArrayLayout

__all__ = ["METADATA_NAME", "array_metadata", "group_metadata", "read_shard_length"]

METADATA_NAME: Final = "zarr.json"
MAX_METADATA_NBYTES: Final = 1 << 28
MAX_LENGTH: Final = 1 << 40
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}


def array_metadata(
    array: ArrayLayout, *, codec: str, n_samples: int, shard_n_samples: int
) -> dict[str, Any]:
    """Return the metadata of an array.

    Parameters
    ----------
    array : ArrayLayout
        The array.
    codec : str
        Of its inner chunks.
    n_samples : int
        In the store.
    shard_n_samples : int
        In a full shard.
    """
    dtype = array.dtype
    codecs: list[dict[str, Any]] = [_LITTLE if dtype.itemsize > 1 else {"name": "bytes"}]
    if codec == BLOSC_LZ4:
        configuration = {
            "cname": "lz4",
            "clevel": BLOSC_LEVEL,
            "shuffle": "shuffle",
            "typesize": dtype.itemsize,
            "blocksize": 0,
        }
        codecs.append({"name": "blosc", "configuration": configuration})
    outer = [n * c for n, c in zip(array.grid, array.chunk, strict=True)]
    sharding = {
        "chunk_shape": [1, *array.chunk],
        "codecs": codecs,
        "index_codecs": [_LITTLE, {"name": "crc32c"}],
        "index_location": "end",
    }
    zero: Any = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [n_samples, *array.shape],
        "data_type": dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [shard_n_samples, *outer]},
        },
        # A dot keeps an array's shards in one folder.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": _attributes(array),
        "dimension_names": [SAMPLE, *array.dims],
    }


def group_metadata(arrays: Mapping[str, Mapping[str, Any]], *, title: str) -> dict[str, Any]:
    """Return the metadata of the group, those of its arrays among them ("consolidated")."""
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"Conventions": "CF-1.11", **({"title": title} if title else {})},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": dict(arrays),
        },
    }


def read_shard_length(path: Path, file: ShardFile) -> int:
    """Return how many samples a full shard holds, as the metadata of an array say.

    Raises
    ------
    StoreError
        If the file is missing, not as long as the manifest says, or no metadata of an array. The
        caller compares all of it with what it should be.
    """
    name = path / file.name
    nbytes = open_file_size(name, expected=file.nbytes)
    if nbytes > MAX_METADATA_NBYTES:
        raise StoreError(f"{name}: {nbytes} bytes, expected the metadata of an array")
    try:
        with storage_errors(name):
            values = read_json(name)
        length = values["chunk_grid"]["configuration"]["chunk_shape"][0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(f"{name}: no metadata of a sharded array; convert again") from error
    if type(length) is not int or not 0 < length < MAX_LENGTH:
        raise StoreError(f"{name}: shards of {length!r} samples; convert the store again")
    return length


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the one text of these metadata."""
    return canonical_json(metadata).encode()


def _attributes(array: ArrayLayout) -> dict[str, Any]:
    first = array.variables[0]
    attributes: dict[str, Any] = {"role": first.role}
    units = [variable.units for variable, start, stop in array.parts() for _ in range(start, stop)]
    if len(array.variables) == 1:
        units = [first.units]
        if first.name != array.folder:
            attributes["long_name"] = first.name
        if first.channels:
            attributes["channels"] = list(first.channels)
    else:
        attributes["channels"] = _channel_names(array)
    if len(set(units)) == 1 and units[0]:
        attributes["units"] = units[0]
    elif any(units):
        attributes["channel_units"] = units
    return {**attributes, **_packing(first)}


def _channel_names(array: ArrayLayout) -> list[str]:
    names = []
    for variable, start, stop in array.parts():
        if variable.dims[:1] == ("channel",):
            known = variable.channels or tuple(map(str, range(stop - start)))
            names += [f"{variable.name} {channel}" for channel in known]
        else:
            names.append(variable.name)
    return names


def _packing(variable: Variable) -> dict[str, Any]:
    """Return how stored numbers become values: as CF says it, where CF has a way to."""
    packed = variable.packed
    if packed is None:
        return {}
    if packed.kind == "scaled":
        return {"scale_factor": packed.scale, "add_offset": packed.offset}
    return {"packed": packed.kind}
