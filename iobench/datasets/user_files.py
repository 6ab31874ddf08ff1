"""Any GRIB or NetCDF files, or Zarr stores, of the user's own as a dataset.

One index of a dimension is one sample.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.chunks.grib.messages import BULLETIN_NBYTES, begins_as_grib
from iobench.chunks.netcdf.file import CLASSIC_MAGIC, is_hdf5
from iobench.chunks.zarr_arrays.store import is_zarr
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.chunked_samples import ChunkedSamples, NetcdfSamples, ZarrSamples
from iobench.datasets.contract import as_decoded
from iobench.datasets.file_variables import Selection
from iobench.datasets.grib_samples import GribSamples
from iobench.datasets.plain_loop import VariablePart, make_plain_loop, open_plainly
from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingFileError,
    OptionError,
    StorageError,
)
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL, as_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_fields import SharedChunks
    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.sampled_variable import SampledVariable
    from iobench.datasets.baseline import Baseline
    from iobench.datasets.contract import (
        Arrays,
        Locator,
        PublishedStep,
        Raw,
        SampleIndex,
        Where,
    )
    from iobench.datasets.file_sets import Order
    from iobench.datasets.setup_processes import Advance
    from iobench.files.ranges import SourceBytes
    from iobench.samples import Sample, SampleSpec

STORE_MARK = "iobench.json"
"""What the manifest of a store is called."""

DATA_SUFFIXES: Final = {
    **dict.fromkeys((".nc", ".nc4", ".cdf"), "NetCDF"),
    **dict.fromkeys((".grib", ".grib2", ".grb", ".grb2"), "GRIB"),
    ".zarr": "Zarr",
}
"""Of the files, and Zarr stores, that a folder stands for."""
MOST_FOLDERS_DEEP: Final = 4
"""Folders of years, months and days are looked into, a whole home is not."""

FINGERPRINT_NBYTES = 65536
UNPACKERS: Final = {
    b"PK\x03\x04": "unzip", b"\x1f\x8b": "gunzip -k", b"BZh": "bunzip2 -k",
    b"\xfd7zXZ": "unxz -k", b"\x28\xb5\x2f\xfd": "unzstd",
}  # fmt: skip
"""By how files begin."""


class UserFiles:
    """Files of the user's own as a dataset; made by `user_files`.

    ``fused`` is known once ``samples`` has run.
    """

    title = ""
    published: PublishedStep | None = None

    def __init__(self, paths: Sequence[Path], selection: Selection) -> None:
        self.name = paths[0].name if len(paths) == 1 else f"{len(paths)} files"
        self.fused: tuple[str, ...] = ()
        self._paths = tuple(paths)
        self._selection = selection
        self._source: ChunkedSamples = GribSamples(selection)

    @property
    def group(self) -> str:
        """Whose variables of NetCDF files are meant; those of the root where it is empty."""
        return self._selection.group

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: ecCodes and numcodecs can, HDF5 cannot."""
        return not self.fused

    def files(self, locator: Locator) -> list[Path]:
        """Return the files, URLs looked up; raise MissingFileError listing all that are missing."""
        existing, missing = [], []
        for path in self._paths:
            try:
                existing.append(path.looked_up() if isinstance(path, URL) else path)
            except FileNotFoundError:
                missing.append(f"{path}")
        missing += [f"{path}" for path in existing if not path.exists()]
        if missing:
            raise MissingFileError(
                f"{', '.join(missing)}: no such file, seen from {Path.cwd()}; check the spelling"
            )
        return existing

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per index along the sample dimension, or per combination of several."""
        known, _ = catalogued(files, FACTS, cache_dir=locator.cache_dir)
        self._source = _source(files, known, self._selection)
        index = self._source.samples(files, locator)
        self.fused = self._source.fused
        facts = {
            "kind": self._source.kind,
            "files": [
                self._file_facts(path, each) for path, each in zip(files, known, strict=True)
            ],
            **index.provenance,
        }
        return replace(index, provenance=facts)

    def _file_facts(self, path: Path, facts: _Facts) -> dict[str, Any]:
        """Return name, size and fingerprint: of a file's beginning and end, a store's metadata."""
        if isinstance(self._source, ZarrSamples):
            return self._source.facts(path)
        return {"name": path.name, "nbytes": facts.nbytes, "fingerprint": facts.fingerprint}

    def read(self, where: Where) -> Raw:
        """Return the sample's bytes; nothing it does not need."""
        return self._source.read(where)

    def decode(
        self, raw: Raw, where: Where, out: Mapping[str, NDArray[Any]] | None = None
    ) -> Arrays:
        """Return the sample's arrays, made in ``out`` where they can be."""
        return self._source.decode(raw, where, out)

    def expect(self, where: Sequence[Where], *, follows: bool = False) -> None:
        """Say which samples will be asked for, in order, so that their chunks are kept by plan."""
        self._source.expect(where, follows=follows)

    @property
    def has_chunks(self) -> bool:
        """Whether there are chunks that are kept decoded."""
        return self._source.has_chunks

    def chunking(self) -> SharedChunks | None:
        """Return how the variable is cut of whose chunks a sample takes least."""
        return self._source.chunking()

    @property
    def has_plain_loop(self) -> bool:
        """Whether ``upstream`` is for such files: NetCDF or Zarr of this machine."""
        source = self._source
        return not isinstance(source, GribSamples) and not any(
            isinstance(path, URL) for path in source.paths
        )

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain loop over an xarray dataset."""
        if isinstance(self._source, GribSamples):
            raise OptionError(
                f"--pipeline upstream: {self.name} is GRIB; a plain loop reads NetCDF or "
                "Zarr: leave it out"
            )
        source = self._source
        others = {at: str(path) for at, path in source.other_paths.items()}
        orders = {str(path): order for path, order in source.orders.items()}
        taken = tuple(map(str, source.paths)), tuple(source.sample_dim.split(",")), index.spec.names
        select = partial(_parts_of, others, orders, *taken)
        return make_plain_loop(
            index.spec,
            index,
            select,
            partial(_with_dtypes, index.spec),
            partial(open_plainly, group=self.group) if self.group else None,
        )

    def chunks_of(self, where: Where) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none where only a library can read them."""
        return self._source.chunks_of(where)

    preprocess = as_decoded


