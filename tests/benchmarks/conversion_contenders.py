"""One conversion in a process of its own, for conversion.py: prints a line of JSON.

Everything a contender needs is imported before its time begins and its memory is looked at.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEPS = 30
"""Time steps of a chunk of the source: what every contender that may choose reads at a time."""
PART_NBYTES = 100_000_000
"""What slow contenders convert, at most; rates are per byte."""

Contender = Callable[[Path, Path, int], int]
"""Converts a source to a target within a memory; returns how many decoded bytes it converted."""
CONTENDERS: dict[str, tuple[tuple[str, ...], Contender]] = {}
CHECKS: list[Callable[[], None]] = []
"""Run when time and memory have been taken."""


def contender(*needs: str) -> Callable[[Contender], Contender]:
    """Enter a function under its name, with the modules to import first."""

    def enter(function: Contender) -> Contender:
        CONTENDERS[function.__name__] = (needs, function)
        return function

    return enter


def slabs(source: Path, limit_nbytes: int = 1 << 62) -> Iterator[dict[str, Any]]:
    """Read the source through netCDF4, a row of chunks of all variables at a time."""
    import netCDF4

    with netCDF4.Dataset(source) as file:
        file.set_auto_maskandscale(False)
        names = [name for name, each in file.variables.items() if each.ndim == 3]
        done = 0
        for start in range(0, len(file.dimensions["time"]), STEPS):
            slab = {name: file.variables[name][start : start + STEPS] for name in names}
            yield slab
            done += sum(values.nbytes for values in slab.values())
            if done >= limit_nbytes:
                return


def nbytes_of(slab: dict[str, Any]) -> int:
    return sum(int(values.nbytes) for values in slab.values())


def ours(source: Path, target: Path, memory_nbytes: int, name: str) -> int:
    from iobench.cpus import available_cpus
    from iobench.datasets.contract import no_progress
    from iobench.datasets.user_files import user_files
    from iobench.registry import find_format
    from iobench.stores.plan import StoreRequest
    from iobench_converters.convert import convert

    locator = SimpleNamespace(cache_dir=target.parent, stand_in=False, progress=no_progress)
    dataset = user_files([source], sample_dim="time")
    files = dataset.files(locator)
    index = dataset.samples(files, locator)
    request = StoreRequest(
        dataset,
        index,
        find_format(name),
        target,
        files=files,
        workers=available_cpus(),
        memory_nbytes=memory_nbytes,
    )
    store = convert(request)

    def check() -> None:
        last = dataset.decode(dataset.read(index.where[-1]), index.where[-1])
        stored = store[len(store) - 1]
        if any(stored[each].tobytes() != values.tobytes() for each, values in last.items()):
            raise AssertionError(f"the last sample of {target} is another one")

    CHECKS.append(check)
    return index.spec.nbytes * len(index)


IOBENCH = ("h5netcdf", "h5py", "isal.isal_zlib", "iobench_converters.convert", "iobench.registry")


@contender(*IOBENCH, "iobench_converters.numpy_records")
def iobench_numpy(source: Path, target: Path, memory_nbytes: int) -> int:
    return ours(source, target, memory_nbytes, "numpy")


@contender(*IOBENCH, "iobench_converters.zarr_groups", "zarr")
def iobench_zarr(source: Path, target: Path, memory_nbytes: int) -> int:
    return ours(source, target, memory_nbytes, "zarr")


@contender(*IOBENCH, "iobench_converters.tfrecord")
def iobench_tfrecord(source: Path, target: Path, memory_nbytes: int) -> int:
    return ours(source, target, memory_nbytes, "tfrecord")


@contender(*IOBENCH)
def iobench_decode_only(source: Path, target: Path, memory_nbytes: int) -> int:
    """Make the groups in as many threads as there are CPUs, and drop them."""
    from concurrent.futures import ThreadPoolExecutor

    from iobench.cpus import available_cpus
    from iobench.datasets.contract import no_progress
    from iobench.datasets.user_files import user_files

    locator = SimpleNamespace(cache_dir=target.parent, stand_in=False, progress=no_progress)
    dataset = user_files([source], sample_dim="time")
    index = dataset.samples(dataset.files(locator), locator)
    start = 0
    with ThreadPoolExecutor(available_cpus()) as pool:

        def run(jobs: Any) -> None:
            for future in [pool.submit(job) for job in jobs]:
                future.result()

        for length in dataset.groups(index.where, memory_nbytes=memory_nbytes):
            group = index.where[start : start + length]
            dataset.decode_group(dataset.read_group(group), group, run)
            start += length
    return index.spec.nbytes * len(index)


@contender("netCDF4")
def netcdf4_decode_only(source: Path, target: Path, memory_nbytes: int) -> int:
    return sum(map(nbytes_of, slabs(source)))


def to_zarr(source: Path, target: Path, encoding: dict[str, Any]) -> int:
    import xarray

    with xarray.open_dataset(source, decode_times=False) as data:
        named = dict.fromkeys(data.data_vars, encoding) if encoding else None
        data.to_zarr(target, mode="w", encoding=named, consolidated=False)
        return sum(int(data[name].nbytes) for name in data.data_vars)


@contender("xarray", "zarr", "netCDF4", "dask.array")
def xarray_to_zarr_default(source: Path, target: Path, memory_nbytes: int) -> int:
    """Keep the chunks of the source: fast, and of no use to whoever wants one sample."""
    return to_zarr(source, target, {})


@contender("xarray", "zarr", "netCDF4", "dask.array")
def xarray_to_zarr_samples(source: Path, target: Path, memory_nbytes: int) -> int:
    """One chunk a sample, uncompressed."""
    import netCDF4

    with netCDF4.Dataset(source) as file:
        chunk = (1, len(file.dimensions["lat"]), len(file.dimensions["lon"]))
    return to_zarr(source, target, {"chunks": chunk, "compressors": None})


@contender("xarray", "zarr", "netCDF4", "distributed")
def dask_p2p(source: Path, target: Path, memory_nbytes: int) -> int:
    """Rechunk to samples in two worker processes, as HDF5 decodes one chunk at a time in each."""
    import dask
    import distributed
    import xarray

    with (
        dask.config.set({"array.rechunk.method": "p2p", "logging.distributed": "error"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(idle)
        began = time.perf_counter()
        with xarray.open_dataset(source, decode_times=False, chunks={}) as data:
            whole = data.chunk({"time": 1, "lat": -1, "lon": -1})
            for name in whole.data_vars:
                whole[name].encoding.clear()
            encoding = {name: {"compressors": None} for name in whole.data_vars}
            whole.to_zarr(target, mode="w", encoding=encoding, consolidated=False)
            nbytes = sum(int(data[name].nbytes) for name in data.data_vars)
        SPENT["seconds"] = time.perf_counter() - began
        SPENT["workers_kib"] = sum(client.run(growth_kib).values())
        SPENT["workers_cpu_s"] = sum(client.run(cpu_s).values())
    return nbytes


def tf_records(source: Path, target: Path, feature: Callable[[Any, Any], Any]) -> int:
    import tensorflow as tf

    nbytes = 0
    with tf.io.TFRecordWriter(str(target)) as writer:
        for slab in slabs(source, PART_NBYTES):
            for number in range(len(next(iter(slab.values())))):
                features = {name: feature(tf, values[number]) for name, values in slab.items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
            nbytes += nbytes_of(slab)
    return nbytes


@contender("tensorflow", "netCDF4")
def tensorflow_float_list(source: Path, target: Path, memory_nbytes: int) -> int:
    return tf_records(
        source,
        target,
        lambda tf, values: tf.train.Feature(float_list=tf.train.FloatList(value=values.ravel())),
    )


@contender("tensorflow", "netCDF4")
def tensorflow_bytes(source: Path, target: Path, memory_nbytes: int) -> int:
    return tf_records(
        source,
        target,
        lambda tf, values: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[values.tobytes()])
        ),
    )


@contender("numpy")
def limit_memcpy(source: Path, target: Path, memory_nbytes: int) -> int:
    import numpy as np

    values = np.ones(64 << 20, dtype=np.uint8)
    copy = np.ones_like(values)
    SPENT["seconds"] = best(lambda: np.copyto(copy, values))
    return values.nbytes


@contender("numpy")
def limit_buffered_write(source: Path, target: Path, memory_nbytes: int) -> int:
    import numpy as np

    values = np.ones(8 << 20, dtype=np.uint8)
    with target.open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(values.data)
    return 50 * values.nbytes


@contender("numpy")
def limit_pread(source: Path, target: Path, memory_nbytes: int) -> int:
    import os

    import numpy as np

    buffer = np.ones(8 << 20, dtype=np.uint8)
    with source.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offsets = range(0, size, buffer.nbytes)

        def read() -> int:
            return sum(os.preadv(file.fileno(), [buffer.data], offset) for offset in offsets)

        SPENT["seconds"] = best(read)
    return size


SPENT: dict[str, float] = {}
"""What a contender measured itself, instead of the time of its call."""


def best(function: Callable[[], Any], times: int = 5) -> float:
    """Return the least seconds that a call takes."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


