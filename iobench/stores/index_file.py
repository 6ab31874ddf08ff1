"""The index of a store, ``iobench.index.npz``: where its samples lie and what is known of them.

One file for every container, that ``numpy.load`` opens: an array for each coordinate, by its name,
those of iobench (``iobench.positions``, ``iobench.split.train``), and ``index.json``, which says
what each is. Nothing in it is compressed, dated or pickled: the same source gives the same bytes.
"""

from __future__ import annotations

import ast
import io
import re
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from iobench.coordinates import Coordinate, Meteorology
from iobench.errors import SampleError, StoreError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.crc32c import crc32c
from iobench.json_files import parse_json
from iobench.masking import mask_values
from iobench.stores.manifest import ShardFile, canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.stores.manifest import Manifest

INDEX_NAME: Final = "iobench.index.npz"
VERSION: Final = 1
TEXT_NAME: Final = "index.json"
NAMES_AT_ONCE: Final = 1 << 16
_PLAIN: Final = re.compile(r"[^/\\\0-\x1f]{1,200}")
_OURS: Final = "iobench."
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip file can say: it says none."""
_NPY: Final = b"\x93NUMPY\x01\x00"
_ALIGNMENT: Final = 64
_ERRORS: Final = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, SyntaxError, RecursionError,
    zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, SampleError,
)  # fmt: skip
"""What a file raises that is not one of these."""


def write_index(path: Path, index: SampleIndex, samples: Sequence[int]) -> ShardFile:
    """Write the index of a store that holds these samples of a dataset; return the file."""
    content = _index_bytes(index, np.fromiter(samples, np.int64, len(samples)))
    write_atomically(path / INDEX_NAME, content)
    return ShardFile(INDEX_NAME, len(content), crc32c(content))


def has_index(manifest: Manifest) -> bool:
    """Return whether a store keeps its index: those of former versions do not."""
    return any(file.name == INDEX_NAME for file in manifest.metadata)


def read_index(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what a store keeps of its index, by the names of the fields of `SampleIndex`.

    All but ``spec``, ``where``, ``provenance`` and ``setup``; ``axes`` by the names of the fields
    of `SampleAxis`.
    """
    members = _members(path, manifest)
    try:
        told = parse_json(members[TEXT_NAME])
        if told["version"] != VERSION:
            raise ValueError(f"index version {told['version']}, this iobench reads {VERSION}")
        meteorology = _meteorology(members, told)
        found: dict[str, Any] = {
            "positions": _list(members, told["positions"]),
            "position_units": str(told["position_units"]),
            "rows": _list(members, told["rows"]),
            "axes": [_axis(members, each) for each in told["axes"]],
            "coordinate": _Texts(_array(members[told["names"]])) if told["names"] else (),
            "splits": {
                str(name): _array(members[member]).tolist()
                for name, member in told["splits"].items()
            },
            "meteorology": meteorology,
        }
        parts = [found[name] for name in ("positions", "rows", "coordinate")]
        parts += [part for axis in found["axes"] for part in (axis["positions"], axis["rows"])]
        parts += [each.values for each in meteorology.coordinates if each.of_samples]
        lengths = {len(part) for part in parts if len(part)}
        if lengths - {manifest.n_samples}:
            raise ValueError(f"{sorted(lengths)} values for {manifest.n_samples} samples")
        return found
    except _ERRORS as error:
        raise _damaged(path, error) from error


def read_meteorology(path: Path, manifest: Manifest) -> Meteorology:
    """Return what is known of a store's samples; nothing where the store keeps no index."""
    if not has_index(manifest):
        return Meteorology()
    members = _members(path, manifest)
    try:
        return _meteorology(members, parse_json(members[TEXT_NAME]))
    except _ERRORS as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> StoreError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return StoreError(
        f"{path / INDEX_NAME}: not the index of a store ({reason}); convert to a new folder"
    )


# ---- written


def _index_bytes(index: SampleIndex, samples: NDArray[np.int64]) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}

    def keep(name: str, values: NDArray[Any]) -> str:
        plain = name.removeprefix(f"{_OURS}split.")
        if not _PLAIN.fullmatch(plain) or f"{name}.npy" in arrays:
            name = f"{_OURS}array-{len(arrays)}"
        arrays[f"{name}.npy"] = values
        return f"{name}.npy"

    meteorology = index.meteorology.take(samples)
    told = {
        "version": VERSION,
        "n_samples": len(samples),
        "position_units": index.position_units,
        "positions": keep(
            f"{_OURS}positions", np.asarray(index.positions, dtype="<f8")[samples]
        ) if len(index.positions) else "",
        "rows": keep(f"{_OURS}rows", np.asarray(index.rows, dtype="<i8")[samples])
        if len(index.rows) else "",
        "axes": [
            {
                "name": axis.name,
                "units": axis.units,
                "positions": keep(
                    f"{_OURS}positions.{axis.name}", np.asarray(axis.positions, "<f8")[samples]
                ),
                "rows": keep(f"{_OURS}rows.{axis.name}", np.asarray(axis.rows, "<i8")[samples])
                if len(axis.rows) else "",
            }
            for axis in index.axes
        ],
        "names": keep(f"{_OURS}names", _texts(index.coordinate, samples))
        if len(index.coordinate) else "",
        "splits": {
            name: keep(f"{_OURS}split.{name}", numbers)
            for name, numbers in _splits(index.splits, samples, len(index)).items()
        },
        "sample_dims": list(meteorology.sample_dims),
        "coordinates": [
            {
                "name": each.name,
                "dims": list(each.dims),
                "values": keep(_own_name(each.name), each.values),
                "attributes": mask_values(each.attributes),
            }
            for each in meteorology.coordinates
        ],
        "variables": {
            name: mask_values(attributes) for name, attributes in meteorology.variables.items()
        },
        "attributes": mask_values(meteorology.attributes),
        "left_out": mask_values(meteorology.left_out),
    }  # fmt: skip
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_member(TEXT_NAME), canonical_json(told).encode())
        for name, values in arrays.items():
            archive.writestr(_member(name), _npy_header(values) + values.tobytes())
    return stream.getvalue()