def _parts_of(
    others: Mapping[tuple[int, str], str],
    orders: Mapping[str, Order],
    paths: Sequence[str],
    dims: Sequence[str],
    names: Sequence[str],
    where: Where,
) -> list[VariablePart]:
    number, *indexes = where
    at = dict(zip(dims, indexes, strict=True))
    sources = [others.get((number, name), paths[number]) for name in names]
    return [
        VariablePart(source, name, {**at, **orders.get(source, {})})
        for source, name in zip(sources, names, strict=True)
    ]


def _with_dtypes(spec: SampleSpec, arrays: Arrays, where: Where) -> Sample:
    """Return the arrays with the dtypes of our own reader."""
    return {each.name: arrays[each.name].astype(each.dtype, copy=False) for each in spec}


def user_files(
    paths: Sequence[Path | str],
    *,
    sample_dim: str | None,
    variables: Sequence[str] | None = None,
    target_variables: Sequence[str] | None = None,
) -> UserFiles:
    """Make a dataset of GRIB files, of NetCDF files or of Zarr stores."""
    if not paths:
        raise OptionError("name at least one GRIB or NetCDF file, or Zarr store")
    parted = [split_group(path) for path in paths]
    named = [path for path, _ in parted]
    groups = sorted({group for _, group in parted})
    if len(groups) > 1:
        raise OptionError(
            f"{parted[0][0]}: groups {', '.join(map(repr, groups))} of files; name one for all"
        )
    if len(set(named)) < len(named):
        twice = next(path for number, path in enumerate(named) if path in named[:number])
        raise OptionError(f"{twice}: named twice; name each file once")
    targets = tuple(target_variables or ())
    chosen = tuple(dict.fromkeys((*(variables or ()), *targets))) if variables else ()
    return UserFiles(tuple(named), Selection(sample_dim, chosen, targets, groups[0]))


def split_group(path: Path | str) -> tuple[Path, str]:
    """Return the file and the group of ``FILE#group``; of a Zarr store, the folder of the group.

    A file whose name has a # goes before.
    """
    whole = as_path(path)
    text = whole.with_secrets() if isinstance(whole, URL) else str(whole)
    base, mark, group = text.rpartition("#")
    if not mark or not group or whole.exists():
        return whole, ""
    file = as_path(base)
    if not is_zarr(file):
        return file, group.strip("/")
    inside = file / group
    if not is_zarr(inside):
        raise OptionError(f"{file}: has no group {group!r}; name a folder in it that is one")
    return inside, ""


def data_files(folder: Path, *, deep: int = MOST_FOLDERS_DEEP, by_bytes: bool = False) -> list[str]:
    """Return the data files in a folder, by name; none where it is a store, or no folder.

    Where there are none, those of its folders; where no name says what a file is, those here or a
    folder below that begin as data do. Without hidden ones, as the shell's ``*.nc``: what macOS or
    a copy under way leaves.
    """
    if not folder.is_dir() or is_zarr(folder) or (folder / STORE_MARK).is_file():
        return []
    try:
        entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}; name what may be read in it") from error
    kind_of = _kind_by_bytes if by_bytes else _kind_by_name
    named = {each: kind_of(each) for each in entries}
    data = [each for each in entries if named[each]]
    kinds = Counter(named[each] for each in data)
    if len(kinds) > 1:
        held = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items()))
        which = f"{shlex.quote(str(folder))}/{_pattern_of(data[0])}"
        raise OptionError(f"{folder}: holds files of several formats ({held}); name one: {which}")
    if data or not deep:
        return [str(each) for each in data]
    inside = [
        file for each in entries for file in data_files(each, deep=deep - 1, by_bytes=by_bytes)
    ]
    if inside or by_bytes or deep < MOST_FOLDERS_DEEP:
        return inside
    return data_files(folder, deep=1, by_bytes=True)


