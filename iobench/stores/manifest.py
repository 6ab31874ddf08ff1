"""The manifest of a store, ``iobench.json``: what it holds, how it is laid out, where it is from.

It carries no time, host or process id, so that the same source gives the same bytes, and it is
written last: a folder without it is not a finished store. A checksum of all else that it says is in
it.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, ValidationError

from iobench.errors import SampleError, StorageError, StoreError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.crc32c import crc32c
from iobench.json_files import parse_json, read_json, read_small_file
from iobench.masking import mask_urls
from iobench.samples import SampleSpec, Variable
from iobench.stores.sample_numbers import (
    SampleNumbers,
    count_runs,
    numbers_of_runs,
    sample_numbers,
)

if TYPE_CHECKING:
    from pathlib import Path


MANIFEST_NAME: Final = "iobench.json"
MANIFEST_VERSION: Final = 2
"""Of everything that stores hold beside their shards; stores of others are refused."""
CHECKSUM: Final = "crc32c"
"""Of a document's other values, as `canonical_json` spells them."""
MAX_MANIFEST_NBYTES: Final = 1 << 28
MAX_SCATTERED: Final = 1 << 31
"""Samples that do not follow each other in their dataset: their numbers are held."""
_NAME: Final = re.compile(r"(?:(?!\.{1,2}(?:/|$))[^/\\\0-\x1f]{1,255}(?:/(?!$)|$)){1,8}")

Count = Annotated[int, Meta(ge=0, lt=1 << 60)]


class ShardFile(msgspec.Struct, frozen=True):
    """One file of a store: its name, size, CRC-32C of all its bytes.

    The name is plain, or a path of plain names below the store's folder (``t2m/c.0.0``).
    """

    name: str
    nbytes: Count
    crc32c: Annotated[int, Meta(ge=0, lt=1 << 32)]


class Shard(msgspec.Struct, frozen=True):
    """Consecutive samples of a store and the files that hold them."""

    n_samples: Count  # samples it holds
    files: tuple[ShardFile, ...]  # in the order its format wrote them


