"""The manifest of a store, ``iobench.json``: what it holds, how it is laid out, where it is from.

It carries no time, host or process id, so that the same source gives the same bytes, and it is
written last: a folder without it is not a finished store. A checksum of all else that it says is in
it; those written before there was one open all the same.
"""

from __future__ import annotations

import errno
import json
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.errors import SampleError, StorageError, StoreError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.crc32c import crc32c
from iobench.json_files import parse_json, read_json, read_small_file
from iobench.masking import mask_urls
from iobench.samples import SampleSpec
from iobench.stores.sample_numbers import SampleNumbers
from iobench.stores.sample_numbers import count_runs as count_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


MANIFEST_NAME = "iobench.json"
MANIFEST_VERSION = 1
CHECKSUM = "crc32c"
"""Of a document's other values, as `canonical_json` spells them."""

MAX_MANIFEST_NBYTES = 1 << 28
MAX_NBYTES = 1 << 60
_PLAIN_NAME = re.compile(r"[^/\\\0-\x1f]{1,255}")
MAX_PARTS = 8
"""Folders below a store's, and the name, that a file of it may have: Zarr's arrays have one."""


class ShardFile(msgspec.Struct, frozen=True):
    """One file of a store: its name, size, CRC-32C of all its bytes.

    The name is plain, or a path of plain names below the store's folder (``t2m/c.0.0``).
    """

    name: str
    nbytes: int
    crc32c: int