IDLE: dict[str, float] = {}


def idle() -> None:
    """Begin to look at memory and CPU time: forget the peak so far."""
    Path("/proc/self/clear_refs").write_text("5")
    IDLE["kib"] = status_kib("VmRSS")
    IDLE["cpu_s"] = time.process_time()


def growth_kib() -> int:
    """Return by how much the peak exceeds the memory at `idle`."""
    return status_kib("VmHWM") - int(IDLE["kib"])


def cpu_s() -> float:
    """Return the CPU time of all threads since `idle`."""
    return time.process_time() - IDLE["cpu_s"]


def status_kib(name: str) -> int:
    # Not getrusage: its peak is inherited from whoever started the process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Run one contender, print what it took."""
    name, source, memory_nbytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    needs, function = CONTENDERS[name]
    for module in needs:
        __import__(module)
    if "xarray" in needs:
        sys.modules["xarray"].backends.list_engines()  # loads them
    target = Path(tempfile.mkdtemp(dir=source.parent), "target")
    try:
        idle()
        began = time.perf_counter()
        nbytes = function(source, target, memory_nbytes)
        seconds = SPENT.get("seconds", time.perf_counter() - began)
        spent = {
            "seconds": seconds,
            "cpu_s": cpu_s() + SPENT.get("workers_cpu_s", 0),
            "growth_nbytes": 1024 * (growth_kib() + SPENT.get("workers_kib", 0)),
            "nbytes": nbytes,
        }
        for check in CHECKS:
            check()
        print(json.dumps(spent))
    finally:
        shutil.rmtree(target.parent)


if __name__ == "__main__":
    main()
