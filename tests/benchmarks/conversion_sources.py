"""Source files for conversion.py: a few compressed chunks or messages are made, and used again."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

N_DISTINCT = 4
"""Chunks of each variable that differ; the others are the same bytes elsewhere in the file."""

LATITUDES, LONGITUDES = 361, 720


@dataclass(frozen=True)
class Layout:
    """How the variables of a source are stored.

    ``codec``: none, zlib, blosc or zstd; of GRIB grid_simple or grid_ccsds. ``dtype``: of the
    numbers as stored; ``packed``: with scale_factor and add_offset; ``shard``: of Zarr 3, in whole
    chunks; ``is_unlimited``: NetCDF's first dimension. NetCDF without a chunk shape is contiguous.
    """

    kind: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    sample_dim: str
    n_variables: int = 1
    codec: str = "zlib"
    dtype: str = "<f4"
    packed: bool = False
    shard: tuple[int, ...] | None = None
    is_unlimited: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [f"v{number}" for number in range(self.n_variables)]

    @property
    def variable_nbytes(self) -> int:
        """Bytes of one variable; packed ones count as the float32 they stand for."""
        return math.prod(self.shape) * (4 if self.packed else np.dtype(self.dtype).itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.n_variables * self.variable_nbytes

    @property
    def file_shape(self) -> tuple[int, ...]:
        """What lies in one file of Zarr: a shard or a chunk."""
        return self.shard or self.chunk

    @property
    def suffix(self) -> str:
        """Of the file's or store's name."""
        return {"netcdf": ".nc", "grib": ".grib"}.get(self.kind, ".zarr")

    def resized(self, nbytes: int) -> Layout:
        """Return it with as many chunks along its sample dimension as make about so many bytes."""
        axis = self.dims.index(self.sample_dim)
        step = self.chunk[axis] if self.chunk else 1
        if step == self.shape[axis]:  # chunks of all samples: more of them along the last dimension
            axis = len(self.dims) - 1
            step = self.chunk[axis]
        row = self.nbytes * step // self.shape[axis]
        shape = list(self.shape)
        shape[axis] = step * max(1, round(nbytes / row))
        return replace(self, shape=tuple(shape))

    def __str__(self) -> str:
        packed = " packed" if self.packed else ""
        each = " x ".join(
            f"{dim} {n}/{step}"
            for dim, n, step in zip(self.dims, self.shape, self.chunk or self.shape, strict=True)
        )
        what = f"{self.n_variables} {np.dtype(self.dtype).name}{packed}"
        return f"{self.kind} {self.codec}, {what}, by {self.sample_dim}: {each}"


FIELDS = ("time", "latitude", "longitude")
MEMBERS = ("time", "number", "latitude", "longitude")
COLUMNS = ("level", "column")

LEVELS = ("time", "level", "latitude", "longitude")
FIELD = (LATITUDES, LONGITUDES)

LAYOUTS = {
    # What archives hold and training cannot use.
    "time-long": Layout("netcdf", FIELDS, (300, *FIELD), (300, 19, 48), "time", n_variables=3),
    "pancakes": Layout(
        "netcdf", LEVELS, (24, 13, *FIELD), (1, 1, *FIELD), "time", n_variables=3
    ),
    "members": Layout(
        "netcdf", MEMBERS, (12, 10, *FIELD), (6, 5, 91, 180), "time", n_variables=7
    ),
    "columns": Layout("netcdf", COLUMNS, (137, 81920), (1, 8192), "column", n_variables=3),
    "contiguous": Layout("netcdf", LEVELS, (24, 13, *FIELD), (), "level", 3, codec="none"),
    "unlimited": Layout(
        "netcdf", FIELDS, (300, *FIELD), (1, *FIELD), "time", 3, is_unlimited=True
    ),
    "zarr2": Layout("zarr2", FIELDS, (300, *FIELD), (30, 181, 360), "time", 3, codec="blosc"),
    "zarr3": Layout(
        "zarr3", FIELDS, (300, *FIELD), (30, 91, 180), "time", 3, codec="zstd",
        shard=(30, 364, 720),
    ),
    "grib": Layout("grib", FIELDS, (300, *FIELD), (1, *FIELD), "time", 3, codec="grid_simple"),
    "grib-ccsds": Layout("grib", FIELDS, (300, *FIELD), (1, *FIELD), "time", 3, codec="grid_ccsds"),
}  # fmt: skip
"""Sources by name: ten chunkings."""


def write_source(folder: Path, name: str, layout: Layout) -> Path:
    """Write a source, and beside it what it is; return its path."""
    path = folder / f"{name}{layout.suffix}"
    if layout.kind == "netcdf":
        _write_netcdf(path, layout)
    elif layout.kind == "grib":
        _write_grib(path, layout)
    else:
        _write_zarr(path, layout)
    Path(f"{path}.json").write_text(json.dumps(asdict(layout)))
    return path


def read_layout(path: Path) -> Layout:
    """Return what a source is."""
    said = json.loads(Path(f"{path}.json").read_text())
    return Layout(**{key: tuple(v) if isinstance(v, list) else v for key, v in said.items()})


def remove_source(path: Path) -> None:
    """Remove a source and what is beside it."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    Path(f"{path}.json").unlink()