class Shard(msgspec.Struct, frozen=True):
    """Consecutive samples of a store and the files that hold them."""

    n_samples: int  # samples it holds
    files: tuple[ShardFile, ...]  # in the order its format wrote them

    def to_dict(self) -> dict[str, Any]:
        """Return the shard as JSON-ready values."""
        return {"n_samples": self.n_samples, "files": _file_values(self.files)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Shard:
        """Return the shard that `to_dict` described; raise ValueError where it cannot be one."""
        return cls(
            n_samples=_number(values["n_samples"], "n_samples"),
            files=_files(values["files"]),
        )


class Manifest(msgspec.Struct, frozen=True):
    """What ``iobench.json`` says."""

    format: str
    format_version: int
    spec: SampleSpec
    shards: tuple[Shard, ...]
    samples: Sequence[int]
    dataset: str = ""
    plan: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    provenance: Mapping[str, Any] = msgspec.field(default_factory=dict)
    normalisation: Mapping[str, Any] = msgspec.field(default_factory=dict)
    lossy: Mapping[str, Any] = msgspec.field(default_factory=dict)
    statistics: Mapping[str, Any] = msgspec.field(default_factory=dict)
    metadata: tuple[ShardFile, ...] = ()
    sample_grid: Mapping[str, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # As JSON gives them back, so that a manifest equals the one read from its file.
        for name in ("options", "provenance", "normalisation", "lossy", "statistics"):
            msgspec.structs.force_setattr(self, name, json.loads(_json(getattr(self, name))))

    @property
    def n_samples(self) -> int:
        """Samples in the store."""
        return len(self.samples)

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """All files of all shards, and of the metadata."""
        return (*(file for shard in self.shards for file in shard.files), *self.metadata)

    @property
    def nbytes(self) -> int:
        """Bytes of all files of all shards."""
        return sum(file.nbytes for shard in self.shards for file in shard.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON-ready values."""
        return {
            "manifest_version": MANIFEST_VERSION,
            "format": self.format,
            "format_version": self.format_version,
            "dataset": self.dataset,
            "plan": self.plan,
            "n_samples": self.n_samples,
            "samples": [list(run) for run in count_runs(self.samples)],
            "options": dict(self.options),
            "provenance": dict(self.provenance),
            "normalisation": dict(self.normalisation),
            **({"lossy": dict(self.lossy)} if self.lossy else {}),
            **({"statistics": dict(self.statistics)} if self.statistics else {}),
            "shards": [shard.to_dict() for shard in self.shards],
            **({"metadata": _file_values(self.metadata)} if self.metadata else {}),
            **_grid_values(self.sample_grid),
            **self.spec.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Manifest:
        """Return the manifest that `to_dict` described."""
        version = _number(values["manifest_version"], "manifest_version")
        if version != MANIFEST_VERSION:
            raise ValueError(f"manifest version {version}, this iobench reads {MANIFEST_VERSION}")
        shards = tuple(Shard.from_dict(shard) for shard in values["shards"])
        metadata = _files(values.get("metadata", ()))
        names = [file.name for file in (*(f for s in shards for f in s.files), *metadata)]
        if len(set(names)) != len(names):
            raise ValueError("a file name occurs in two shards")
        spec = _spec(values)
        n_samples = _number(values["n_samples"], "n_samples")
        n_held = sum(shard.n_samples for shard in shards)
        if n_samples != n_held:
            raise ValueError(f"n_samples is {n_samples}, the shards hold {n_held}")
        if n_samples > sum(file.nbytes for shard in shards for file in shard.files):
            raise ValueError(f"{n_samples} samples do not fit the bytes of the shards")
        return cls(
            format=_text(values["format"]),
            format_version=_number(values["format_version"], "format_version"),
            spec=spec,
            shards=shards,
            samples=_sample_numbers(values["samples"], n_samples),
            dataset=_text(values["dataset"]),
            plan=_text(values["plan"]),
            options={_text(key): _text(value) for key, value in values["options"].items()},
            provenance=dict(values["provenance"]),
            normalisation=dict(values["normalisation"]),
            lossy=dict(values.get("lossy", {})),
            statistics=dict(values.get("statistics", {})),
            metadata=metadata,
            sample_grid=_sample_grid(values.get("sample_grid", ()), n_samples),
        )


def canonical_json(values: Any) -> str:
    """Return the one JSON text of ``values``: sorted keys, two spaces, a newline at the end."""
    return _json(values, indent=2) + "\n"


def _json(values: Any, *, indent: int | None = None) -> str:
    try:
        # ASCII: file names that are not UTF-8 hold surrogates, which only escapes carry.
        text = json.dumps(values, sort_keys=True, indent=indent, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a manifest must be plain JSON: {error}") from error
    return mask_urls(text)


def checked_json(values: Mapping[str, Any]) -> bytes:
    """Return the one JSON text of ``values`` and a checksum of them, for `check_document`."""
    checksum = crc32c(canonical_json(values).encode())
    return canonical_json({**values, CHECKSUM: checksum}).encode()


def check_document(file: Path) -> bool:
    """Compare what a document says with its checksum; return whether it has one."""
    try:
        with storage_errors(file):
            values = read_json(file)
            stored = values.pop(CHECKSUM, None)
    except (ValueError, AttributeError, TypeError) as error:
        raise StoreError(f"{file}: is damaged ({error}); convert to a new folder") from error
    if stored is None:
        return False
    if stored != crc32c(canonical_json(values).encode()):
        raise StoreError(
            f"{file}: its checksum is wrong: something that it says is not as it was written; "
            "convert to a new folder"
        )
    return True


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``iobench.json`` of the store at ``path``, atomically; this finishes the store."""
    write_atomically(path / MANIFEST_NAME, checked_json(manifest.to_dict()))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the store at ``path``."""
    file = path / MANIFEST_NAME
    try:
        with storage_errors(file):
            nbytes = file.stat().st_size
            if nbytes > MAX_MANIFEST_NBYTES:
                raise StoreError(
                    f"{file}: expected a manifest, found {nbytes} bytes, more than "
                    f"{MAX_MANIFEST_NBYTES}"
                )
            data = read_small_file(file)
    except (FileNotFoundError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.ENOTDIR:
            raise
        raise StoreError(
            f"{path} is not a finished store: it has no {MANIFEST_NAME}; "
            "run its conversion again to finish it, or stage a copy again"
        ) from error
    try:
        return Manifest.from_dict(parse_json(data))
    except StoreError as error:
        raise StoreError(f"{file}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{file}: not a manifest of a store ({reason}); remove the folder and convert again"
        ) from error


def _sample_numbers(runs: Any, n_samples: int) -> SampleNumbers:
    pairs = [(_number(first, "sample"), _number(count, "count")) for first, count in runs]
    numbers = SampleNumbers(pairs)
    if sum(count for _, count in pairs) != n_samples:
        raise ValueError(f"'samples' does not list {n_samples} of them")
    return numbers


def _grid_values(grid: Mapping[str, int]) -> dict[str, Any]:
    """Return a grid with its order, which objects of JSON do not keep."""
    return {"sample_grid": [[dim, length] for dim, length in grid.items()]} if grid else {}


def _sample_grid(pairs: Any, n_samples: int) -> dict[str, int]:
    grid = {_text(dim): _number(length, "sample_grid") for dim, length in pairs}
    if grid and math.prod(grid.values()) != n_samples:
        raise ValueError(f"a grid of {grid} for {n_samples} samples")
    return grid


def _spec(values: Mapping[str, Any]) -> SampleSpec:
    for variable in values["variables"]:
        for length in variable["shape"]:
            _number(length, "shape")
        texts = [variable["name"], variable["dtype"], variable["units"], variable["role"]]
        for text in (*texts, *variable["dims"], *variable["channels"]):
            _text(text)
        if (variable.get("packed") or {}).get("kind") == "bfloat16":
            raise StoreError(
                f"variable {variable['name']!r} is stored as bfloat16, which iobench does not read "
                "any more; remove the store and convert its source again, with --dtype float16 or "
                "int16"
            )
    try:
        spec = SampleSpec.from_dict(values)
    except SampleError as error:
        raise ValueError(str(error)) from error
    _number(spec.nbytes, "sample size")
    return spec


def _file_values(files: Sequence[ShardFile]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(file) for file in files]


def _files(values: Any) -> tuple[ShardFile, ...]:
    return tuple(
        ShardFile(
            _plain_name(file["name"]),
            _number(file["nbytes"], "nbytes"),
            _number(file["crc32c"], "crc32c", limit=1 << 32),
        )
        for file in values
    )


def _number(value: Any, what: str, *, limit: int = MAX_NBYTES) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{what} is {value!r}, expected a whole number from 0")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    return value


def _plain_name(value: Any) -> str:
    name = _text(value)
    parts = name.split("/")
    plain = all(_PLAIN_NAME.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not plain or len(parts) > MAX_PARTS:
        raise ValueError(f"file {name!r} is not a plain path inside the store's folder")
    return name
