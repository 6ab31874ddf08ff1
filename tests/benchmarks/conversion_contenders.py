"""One conversion in a process of its own, for conversion.py: prints a line of JSON.

Everything a contender needs is imported before its time begins and its memory is looked at.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from conversion_sources import Layout, read_layout

Contender = Callable[[Path, Path, int], None]
"""Converts a source to a target within a memory; 0: its default."""
CONTENDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Contender]] = {}
CHECKS: list[Callable[[], None]] = []
"""Run when time and memory have been taken."""
TOLD: dict[str, Any] = {}
"""What a contender says beside its time."""

NETCDF, ZARR = ("netcdf",), ("zarr2", "zarr3")
CHUNKED = (*NETCDF, *ZARR)
ALL = (*CHUNKED, "grib")


def contender(*needs: str, kinds: tuple[str, ...] = ALL) -> Callable[[Contender], Contender]:
    """Enter a function under its name, with the modules to import first and the kinds it reads."""

    def enter(function: Contender) -> Contender:
        CONTENDERS[function.__name__] = (needs, kinds, function)
        return function

    return enter


class Quiet:
    """A screen that shows nothing."""

    def note(self, text: str) -> None:
        TOLD.setdefault("notes", []).append(text)

    def progress(self, title: str, *, in_bytes: bool = False) -> Any:
        from contextlib import nullcontext

        return nullcontext(lambda done, total: None)


def our_request(source: Path, target: Path, memory_nbytes: int, name: str) -> Any:
    """Return what ``iobench convert SOURCE TARGET --to NAME --sample-dim DIM`` asks for."""
    from iobench.conversion.convert_request import ConvertRequest

    return ConvertRequest(
        targets=(str(source),),
        sample_dim=read_layout(source).sample_dim,
        to=name,
        out=target,
        store_dir=target.parent / "stores",
        memory_nbytes=memory_nbytes or None,
    )


def ours(source: Path, target: Path, memory_nbytes: int, name: str) -> None:
    from iobench.conversion.conversion_run import run
    from iobench.conversion.preparing import prepare

    request = our_request(source, target, memory_nbytes, name)
    outcome = run(request, Quiet())
    names = ("memory_nbytes", "in_nbytes", "out_nbytes", "stages_s", "wall_s")
    TOLD.update({name: outcome[name] for name in names})

    def check() -> None:
        import iobench

        (_, asked), store = prepare(request, Quiet()), iobench.open_store(target)
        dataset, where = asked.dataset, asked.index.where
        for number in (0, len(store) // 2, len(store) - 1):
            arrays = dataset.decode(dataset.read(where[number]), where[number])
            made, stored = dataset.preprocess(arrays, where[number]), store[number]
            if any(stored[each].tobytes() != values.tobytes() for each, values in made.items()):
                raise AssertionError(f"sample {number} of {target} is another one")

    CHECKS.append(check)


IOBENCH = (
    "iobench", "h5netcdf", "h5py", "isal.isal_zlib", "eccodes", "numcodecs", "xarray", "filelock",
    "psutil",
    "iobench_converters.convert", "iobench.conversion.conversion_run",
)  # fmt: skip


@contender(*IOBENCH, "iobench_converters.zarr_groups", "zarr")
def iobench_zarr(source: Path, target: Path, memory_nbytes: int) -> None:
    """As the command does it, by its defaults."""
    ours(source, target, 0, "zarr")


@contender(*IOBENCH, "iobench_converters.zarr_groups", "zarr")
def iobench_zarr_bounded(source: Path, target: Path, memory_nbytes: int) -> None:
    """With --memory."""
    ours(source, target, memory_nbytes, "zarr")


@contender(*IOBENCH, "iobench_converters.numpy_records")
def iobench_numpy(source: Path, target: Path, memory_nbytes: int) -> None:
    ours(source, target, 0, "numpy")


@contender(*IOBENCH, "iobench_converters.tfrecord")
def iobench_tfrecord(source: Path, target: Path, memory_nbytes: int) -> None:
    ours(source, target, 0, "tfrecord")


@contender(*IOBENCH)
def limit_decoder(source: Path, target: Path, memory_nbytes: int) -> None:
    """Read and decode every chunk once, in as many threads as there are CPUs, and drop it."""
    from iobench.chunks.chunked_variable import decode_chunk
    from iobench.conversion.preparing import prepare
    from iobench.cpus import available_cpus
    from iobench.datasets.sample_windows import SampledFiles

    _, asked = prepare(our_request(source, target, 0, "numpy"), Quiet())
    files = SampledFiles(asked.dataset, asked.index.where)
    waiting = iter(
        [
            (variable, some)
            for variables, _, indexes in files.by_file()
            for variable in variables
            for row, _ in variable.parts(indexes)
            for some in batched(row, variable)
        ]
    )
    began = time.perf_counter()

    def work() -> None:
        for variable, places in waiting:
            for place, stored in zip(places, variable.read(places), strict=True):
                if stored is not None:
                    decode_chunk(variable.file, variable.variable, place, stored)

    in_threads(work, available_cpus())
    SPENT["seconds"] = time.perf_counter() - began


def batched(row: tuple[int, ...], variable: Any) -> Iterator[list[Any]]:
    """Yield places of the chunks of a row, some MiB together."""
    inner = variable.places((0,) * len(variable.shape), variable.shape)
    step = max(1, (4 << 20) * len(inner) // max(1, variable.row_nbytes))
    for start in range(0, len(inner), step):
        yield [variable.place(row, each) for each in inner[start : start + step]]


def in_threads(work: Callable[[], None], count: int) -> None:
    """Run it in so many threads."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work) for _ in range(count)]:
            future.result()


