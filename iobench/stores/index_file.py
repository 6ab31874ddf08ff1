"""The index of a store: when and where its samples are, their names and splits.

Arrays are in ``iobench.index.npz``, that ``numpy.load`` opens: coordinates by their names, those of
iobench (``iobench.positions``, ``iobench.split.train``). What each is, units and attributes are the
manifest's ``index``. Nothing is compressed, dated or pickled: the same source gives the same bytes.
"""

from __future__ import annotations

import io
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.coordinates import Coordinate, SampleLabels
from iobench.errors import SampleError, StoreError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.crc32c import crc32c
from iobench.masking import mask_values
from iobench.stores.manifest import ShardFile
from iobench.stores.sample_numbers import places_among, sample_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.stores.manifest import Manifest

INDEX_NAME: Final = "iobench.index.npz"
NAMES_AT_ONCE: Final = 1 << 16
NOT_KEYS: Final = frozenset({"file", "allow_pickle"})
"""Parameters of `numpy.savez`, which takes arrays by keyword."""


def write_index(
    path: Path, index: SampleIndex, samples: Sequence[int] | NDArray[Any]
) -> tuple[dict[str, Any], ShardFile]:
    """Write the index of a store of these samples; return the manifest's part, and the file."""
    chosen = np.asarray(samples, dtype=np.int64)
    arrays: dict[str, NDArray[Any]] = {}

    def keep(key: str, name: str, values: NDArray[Any]) -> str:
        is_plain = name.isidentifier() and name not in NOT_KEYS
        key += name if is_plain or not name else str(len(arrays))
        arrays[key] = values
        return key

    def along(name: str, positions: Sequence[float], rows: Sequence[int]) -> dict[str, str]:
        lists = (("positions", positions, "<f8"), ("rows", rows, "<i8"))
        return {
            part: keep(f"iobench.{part}{'.' * bool(name)}", name, np.asarray(each, dtype)[chosen])
            if len(each)
            else ""
            for part, each, dtype in lists
        }

    known = index.meteorology.take(chosen)
    has_names = len(index.coordinate) > 0
    names = keep("iobench.names", "", _encoded(index.coordinate, chosen)) if has_names else ""
    splits = {}
    for name, numbers in index.splits.items():
        places = places_among(chosen, np.asarray(numbers, dtype=np.int64))
        if (places >= 0).any():
            splits[name] = keep("iobench.split.", name, places[places >= 0])
    described = {
        "position_units": index.position_units,
        **along("", index.positions, index.rows),
        "names": names,
        "axes": [
            {"name": each.name, "units": each.units, **along(each.name, each.positions, each.rows)}
            for each in index.axes
        ],
        "splits": splits,
        "sample_dims": list(known.sample_dims),
        "coordinates": [
            {
                "name": each.name,
                "dims": list(each.dims),
                "values": keep("", each.name, each.values),
                "attributes": mask_values(each.attributes),
            }
            for each in known.coordinates
        ],
        "variables": {name: mask_values(each) for name, each in known.variables.items()},
        "attributes": mask_values(known.attributes),
        "left_out": mask_values(known.left_out),
    }
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]  # its stubs take them for allow_pickle
    content = stream.getvalue()
    write_atomically(path / INDEX_NAME, content)
    return described, ShardFile(INDEX_NAME, len(content), crc32c(content))


def _encoded(names: Sequence[str], samples: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return the names of samples as UTF-8 of one width; millions are not held as texts at once."""
    if (of_many := getattr(names, "encoded", None)) is not None:
        several: NDArray[np.bytes_] = of_many(samples)
        return several
    starts = range(0, len(samples), NAMES_AT_ONCE)
    numbers = (samples[start : start + NAMES_AT_ONCE].tolist() for start in starts)
    texts = ([names[number].encode("utf-8", "replace") for number in part] for part in numbers)
    return np.concatenate([np.array(part, dtype=np.bytes_) for part in texts])


def read_index(path: Path, manifest: Manifest) -> SampleIndex:
    """Return times, splits, coordinates and attributes of a store's samples, as a dataset does."""
    from iobench.datasets.contract import LazySequence, SampleAxis, SampleIndex

    arrays, described = _read_arrays(path, manifest), manifest.index

    def array(key: str) -> Any:
        return arrays[key] if key else np.empty(0)

    try:
        names = array(described["names"])
        if len(names) and (names.ndim != 1 or names.dtype.kind != "S"):
            raise ValueError(f"names are {names.dtype} {names.shape}")
        index = SampleIndex(
            manifest.spec.unpacked,
            range(manifest.n_samples),
            splits={name: sample_numbers(array(k)) for name, k in described["splits"].items()},
            coordinate=LazySequence(len(names), partial(_name, names)),
            positions=array(described["positions"]),
            position_units=str(described["position_units"]),
            rows=array(described["rows"]),
            axes=tuple(
                SampleAxis(
                    str(axis["name"]),
                    array(axis["positions"]),
                    str(axis["units"]),
                    array(axis["rows"]),
                )
                for axis in described["axes"]
            ),
            provenance=manifest.provenance,
            meteorology=SampleLabels(
                sample_dims=tuple(map(str, described["sample_dims"])),
                coordinates=tuple(
                    Coordinate(
                        str(each["name"]),
                        tuple(map(str, each["dims"])),
                        arrays[each["values"]],
                        dict(each["attributes"]),
                    )
                    for each in described["coordinates"]
                ),
                variables={name: dict(each) for name, each in described["variables"].items()},
                attributes=dict(described["attributes"]),
                left_out={name: str(each) for name, each in described["left_out"].items()},
            ),
        )
        parts: list[Any] = [index.positions, index.rows, index.coordinate]
        parts += [part for axis in index.axes for part in (axis.positions, axis.rows)]
        parts += [each.values for each in index.meteorology.coordinates if each.of_samples]
        lengths = {len(part) for part in parts if len(part)}
        if lengths - {manifest.n_samples}:
            raise ValueError(f"{sorted(lengths)} values for {manifest.n_samples} samples")
    except (KeyError, TypeError, ValueError, AttributeError, SampleError) as error:
        raise _damaged(path, error) from error
    return index


def _damaged(path: Path, error: Exception) -> StoreError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return StoreError(
        f"{path / INDEX_NAME}: not the index of a store ({reason}); convert to a new folder"
    )


def _read_arrays(path: Path, manifest: Manifest) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of the file, which is compared with its checksum."""
    name = path / INDEX_NAME
    listed = next((file for file in manifest.metadata if file.name == INDEX_NAME), None)
    if listed is None:
        raise _damaged(path, ValueError("its manifest does not list it"))
    try:
        with storage_errors(name):
            size = name.stat().st_size
            content = name.read_bytes() if size == listed.nbytes else b""
    except FileNotFoundError as error:
        raise StoreError(f"{name} is missing; convert to a new folder") from error
    if (size, crc32c(content)) != (listed.nbytes, listed.crc32c):
        raise StoreError(f"{name}: not as written with its store; convert to a new folder")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
                raise ValueError("it is compressed")
        with np.load(io.BytesIO(content), allow_pickle=False) as members:
            return dict(members)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, MemoryError) as error:
        raise _damaged(path, error) from error


def _name(encoded: NDArray[np.bytes_], number: int) -> str:
    return bytes(encoded[number]).decode("utf-8", "replace")