class Manifest(msgspec.Struct, frozen=True, eq=False):
    """What ``iobench.json`` says."""

    format: str
    format_version: Count
    spec: SampleSpec
    shards: tuple[Shard, ...]
    samples: SampleNumbers  # of the dataset, in the order of the store; given as any sequence
    dataset: str = ""
    plan: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    provenance: Mapping[str, Any] = msgspec.field(default_factory=dict)
    normalisation: Mapping[str, Any] = msgspec.field(default_factory=dict)
    lossy: Mapping[str, Any] = msgspec.field(default_factory=dict)
    statistics: Mapping[str, Any] = msgspec.field(default_factory=dict)
    index: Mapping[str, Any] = msgspec.field(default_factory=dict)  # see `write_index`
    metadata: tuple[ShardFile, ...] = ()
    # lengths of the dimensions that samples fill as a grid, the last fastest; empty where there
    # are not several
    sample_grid: Mapping[str, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # As JSON gives them back, so that a manifest equals the one read from its file.
        for name in ("options", "provenance", "normalisation", "lossy", "statistics", "index"):
            msgspec.structs.force_setattr(self, name, json.loads(_json(getattr(self, name))))
        msgspec.structs.force_setattr(self, "samples", sample_numbers(self.samples))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.to_dict() == other.to_dict()

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
        values = msgspec.structs.asdict(self)
        spec, samples = values.pop("spec"), values.pop("samples")
        return {
            **msgspec.to_builtins(values),
            **spec.to_dict(),
            "manifest_version": MANIFEST_VERSION,
            "n_samples": len(samples),
            "samples": [list(run) for run in count_runs(samples)],
            "sample_grid": [[dim, length] for dim, length in self.sample_grid.items()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Manifest:
        """Return the manifest that `to_dict` described; raise ValueError where it cannot be one."""
        values = msgspec.structs.asdict(msgspec.convert(values, _Document))
        shards, n_samples = values["shards"], values.pop("n_samples")
        runs, variables = values.pop("samples"), values.pop("variables")
        _check_names([*(file for shard in shards for file in shard.files), *values["metadata"]])
        counts = sum(shard.n_samples for shard in shards), sum(count for _, count in runs)
        nbytes = sum(file.nbytes for shard in shards for file in shard.files)
        if counts != (n_samples, n_samples) or n_samples > nbytes:
            raise ValueError(f"{n_samples} samples, but {counts} in shards of {nbytes} bytes")
        if len(runs) > 1 and n_samples > MAX_SCATTERED:
            raise ValueError(f"{n_samples} scattered samples, expected at most {MAX_SCATTERED}")
        if any(length < 0 for each in variables for length in each.shape):
            raise ValueError("the shape of a variable is negative")
        if (spec := SampleSpec(variables)).nbytes >= 1 << 60:
            raise ValueError(f"samples of {spec.nbytes} bytes")
        values["sample_grid"] = grid = dict(values["sample_grid"])
        if grid and math.prod(grid.values()) != n_samples:
            raise ValueError(f"a grid of {grid} for {n_samples} samples")
        return cls(spec=spec, samples=numbers_of_runs(runs), **values)


def _check_names(files: Sequence[ShardFile]) -> None:
    names = [file.name for file in files]
    if outside := [name for name in names if not _NAME.fullmatch(name)]:
        raise ValueError(f"file {outside[0]!r} is not a plain path inside the store's folder")
    if len(set(names)) != len(names):
        raise ValueError("a file name occurs in two shards")


_OWN: Final = ("spec", "samples", "sample_grid")
_Document: Any = msgspec.defstruct(
    "_Document",
    [
        ("n_samples", Count),
        ("samples", list[tuple[Count, Count]]),  # first number and count of each stretch
        ("variables", tuple[Variable, ...]),
        ("sample_grid", list[tuple[str, Count]]),
        *((own.name, own.type) for own in msgspec.structs.fields(Manifest) if own.name not in _OWN),
    ],
)
"""The manifest as its file has it."""


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


def check_document(file: Path) -> None:
    """Raise StoreError where a document does not say what was written."""
    try:
        with storage_errors(file):
            values = read_json(file)
            is_right = values.pop(CHECKSUM) == crc32c(canonical_json(values).encode())
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise StoreError(f"{file}: is damaged ({error}); convert to a new folder") from error
    if not is_right:
        raise StoreError(
            f"{file}: its checksum is wrong: something that it says is not as it was written; "
            "convert to a new folder"
        )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``iobench.json`` of the store at ``path``, atomically; this finishes the store."""
    write_atomically(path / MANIFEST_NAME, checked_json(manifest.to_dict()))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the store at ``path``."""
    file = path / MANIFEST_NAME
    try:
        with storage_errors(file):
            if (nbytes := file.stat().st_size) > MAX_MANIFEST_NBYTES:
                raise StoreError(
                    f"{file}: {nbytes} bytes, expected a manifest of at most {MAX_MANIFEST_NBYTES}"
                )
            data = read_small_file(file)
    except (FileNotFoundError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.ENOTDIR:
            raise
        raise StoreError(
            f"{path} is not a finished store: it has no {MANIFEST_NAME}; "
            "run its conversion again to finish it, or stage a copy again; iobench.open_dataset "
            "loads other files as they are"
        ) from error
    try:
        values = parse_json(data)
        if (version := values["manifest_version"]) != MANIFEST_VERSION:
            raise StoreError(
                f"{path}: a store of another version of iobench (manifest {version!r}, expected "
                f"{MANIFEST_VERSION}); remove it, then: iobench convert SOURCE {path} --to "
                f"{str(values['format'])!r}"
            )
        return Manifest.from_dict(values)
    except (ValueError, KeyError, TypeError, SampleError, ValidationError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{file}: not a manifest of a store ({reason}); remove the folder and convert again"
        ) from error