def _kind_by_name(path: Path) -> str:
    return DATA_SUFFIXES.get(path.suffix.lower(), "")


def _kind_by_bytes(path: Path) -> str:
    """Return the kind of a file whose name says nothing; none where it is another's."""
    with suppress(IobenchError):
        if is_zarr(path) if path.is_dir() else path.is_file() and path.stat().st_size:
            return file_kind(path)
    return ""


def _pattern_of(path: Path) -> str:
    known = path.suffix if path.suffix.lower() in DATA_SUFFIXES else ""
    return f"*{known}" if known else f"{re.split(r'[0-9]', path.name)[0]}*"


class _Facts(msgspec.Struct, frozen=True):
    """Facts of a file of any format; the fingerprint is of its beginning and end."""

    kind: str
    nbytes: int
    fingerprint: str


def _facts(path: Path, _: Advance) -> _Facts:
    if path.is_dir():
        return _Facts(_folder_kind(path), 0, "")
    opened = open_source_file(path)
    kind = _kind(path, opened)
    size = opened.nbytes
    ends = opened.read_each([0, max(size - FINGERPRINT_NBYTES, 0)], FINGERPRINT_NBYTES)
    return _Facts(kind, size, hashlib.blake2b(b"".join(ends), digest_size=16).hexdigest())


FACTS: Final = Inspection("facts 1", _facts, (_Facts,))


def _source(files: Sequence[Path], facts: Sequence[_Facts], selection: Selection) -> ChunkedSamples:
    kind = facts[0].kind
    for path, each in zip(files, facts, strict=True):
        if each.kind != kind:
            raise FileFormatError(
                f"files of one kind are expected, but {files[0]} is {kind}, {path} is {each.kind}; "
                "profile them apart"
            )
    classes: dict[str, type[ChunkedSamples]] = {
        each.kind: each for each in (GribSamples, NetcdfSamples, ZarrSamples)
    }
    return classes[kind](selection)


def file_kind(path: Path) -> str:
    """Return the kind of a file by its first bytes, of a folder by the metadata in it."""
    return _folder_kind(path) if path.is_dir() else _kind(path, open_source_file(path))


def _folder_kind(path: Path) -> str:
    if is_zarr(path):
        return ZarrSamples.kind
    if (path / STORE_MARK).is_file():
        raise FileFormatError(
            f"{path}: is a store of finished samples, no source; name what it was made of, or it "
            f"itself: iobench profile {shlex.quote(str(path))}, iobench.loader({str(path)!r}, 8)"
        )
    raise FileFormatError(
        f"{path}: is a folder without Zarr metadata, and no file in it is GRIB or NetCDF; name a "
        "folder that holds some, or the files themselves"
    )


def _kind(path: Path, opened: SourceBytes) -> str:
    head = opened.read_at(0, 2 * BULLETIN_NBYTES)
    magic = head[:8]
    if begins_as_grib(head):
        return "GRIB"
    if magic[:4] in CLASSIC_MAGIC or is_hdf5(opened):
        return "NetCDF"
    if unpacker := _unpacker(path.name, head):
        copied, name = ("copy it here, ", path.name) if isinstance(path, URL) else ("", str(path))
        raise FileFormatError(
            f"{path}: is an archive or compressed; {copied}unpack it with {unpacker} "
            f"{shlex.quote(name)}; then name the Zarr store, or the files, that were in it"
        )
    beginning = f"it begins with {magic!r}" if magic else "it is empty"
    again = ", or fetch it again" if not magic.strip(b"\0") or magic.lstrip()[:1] == b"<" else ""
    raise FileFormatError(
        f"{path}: is neither GRIB nor NetCDF nor Zarr: {beginning}; leave it out{again}"
    )


def _unpacker(name: str, head: bytes) -> str:
    """Return the command that unpacks a file that begins so, ``""`` where none does."""
    unpacker = next((command for magic, command in UNPACKERS.items() if head.startswith(magic)), "")
    is_tar = unpacker and (".tar." in name or name.endswith(".tgz"))
    return "tar -xf" if is_tar or head[257:262] == b"ustar" else unpacker