def opened(source: Path, **how: Any) -> Any:
    """Open a source with xarray."""
    import xarray

    kind = read_layout(source).kind
    if kind == "grib":
        how |= {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}}
    elif kind in ZARR:
        how |= {"engine": "zarr", "consolidated": False}
    else:
        how |= {"decode_times": False}
    data = xarray.open_dataset(source, **how)
    return data.drop_vars([name for name in data.coords if data[name].ndim == 0])


XARRAY = ("xarray", "zarr", "netCDF4", "dask.array", "cfgrib")


CHUNK_NBYTES = 1 << 20
"""Short samples share a chunk up to this: a file for each would take the peers minutes."""


def per_chunk(layout: Layout) -> int:
    """Return how many samples the peers put into a chunk."""
    n_samples = layout.shape[layout.dims.index(layout.sample_dim)]
    return max(1, min(n_samples, CHUNK_NBYTES * n_samples // layout.variable_nbytes))


def sample_chunks(data: Any, layout: Layout) -> dict[str, Any]:
    """Return the encoding of a chunk a sample, or of a MiB of whole samples, uncompressed."""
    found = {}
    for name, variable in data.data_vars.items():
        variable.encoding.clear()
        dims = zip(variable.dims, variable.shape, strict=True)
        chunks = tuple(per_chunk(layout) if dim == layout.sample_dim else n for dim, n in dims)
        found[name] = {"chunks": chunks, "compressors": None}
    return found


@contender(*XARRAY)
def xarray_samples(source: Path, target: Path, memory_nbytes: int) -> None:
    """Whole samples in a chunk, uncompressed: each variable is loaded whole."""
    with opened(source) as data:
        encoding = sample_chunks(data, read_layout(source))
        data.to_zarr(target, mode="w", encoding=encoding, consolidated=False)


@contender(*XARRAY)
def xarray_samples_threads(source: Path, target: Path, memory_nbytes: int) -> None:
    """Whole samples in a chunk, uncompressed, read by whole chunks in dask's threads."""
    layout = read_layout(source)
    with opened(source, chunks={}) as data:
        encoding = sample_chunks(data, layout)
        whole = dict.fromkeys(data.dims, -1) | {layout.sample_dim: per_chunk(layout)}
        data.chunk(whole).to_zarr(target, mode="w", encoding=encoding, consolidated=False)


@contender("zarr", "h5py", "numpy", kinds=CHUNKED)
def slabs_by_hand(source: Path, target: Path, memory_nbytes: int) -> None:
    """Rechunk as rechunker plans it: slabs of whole chunks, as many as the memory holds."""
    import h5py
    import zarr

    layout = read_layout(source)
    axis = layout.dims.index(layout.sample_dim)
    row = layout.variable_nbytes // layout.shape[axis] * layout.chunk[axis]
    step = math.lcm(layout.chunk[axis], per_chunk(layout))
    step *= max(1, memory_nbytes // max(1, row * step // layout.chunk[axis]))
    group = zarr.create_group(target)
    file = zarr.open_group(source, mode="r") if layout.kind in ZARR else h5py.File(source)
    for name in layout.names:
        length = per_chunk(layout)
        chunks = tuple(length if n == axis else size for n, size in enumerate(layout.shape))
        made = group.create_array(
            name, shape=layout.shape, chunks=chunks, dtype=file[name].dtype, compressors=None
        )
        for start in range(0, layout.shape[axis], step):
            part = (slice(None),) * axis + (slice(start, start + step),)
            made[part] = file[name][part]


@contender("zarr", "eccodes", "numpy", kinds=("grib",))
def eccodes_by_hand(source: Path, target: Path, memory_nbytes: int) -> None:
    """Go through the messages, a chunk of Zarr each."""
    import eccodes
    import zarr

    layout = read_layout(source)
    group = zarr.create_group(target)
    chunks = (1, *layout.shape[1:])
    arrays: dict[str, Any] = {}
    done: dict[str, int] = {}
    with source.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            name = eccodes.codes_get(handle, "shortName")
            values = eccodes.codes_get_values(handle).astype("f4").reshape(chunks)
            if name not in arrays:
                arrays[name] = group.create_array(
                    name, shape=layout.shape, chunks=chunks, dtype="f4", compressors=None
                )
            number = done[name] = done.get(name, -1) + 1
            arrays[name][number : number + 1] = values
            eccodes.codes_release(handle)


@contender("rechunker", "xarray", "zarr", "netCDF4", "dask.array", kinds=("netcdf", "zarr2"))
def rechunker(source: Path, target: Path, memory_nbytes: int) -> None:
    """Rechunk by way of a temporary store, in dask's threads; needs zarr 2."""
    from rechunker import rechunk

    layout = read_layout(source)
    with opened(source, chunks={}) as data:
        chunks: dict[str, Any] = dict.fromkeys(data.coords)
        for name, variable in data.variables.items():
            variable.encoding.clear()
            if name in data.data_vars:
                sizes = zip(variable.dims, variable.shape, strict=True)
                chunks[str(name)] = {
                    dim: per_chunk(layout) if dim == layout.sample_dim else n for dim, n in sizes
                }
        rechunk(
            data,
            chunks,
            memory_nbytes or 256 << 20,
            str(target),
            temp_store=f"{target}-temporary",
            target_options={str(name): {"compressor": None} for name in data.data_vars},
        ).execute()


SPENT: dict[str, float] = {}
"""What a contender measured itself, instead of the time of its call."""


def status_kib(name: str) -> int:
    # Not getrusage: its peak is inherited from whoever started the process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Run one contender, print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=CONTENDERS, metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument("source", type=Path, metavar="SOURCE", help="as conversion.py writes it")
    parser.add_argument("memory_nbytes", type=int, metavar="MEMORY", help="bytes; 0: the default")
    arguments = parser.parse_args()
    source, memory_nbytes = arguments.source, arguments.memory_nbytes
    needs, _, function = CONTENDERS[arguments.name]
    for module in needs:
        __import__(module)
    if "xarray" in needs:
        sys.modules["xarray"].backends.list_engines()  # loads them
    target = Path(tempfile.mkdtemp(dir=source.parent), "target")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        kib, cpu_s = status_kib("VmRSS"), time.process_time()
        began = time.perf_counter()
        function(source, target, memory_nbytes)
        seconds = SPENT.get("seconds", time.perf_counter() - began)
        spent = {
            "seconds": seconds,
            "cpu_s": time.process_time() - cpu_s,
            "growth_nbytes": 1024 * (status_kib("VmHWM") - kib),
            "told": TOLD,
        }
        for check in CHECKS:
            check()
        print(json.dumps(spent))
    finally:
        shutil.rmtree(target.parent)


if __name__ == "__main__":
    main()