SCALE, OFFSET = 0.01, 280.0


def _values(layout: Layout, seed: int) -> NDArray[Any]:
    """Return a chunk of smooth waves with a little noise."""
    rng = np.random.default_rng(seed)
    grids = np.meshgrid(
        *(np.linspace(0, 3 + axis, n, dtype="f4") for axis, n in enumerate(layout.chunk)),
        indexing="ij",
        sparse=True,
    )
    waves = 10 * np.sin(sum(grids) + np.float32(0.7 * seed))
    waves = waves + rng.normal(0, 0.05, layout.chunk).astype("f4")
    dtype = np.dtype(layout.dtype)
    return (waves / SCALE if dtype.kind == "i" else (OFFSET + waves).round(2)).astype(dtype)


def _places(layout: Layout) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield number and place of all chunks, or shards, in their grid."""
    counts = [-(-n // step) for n, step in zip(layout.shape, layout.file_shape, strict=True)]
    yield from enumerate(itertools.product(*map(range, counts)))


def _coordinate(dim: str, n: int) -> tuple[NDArray[Any], dict[str, str]]:
    attributes = {"time": {"units": "hours since 2010-01-01", "standard_name": "time"}}
    attributes |= {"latitude": {"units": "degrees_north"}, "longitude": {"units": "degrees_east"}}
    values = np.linspace(90, -90, n) if dim == "latitude" else np.arange(n, dtype="f8")
    return values, attributes.get(dim, {})


def _packing(layout: Layout) -> dict[str, float]:
    return {"scale_factor": SCALE, "add_offset": OFFSET} if layout.packed else {}


def _write_netcdf(path: Path, layout: Layout) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for dim, n in zip(layout.dims, layout.shape, strict=True):
            values, attributes = _coordinate(dim, n)
            file.create_dataset(dim, data=values).make_scale(dim)
            file[dim].attrs.update(attributes)
        how: dict[str, Any] = {"chunks": layout.chunk} if layout.chunk else {}
        if layout.codec == "zlib":
            how |= {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        if layout.is_unlimited:
            how |= {"maxshape": (None, *layout.shape[1:])}
        for number, name in enumerate(layout.names):
            variable = file.create_dataset(name, layout.shape, layout.dtype, **how)
            for axis, dim in enumerate(layout.dims):
                variable.dims[axis].attach_scale(file[dim])
            for key, value in _packing(layout).items():
                variable.attrs[key] = np.float32(value)
            if not layout.chunk:
                rows = replace(layout, chunk=(1, *layout.shape[1:]))
                for n in range(layout.shape[0]):
                    variable[n] = _values(rows, N_DISTINCT * number + n % N_DISTINCT)[0]
                continue
            made = [_deflated(layout, N_DISTINCT * number + n) for n in range(N_DISTINCT)]
            for n, place in _places(layout):
                start = tuple(a * step for a, step in zip(place, layout.chunk, strict=True))
                variable.id.write_direct_chunk(start, made[n % N_DISTINCT])


def _deflated(layout: Layout, seed: int) -> bytes:
    import zlib

    values = _values(layout, seed)
    if layout.codec == "none":
        return values.tobytes()
    planes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize).T
    return zlib.compress(planes.tobytes(), 4)


def _write_zarr(path: Path, layout: Layout) -> None:
    """Write the first chunks through zarr and copy their files."""
    import numcodecs
    import zarr

    version = int(layout.kind[-1])
    compressors: Any = {
        "none": None,
        "zlib": numcodecs.Zlib(4) if version == 2 else zarr.codecs.GzipCodec(level=4),
        "blosc": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE)
        if version == 2
        else zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
        "zstd": numcodecs.Zstd(3) if version == 2 else zarr.codecs.ZstdCodec(level=3),
    }[layout.codec]

    def array(name: str, dims: tuple[str, ...], shape: tuple[int, ...], **how: Any) -> Any:
        told: dict[str, Any] = {"dimension_names": dims} if version == 3 else {}
        made = group.create_array(name, shape=shape, **told, **how)
        if version == 2:
            made.attrs["_ARRAY_DIMENSIONS"] = list(dims)
        return made

    shards: dict[str, Any] = {} if layout.shard is None else {"shards": layout.shard}
    group = zarr.create_group(path, zarr_format=version)
    for dim, n in zip(layout.dims, layout.shape, strict=True):
        values, attributes = _coordinate(dim, n)
        coordinate = array(dim, (dim,), (n,), dtype="<f8", chunks=(n,), compressors=None)
        coordinate[:] = values
        coordinate.attrs.update(attributes)
    for number, name in enumerate(layout.names):
        variable = array(
            name,
            layout.dims,
            layout.shape,
            dtype=layout.dtype,
            chunks=layout.chunk,
            compressors=compressors,
            **shards,
            config={"write_empty_chunks": True},
        )
        variable.attrs.update(_packing(layout))
        first: list[bytes] = []
        for seed in range(N_DISTINCT):
            with_one = zarr.create_array(
                path.with_suffix(f".{seed}"),
                shape=layout.file_shape,
                dtype=layout.dtype,
                chunks=layout.chunk,
                compressors=compressors,
                zarr_format=version,
                **shards,
            )
            values = _values(layout, N_DISTINCT * number + seed)
            counts = (n // step for n, step in zip(layout.file_shape, layout.chunk, strict=True))
            with_one[...] = np.tile(values, tuple(counts))
            (file,) = (each for each in _files(path.with_suffix(f".{seed}")))
            first.append(file.read_bytes())
            shutil.rmtree(path.with_suffix(f".{seed}"))
        for n, place in _places(layout):
            key = ".".join(map(str, place)) if version == 2 else "/".join(["c", *map(str, place)])
            target = path / name / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(first[n % N_DISTINCT])


def _files(store: Path) -> list[Path]:
    return [
        each
        for each in store.rglob("*")
        if each.is_file() and not each.name.startswith(".z") and each.name != "zarr.json"
    ]


SHORT_NAMES = ("2t", "10u", "10v", "msl", "sp", "skt", "tcc")


def _write_grib(path: Path, layout: Layout) -> None:
    """Write messages of a day and hour each; values are packed for the first of them."""
    import datetime

    import eccodes

    start = datetime.datetime(2010, 1, 1)
    n_times, n_latitudes, n_longitudes = layout.shape
    handles = []
    for number, short in enumerate(SHORT_NAMES[: layout.n_variables]):
        for seed in range(N_DISTINCT):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            grid = {
                "Ni": n_longitudes, "Nj": n_latitudes,
                "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
                "longitudeOfFirstGridPointInDegrees": 0,
                "longitudeOfLastGridPointInDegrees": 360 - 360 / n_longitudes,
                "iDirectionIncrementInDegrees": 360 / n_longitudes,
                "jDirectionIncrementInDegrees": 180 / (n_latitudes - 1),
                "shortName": short, "bitsPerValue": 16, "packingType": layout.codec,
            }  # fmt: skip
            for key, value in grid.items():
                eccodes.codes_set(handle, key, value)
            values = _values(layout, N_DISTINCT * number + seed).ravel().astype("f8")
            eccodes.codes_set_values(handle, values)
            handles.append(handle)
    with path.open("wb") as file:
        for time in range(n_times):
            for number in range(layout.n_variables):
                handle = handles[N_DISTINCT * number + time % N_DISTINCT]
                now = start + datetime.timedelta(hours=6 * time)
                eccodes.codes_set(handle, "dataDate", int(f"{now:%Y%m%d}"))
                eccodes.codes_set(handle, "dataTime", now.hour * 100)
                file.write(eccodes.codes_get_message(handle))
    for handle in handles:
        eccodes.codes_release(handle)
