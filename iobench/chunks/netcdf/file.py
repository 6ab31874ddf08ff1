"""NetCDF files: what they hold and say; numbers are read without a library's help."""

from __future__ import annotations

import gc
from array import array
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunk_codecs import UnknownFilterError, hdf5_codec
from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.netcdf.classic import read_classic_header
from iobench.chunks.packing import CODING, packing_of
from iobench.chunks.source_file import SourceFile
from iobench.coordinates import json_attributes
from iobench.errors import FileFormatError, IobenchError, import_extra
from iobench.files.open_files import OpenFile, expect_files
from iobench.files.ranges import open_source_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from iobench.files.ranges import SourceBytes

HDF5_MAGIC: Final = b"\x89HDF\r\n\x1a\n"
CLASSIC_MAGIC: Final = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
TEXTS: Final = frozenset(("units", "calendar", "coordinates", "bounds", "grid_mapping"))
"""Attributes that are kept."""
NOT_KEPT: Final = frozenset((
    *CODING, "_NCProperties", "_Netcdf4Coordinates", "_Netcdf4Dimid", "_ARRAY_DIMENSIONS",
    "valid_min", "valid_max", "valid_range",
))  # fmt: skip
"""Attributes of how numbers are stored: untrue of decoded ones."""
SHORT_NBYTES = 4096
"""Coordinates that are no longer are kept with what is known of a file."""
MAX_TEXT_NBYTES: Final = 1 << 22


NetcdfFile = SourceFile
"""As plugins name it."""


class Description(msgspec.Struct, frozen=True, eq=False):
    """A file, or store, as it describes itself; attributes are as `json_attributes` has them."""

    attributes: Mapping[str, Any]
    variables: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, tuple[tuple[str, ...], NDArray[np.str_]]]  # dimensions and values


