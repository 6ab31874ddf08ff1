"""HDF5's filters as codecs: which of them are undone here, which only the library knows.

Numbers and parameters (``cd_values``): the HDF5 reference manual for those of HDF5 itself, "HDF5
Filter Plugins" of the HDF Group (hdf5_plugins, docs/RegisteredFilterPlugins.md) for the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from iobench.chunks.chunk_codecs import HDF5_LZ4, refused_codecs

Parameters = Sequence[int]

NAMES: Final = {
    4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32008: "bitshuffle", 32013: "zfp",
    32026: "blosc2",
}  # fmt: skip
BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


class UnknownFilterError(Exception):
    """Only the HDF5 library can undo a filter; the message names it."""


def _blosc(parameters: Parameters) -> dict[str, Any]:
    """Return what Blosc's chunks are made with: the seventh number says the compressor.

    Source: hdf5-blosc, blosc_filter.c: revision of the filter, of Blosc's format, size of a number,
    of a chunk, level, shuffle, compressor. A chunk is one buffer of Blosc's, which says it all.
    """
    number = parameters[6] if len(parameters) > 6 else 0
    cname = BLOSC_COMPRESSORS[number] if number < len(BLOSC_COMPRESSORS) else str(number)
    return {"id": "blosc", "cname": cname}


OWN: Final = (1, 2, 307, 32004)
"""Numbers of those that are undone without numcodecs' codec."""
CODECS: Final[dict[int, Callable[[Parameters], dict[str, Any]]]] = {
    1: lambda _: {"id": "zlib"},
    2: lambda parameters: {"id": "shuffle", "elementsize": parameters[0]},
    3: lambda _: {"id": "fletcher32"},
    307: lambda _: {"id": "bz2"},
    32001: _blosc,
    32004: lambda _: {"id": "lz4"},
    32015: lambda _: {"id": "zstd"},
}


def hdf5_codecs(filters: Sequence[tuple[int, Parameters]]) -> tuple[str, ...]:
    """Return the codecs of a chain of filters, as `ChunkCodecs` has them."""
    return tuple(_codec(number, parameters) for number, parameters in filters)


def filter_name(number: int) -> str:
    """Return what a filter is called in messages."""
    return f"HDF5 filter {NAMES.get(number, number)}"


def _codec(number: int, parameters: Parameters) -> str:
    if number not in CODECS or (number == 2 and not len(parameters)):
        raise UnknownFilterError(filter_name(number))
    described = CODECS[number](parameters)
    if refused := number not in OWN and (
        refused_codecs([described]) or _refused_compressor(described)
    ):
        raise UnknownFilterError(f"HDF5 filter {', '.join(refused)}")
    return HDF5_LZ4 if number == 32004 else json.dumps(described, sort_keys=True)


def _refused_compressor(described: dict[str, Any]) -> list[str]:
    if described["id"] != "blosc":
        return []
    from numcodecs import blosc

    cname = described["cname"]
    return [] if cname in blosc.list_compressors() else [f"blosc ({cname})"]