def _own_name(name: str) -> str:
    """Return what the array of a coordinate is called: as the coordinate, where that can be."""
    return "" if name.startswith(_OURS) or not _PLAIN.fullmatch(name) else name


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = 3, 0o644 << 16
    return info


def _npy_header(values: NDArray[Any]) -> bytes:
    """Return the header of an ``.npy`` file, the same whatever the version of NumPy."""
    told = f"{{'descr': {values.dtype.str!r}, 'fortran_order': False, 'shape': {values.shape!r}, }}"
    before = len(_NPY) + 2
    nbytes = -(-(before + len(told) + 1) // _ALIGNMENT) * _ALIGNMENT - before
    return _NPY + nbytes.to_bytes(2, "little") + told.encode().ljust(nbytes - 1) + b"\n"


def _texts(names: Sequence[str], samples: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return the names of samples as UTF-8 of one width; millions are not held as texts at once."""
    numbers = samples.tolist()

    def encoded(start: int) -> list[bytes]:
        part = [names[number] for number in numbers[start : start + NAMES_AT_ONCE]]
        at_once = "\0".join(part).encode("utf-8", "replace").split(b"\0")  # in a third of the time
        if len(at_once) == len(part):  # else one holds the separator itself
            return at_once
        return [name.encode("utf-8", "replace") for name in part]

    starts = range(0, len(numbers), NAMES_AT_ONCE)
    # Each as wide as its widest name, and at least one byte.
    parts = [np.array(encoded(start), dtype=np.bytes_) for start in starts]
    return np.concatenate([np.zeros(0, dtype="S1"), *parts])


def _splits(
    splits: Mapping[str, Sequence[int]], samples: NDArray[np.int64], n_samples: int
) -> dict[str, NDArray[np.int64]]:
    """Return the splits that the store has any samples of, as numbers of the store."""
    if not splits:
        return {}
    place = np.full(n_samples, -1, dtype="<i8")
    place[samples[::-1]] = np.arange(len(samples))[::-1]
    found = {
        name: place[np.fromiter(numbers, np.int64, len(numbers))]
        for name, numbers in splits.items()
    }
    held = {name: numbers[numbers >= 0] for name, numbers in found.items()}
    return {name: numbers for name, numbers in held.items() if numbers.size}


# ---- read


class _Texts(Sequence[str]):
    """Texts kept as UTF-8, each made as it is asked for."""

    def __init__(self, encoded: NDArray[Any]) -> None:
        if encoded.ndim != 1 or encoded.dtype.kind != "S":
            raise ValueError(f"names are {encoded.dtype} {encoded.shape}")
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [_decoded(each) for each in self._encoded[index]]
        return _decoded(self._encoded[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))


def _decoded(text: Any) -> str:
    return bytes(text).decode("utf-8", "replace")


def _members(path: Path, manifest: Manifest) -> dict[str, bytes]:
    """Return the members of the file, which is compared with its checksum."""
    listed = next((file for file in manifest.metadata if file.name == INDEX_NAME), None)
    if listed is None:
        raise StoreError(
            f"{path}: keeps neither times nor splits of its samples, as stores of former versions; "
            "convert to a new folder"
        )
    name = path / INDEX_NAME
    try:
        with storage_errors(name):
            size = name.stat().st_size
            content = name.read_bytes() if size == listed.nbytes else b""
    except FileNotFoundError as error:
        raise StoreError(f"{name} is missing; convert to a new folder") from error
    if size != listed.nbytes or crc32c(content) != listed.crc32c:
        raise StoreError(f"{name}: not as written with its store; convert to a new folder")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
                raise ValueError("it is compressed")
            return {each.filename: archive.read(each) for each in archive.infolist()}
    except _ERRORS as error:
        raise _damaged(path, error) from error


def _array(content: bytes) -> NDArray[Any]:
    """Return the array of an ``.npy`` file of ours; what it says is not believed."""
    start = len(_NPY) + 2
    nbytes = int.from_bytes(content[len(_NPY) : start], "little")
    if content[: len(_NPY)] != _NPY:
        raise ValueError("an array that is none")
    values = ast.literal_eval(content[start : start + nbytes].decode())
    dtype = np.dtype(values["descr"])
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"an array of {dtype}")
    found = np.frombuffer(content, dtype, offset=start + nbytes)
    return found.reshape(values["shape"])


def _list(members: Mapping[str, bytes], name: str) -> Sequence[Any]:
    found: Sequence[Any] = _array(members[name]).tolist() if name else ()
    return found


def _axis(members: Mapping[str, bytes], told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(told["name"]),
        "units": str(told["units"]),
        "positions": _list(members, told["positions"]),
        "rows": _list(members, told["rows"]),
    }


def _meteorology(members: Mapping[str, bytes], told: Mapping[str, Any]) -> Meteorology:
    return Meteorology(
        sample_dims=tuple(map(str, told["sample_dims"])),
        coordinates=tuple(
            Coordinate(
                str(each["name"]),
                tuple(map(str, each["dims"])),
                _array(members[each["values"]]),
                dict(each["attributes"]),
            )
            for each in told["coordinates"]
        ),
        variables={str(name): dict(each) for name, each in told["variables"].items()},
        attributes=dict(told["attributes"]),
        left_out={str(name): str(each) for name, each in told["left_out"].items()},
    )