def inspect_netcdf(path: Path, group: str = "") -> SourceFile:
    """Return what a NetCDF file holds: NetCDF-4 (HDF5) or classic, told by its first bytes."""
    opened = open_source_file(path)
    if isinstance(opened, OpenFile):
        expect_files({opened.path: (opened.nbytes, opened.version)})
    magic = opened.read_at(0, 8)
    if magic == HDF5_MAGIC:
        with _hdf5(path, opened, group) as (file, raw):
            held = replace(_inspect_hdf5(path, file, raw, opened.nbytes), group=group)
    elif magic[:4] not in CLASSIC_MAGIC:
        raise FileFormatError(
            f"{path}: is not NetCDF: expected it to begin with b'\\x89HDF' or b'CDF', found "
            f"{magic!r}; name files of other kinds apart, or fetch it again"
        )
    elif group:
        raise FileFormatError(f"{path}: has no group {group!r}: classic NetCDF has none")
    else:
        held = _inspect_classic(path, opened)
    opened.check()
    return held


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
        with _hdf5(path, opened, group) as (file, raw):
            attributes = _attributes(file.attrs)
            for name, each in file.variables.items():
                variables[name], dataset = _attributes(each.attrs), raw[name]
                # Texts of variable length are objects, with metadata.
                width = dataset.dtype.itemsize if dataset.dtype.kind == "S" else 8
                is_text = dataset.dtype.kind == "S" or dataset.dtype.metadata
                is_text = is_text and not _reason_unread(dataset, raw)
                if is_text and width * dataset.size <= MAX_TEXT_NBYTES:
                    texts[name] = tuple(each.dimensions), np.asarray(dataset[()])
    return Description(
        _plain(attributes),
        {name: _plain(each) for name, each in variables.items()},
        {name: decoded_texts(dims, values) for name, (dims, values) in texts.items()},
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


def decoded_texts(
    dims: tuple[str, ...], values: NDArray[Any]
) -> tuple[tuple[str, ...], NDArray[np.str_]]:
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


def _variable(
    name: str,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    attributes: Mapping[str, Any],
    fill: Any,
) -> ChunkedVariable:
    """Return a variable without where it lies; ValueError for wrong attributes."""
    texts = {}
    for key in TEXTS & attributes.keys():  # those of fixed length come as bytes
        text = attributes[key]
        texts[key] = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    packing = packing_of(dtype, attributes if dtype.kind in "iuf" else {})
    return ChunkedVariable(name, dims, shape, packing, fill, texts)


def _inspect_classic(path: Path, opened: SourceBytes) -> SourceFile:
    dims, described, _ = read_classic_header(path, opened)
    variables, skipped = {}, {}
    for name, own_dims, shape, dtype, attributes, where in described:
        if dtype.kind not in "iuf":
            skipped[name] = "not numeric (characters)"
            continue
        try:
            known = _variable(name, own_dims, shape, dtype, attributes, 0)
            variables[name] = replace(known, **where)
        except ValueError as error:
            skipped[name] = str(error)
    return SourceFile(path, dims, variables, skipped)


@contextmanager
def _hdf5(path: Path, opened: SourceBytes, group: str) -> Iterator[tuple[Any, Any]]:
    """Yield a NetCDF-4 file, or a group of it, as h5netcdf opens it, and as h5py does.

    Of one behind a URL metadata are read in small pages, and no garbage is collected meanwhile:
    h5py holds its lock while it waits for the thread of requests, and were that one to collect an
    object of h5py's, it would wait for the lock for ever.
    """
    h5py, h5netcdf = (
        import_extra(name, "NetCDF files need h5py and h5netcdf", extra="netcdf")
        for name in ("h5py", "h5netcdf")
    )
    h5netcdf.File._writable = False  # its __del__ asks, where it could not be opened, too
    source: Any = opened.path if isinstance(opened, OpenFile) else opened.reader()
    collects = gc.isenabled() and source != opened.path
    try:
        if collects:
            gc.disable()
        with (
            h5py.File(source, "r") as raw,
            h5netcdf.File(raw, "r", phony_dims="sort") as file,
        ):
            groups = dict(_groups(file))
            if group and group not in groups:
                raise FileFormatError(
                    f"{path}: has no group {group!r} of variables; it has "
                    f"{', '.join(groups) or 'none'}"
                )
            if group and raw[group].file != raw:
                raise FileFormatError(f"{path}: group {group!r} is in another file; name that one")
            yield (groups[group], raw[group]) if group else (file, raw)
    except IobenchError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        do = "fetch the file again"
        if "unable to lock" in reason:
            do = "it is locked: end the program that writes it, or set HDF5_USE_FILE_LOCKING=FALSE"
        if isinstance(error, ValueError | AttributeError | TypeError):  # those are h5netcdf's
            do = "it is HDF5 and no NetCDF: write its variables to a new NetCDF file"
        raise FileFormatError(f"{path}: cannot be read as NetCDF: {reason}; {do}") from error
    finally:
        if collects:
            gc.enable()


def _groups(file: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and group of all groups in a file that have variables."""
    for name, group in file.groups.items():
        if group.variables:
            yield f"{above}{name}", group
        yield from _groups(group, f"{above}{name}/")


def _reason_unread(dataset: Any, raw: Any) -> str:
    """Return why values are not read, ``""`` if they are: others' may be of any file there is."""
    if dataset.external or dataset.is_virtual or dataset.file != raw.file:
        return "its numbers are in other files"
    return "it has no values" if dataset.shape is None else ""


def _reason_no_numbers(dataset: Any) -> str:
    """Return why values are no numbers as NumPy has them, ``""`` if they are."""
    from h5py import h5t

    dtype = dataset.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biufc":
        return "not numeric"
    is_native = h5t.py_create(dtype, logical=True) == dataset.id.get_type()
    return "" if is_native else "stored in a way that no dtype of NumPy has"


def _inspect_hdf5(path: Path, file: Any, raw: Any, size: int) -> SourceFile:
    variables = {}
    skipped = {f"{name}/": f"a group, named as FILE#{name}" for name, _ in _groups(file)}
    for name, each in file.variables.items():
        dataset = raw[name]
        if why := _reason_unread(dataset, raw) or _reason_no_numbers(dataset):
            skipped[name] = why
            continue
        attributes = {key: each.attrs[key] for key in each.attrs if key in {*CODING, *TEXTS}}
        shape, dims = tuple(dataset.shape), tuple(each.dimensions)
        if dataset.chunks:  # may end before an unlimited dimension: readers see the fill value
            shape = tuple(map(max, shape, each.shape))
        try:
            # A netCDF4 `_FillValue` is also HDF5's fill value, and that is what readers see.
            known = _variable(name, dims, shape, dataset.dtype, attributes, dataset.fillvalue)
        except ValueError as error:
            skipped[name] = str(error)
            continue
        where, end = _hdf5_storage(dataset, shape)
        if end > size:
            raise FileFormatError(
                f"{path}: is cut short: variable {name!r} reaches byte {end}, the file ends at "
                f"{size}; fetch the file again"
            )
        if dims in ((name,), ()) and dataset.shape == shape and dataset.nbytes <= SHORT_NBYTES:
            where["values"] = np.asarray(dataset[()])
        variables[name] = replace(known, **where)
    dims_of_file = {name: dimension.size for name, dimension in file.dimensions.items()}
    for known in variables.values():  # those of the groups above
        dims_of_file |= dict(zip(known.dims, known.shape, strict=True))
    return SourceFile(path, dims_of_file, variables, skipped)


def _hdf5_storage(dataset: Any, shape: tuple[int, ...]) -> tuple[dict[str, Any], int]:
    """Return where numbers lie, or why they are not read here, and where they end."""
    from h5py import h5d

    plist = dataset.id.get_create_plist()
    layout = plist.get_layout()
    if layout == h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        if offset is None or dataset.nbytes == 0:
            return {"chunk": shape, "offset": -1}, 0
        return {"chunk": shape, "offset": offset}, offset + dataset.nbytes
    if layout != h5d.CHUNKED:
        return {"why_unread": "a layout of HDF5's own"}, 0
    filters = [plist.get_filter(n) for n in range(plist.get_nfilters())]
    try:
        codecs = tuple(hdf5_codec(number, *more) for number, _, *more in filters)
    except UnknownFilterError as error:
        return {"why_unread": str(error)}, 0
    if shape != dataset.shape and plist.get_fill_time() == h5d.FILL_TIME_NEVER:
        why = "an end before its dimension's, with no fill value behind it"
        return {"why_unread": why}, 0
    chunk = tuple(dataset.chunks)
    grid = tuple(-(-n // length) for n, length in zip(shape, chunk, strict=True))
    offsets = np.full(grid, -1, dtype=np.int64)
    sizes = np.zeros(grid, dtype=np.int64)
    masks = np.zeros(grid, dtype=np.uint32)
    numbers = array("q")

    def note(info: Any) -> None:
        numbers.extend((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask))

    try:
        dataset.id.chunk_iter(note)
    except OverflowError:  # damaged: it lies beyond the end of any file
        return {}, 1 << 64
    rows = np.array(numbers, dtype=np.int64).reshape(-1, len(chunk) + 3)
    places = rows[:, :-3] // chunk
    inside = (places < grid).all(axis=1)  # a dataset that was shrunk keeps chunks outside its shape
    at = tuple(places[inside].T)
    offsets[at], sizes[at], masks[at] = rows[inside, -3:].T
    where = {"chunk": chunk, "codecs": codecs, "offsets": offsets, "sizes": sizes}
    if masks.any():
        where["masks"] = masks
    return where, int((offsets + sizes).max(initial=0))
