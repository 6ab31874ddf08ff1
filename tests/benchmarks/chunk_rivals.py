"""Shuffled batches of ERA5-shaped Zarr beside others: python tests/benchmarks/chunk_rivals.py.

Fields of 721 x 1440, with 1, 2, 8 and 32 of them in a stored chunk, in local files and on the S3
server of object_stores.py. Each contender has a process of its own, in which it imports what it
needs and opens the store; then they take turns, epoch by epoch, the first mover changing. An epoch
that takes too long is cut short. Told are, of the epochs after the first, samples/s and CPU
milliseconds a sample (median, range); the growth of its memory at its peak, worker processes
included; the time from opening to the first batch, and that of the imports; and the bytes read for
each stored byte of the samples used: of files by what the processes read, of S3 by what came over
the loopback interface, so that nothing else may use it meanwhile.

Two shuffles: of the whole epoch, by which all but insitubatch load, and within windows of chunks in
random order, as insitubatch has it (16 chunks, and 16 ahead) and iobench by ``shuffle="blocks:N"``
(32 are mixed), both with room for these chunks. Else caches of decoded chunks have --cache MiB if
they can be bounded (ours, tensorstore's); ``iobench_default`` sets nothing. What is not installed
is named: insitubatch 0.2 wants Python 3.12.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from conversion_contenders import status_kib
from conversion_sources import Layout, remove_source, write_source
from harness import Failed, Served, orders, print_goal, print_table, rotated, spread, tell

BUCKET = "bucket"
NAME, BATCH, LATITUDES, LONGITUDES = "v0", 16, 721, 1440
SAMPLE_NBYTES = 4 * LATITUDES * LONGITUDES
PER_CHUNK = (1, 2, 8, 32)
FASTEST, MEMORY, FIRST_S = 1.0, 0.9, 0.5
"""To be reached: times the best other's rate, of its memory, seconds to the first batch."""
Epoch = Callable[[int], Iterator[Any]]
"""Yields the batches of an epoch by its number."""


class Job(NamedTuple):
    """What a contender is given."""

    url: str
    n_samples: int
    per_chunk: int
    cache_nbytes: int
    window: int

    @property
    def window_nbytes(self) -> int:
        """Two windows of chunks, decoded: of which batches are made, and what is read ahead."""
        return 2 * self.window * self.per_chunk * SAMPLE_NBYTES

    @property
    def is_remote(self) -> bool:
        return self.url.startswith("s3://")

    def numbers(self, epoch: int) -> list[list[int]]:
        """Return the samples of each batch, in order of their place."""
        import numpy as np

        order = np.random.default_rng(epoch).permutation(self.n_samples)
        batches = (order[at : at + BATCH] for at in range(0, self.n_samples, BATCH))
        return [sorted(each.tolist()) for each in batches]


def ours(job: Job, *, shuffle: bool | str = True, bounded: bool = True) -> Epoch:
    import iobench

    if shuffle == "blocks":
        os.environ["IOBENCH_CHUNK_CACHE"] = str(job.window_nbytes)
        shuffle = f"blocks:{job.per_chunk}"  # a chunk each, of which 32 are mixed
    elif bounded:
        os.environ["IOBENCH_CHUNK_CACHE"] = str(job.cache_nbytes)
    samples = iobench.open_dataset(job.url, sample_dim="time", variables=(NAME,))
    loader = samples.loader(BATCH, shuffle=shuffle)
    return lambda epoch: iter(loader)


def stored(job: Job) -> Any:
    """Return the store for zarr-python, by obstore."""
    from obstore.store import LocalStore, S3Store
    from zarr.storage import ObjectStore

    if not job.is_remote:
        return ObjectStore(LocalStore(job.url), read_only=True)
    prefix = job.url.removeprefix(f"s3://{BUCKET}/")
    how: Any = {"client_options": {"allow_http": True}}
    return ObjectStore(S3Store(BUCKET, prefix=prefix, **how), read_only=True)


def zarr_obstore(job: Job) -> Epoch:
    import zarr

    zarr.config.set({"async.concurrency": 64, "threading.max_workers": os.cpu_count()})
    array = zarr.open_array(stored(job), path=NAME, mode="r")
    return lambda epoch: (array.oindex[some] for some in job.numbers(epoch))


def xarray_dask(job: Job) -> Epoch:
    import xarray

    data = xarray.open_zarr(stored(job), chunks={}, consolidated=False)[NAME]
    return lambda epoch: (data.isel(time=some).values for some in job.numbers(epoch))


def tensorstore(job: Job) -> Epoch:
    """With its own cache, and a batch ahead."""
    import tensorstore as ts

    store: dict[str, Any] = {"driver": "file", "path": f"{job.url}/{NAME}/"}
    if job.is_remote:
        path = job.url.removeprefix(f"s3://{BUCKET}/")
        store = {"driver": "s3", "bucket": BUCKET, "path": f"{path}/{NAME}/",
                 "endpoint": os.environ["AWS_ENDPOINT_URL"], "aws_region": "us-east-1"}  # fmt: skip
    context = ts.Context({"cache_pool": {"total_bytes_limit": job.cache_nbytes}})
    array = ts.open({"driver": "zarr3", "kvstore": store}, context=context).result()

    def epoch(number: int) -> Iterator[Any]:
        ahead = [array[some].read() for some in job.numbers(number)[:2]]
        for some in itertools.chain(job.numbers(number)[2:], [None, None]):
            yield ahead.pop(0).result()
            if some is not None:
                ahead.append(array[some].read())

    return epoch


def xbatcher(job: Job) -> Epoch:
    """One sample a batch of its own, which torch's workers join."""
    import xarray
    from torch.utils.data import DataLoader
    from xbatcher import BatchGenerator
    from xbatcher.loaders.torch import MapDataset

    data = xarray.open_zarr(stored(job), chunks=None, consolidated=False)[NAME]
    sizes = {"time": 1, "latitude": LATITUDES, "longitude": LONGITUDES}
    loader: Any = DataLoader(
        MapDataset(BatchGenerator(data, input_dims=sizes)), batch_size=BATCH, shuffle=True,
        num_workers=os.cpu_count() or 1, persistent_workers=True,
        multiprocessing_context="forkserver",  # obstore's threads do not survive a fork
    )  # fmt: skip
    return lambda epoch: iter(loader)


def insitubatch(job: Job) -> Epoch:
    import insitubatch as library

    store = stored(job)
    geometries = library.open_geometries(store, [NAME])
    split = library.split_by_chunk(geometries[NAME], fractions=(1.0, 0.0, 0.0))
    batches = library.InSituDataset(
        store, split, geometries, batch_size=BATCH, block_chunks=job.window,
        cache_budget_bytes=job.window_nbytes,
    )  # fmt: skip

    def epoch(number: int) -> Iterator[Any]:
        batches.set_epoch(number)
        return (batch.arrays[NAME] for batch in batches.train)

    return epoch


class Way(NamedTuple):
    """What is imported first, what opens the store, and whether it shuffles within windows."""

    needs: tuple[str, ...]
    opened: Callable[[Job], Epoch]
    in_windows: bool = False


ZARR = ("zarr", "obstore.store")
IOBENCH = ("iobench", "iobench.loaders.ring.factory", "iobench.sources.opened_dataset")
CONTENDERS = {
    "iobench": Way(IOBENCH, ours),
    "iobench_default": Way(IOBENCH, partial(ours, bounded=False)),
    "iobench_blocks": Way(IOBENCH, partial(ours, shuffle="blocks"), True),
    "insitubatch": Way((*ZARR, "insitubatch"), insitubatch, True),
    "zarr_obstore": Way(ZARR, zarr_obstore),
    "tensorstore": Way(("tensorstore",), tensorstore),
    "xarray_dask": Way((*ZARR, "xarray", "dask.array"), xarray_dask),
    "xbatcher": Way((*ZARR, "xarray", "xbatcher.loaders.torch", "torch.utils.data"), xbatcher),
}


# -- in a contender's process ------------------------------------------------------------------


def family() -> list[psutil.Process]:
    """Return this process and those that it started."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def read_nbytes(*, remote: bool) -> int:
    """Return what these processes have read, or what came over the loopback interface."""
    if remote:
        return int(psutil.net_io_counters(pernic=True)["lo"].bytes_recv)
    return sum(each.io_counters().read_chars for each in family())


def cpu_seconds() -> float:
    return sum(sum(each.cpu_times()[:2]) for each in family())


def serve(name: str, job: Job) -> None:
    """Import, open on the first order, and run an epoch for each."""
    from loaders_contenders import touch

    began = time.perf_counter()
    for module in CONTENDERS[name].needs:
        __import__(module)
    import_s, kib = time.perf_counter() - began, status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    tell({"import_s": import_s})
    epoch: Epoch | None = None
    for order in orders():
        began, cpu_s, nbytes = time.perf_counter(), cpu_seconds(), read_nbytes(remote=job.is_remote)
        epoch = epoch or CONTENDERS[name].opened(job)
        taken, first_s = 0, 0.0
        for batch in epoch(order["epoch"]):
            taken += touch(batch)
            first_s = first_s or time.perf_counter() - began
            if time.perf_counter() - began > order["limit_s"]:
                break
        workers = sum(each.memory_full_info().uss for each in family()[1:])
        spent_s = time.perf_counter() - began
        samples = taken / SAMPLE_NBYTES
        tell({
            "samples_per_s": samples / spent_s, "first_s": first_s, "samples": samples,
            "cpu_ms": 1e3 * (cpu_seconds() - cpu_s) / samples,
            "read": read_nbytes(remote=job.is_remote) - nbytes,
            "peak": 1024 * (status_kib("VmHWM") - kib) + workers,
        })  # fmt: skip


# -- the table ---------------------------------------------------------------------------------


@dataclass
class Found:
    """What a contender told, epoch by epoch."""

    served: Served
    import_s: float
    epochs: list[dict[str, float]] = field(default_factory=list)

    def of(self, name: str) -> list[float]:
        """Return a figure of the epochs after the first."""
        return [each[name] for each in self.epochs[1:]]

    def rate(self) -> float:
        return statistics.median(self.of("samples_per_s"))

    def peak(self) -> float:
        return max(each["peak"] for each in self.epochs)

    def row(self, name: str, stored_nbytes: float) -> list[str]:
        """Return its row, where a sample has so many stored bytes."""
        read = sum(self.of("read")) / sum(self.of("samples")) / stored_nbytes
        return [
            name, spread(self.of("samples_per_s"), ".0f"), spread(self.of("cpu_ms"), ".1f"),
            f"{self.peak() / 1e6:.0f}", f"{self.epochs[0]['first_s']:.2f} + {self.import_s:.2f}",
            f"{read:.2f}",
        ]  # fmt: skip


HEADS = ["", "samples/s", "CPU ms/sample", "peak, MB", "first batch + imports, s", "read/used"]


def measured(job: Job, asked: argparse.Namespace) -> dict[str, Found]:
    """Let all take turns at a store."""
    found: dict[str, Found] = {}
    for name in asked.only or CONTENDERS:
        served = Served(
            [__file__, "--serve", name, "--job", *map(str, job)], {"PYTHONWARNINGS": "ignore"}
        )
        try:
            found[name] = Found(served, served.answer()["import_s"])
        except Failed as error:
            print(f"left out: {name} ({error})")
    for number in range(asked.rounds + 1):
        for name in rotated([*found], number):
            order = {"epoch": number, "limit_s": asked.seconds}
            try:
                found[name].epochs.append(found[name].served.ask(order))
            except Failed as error:
                print(f"left out: {name} ({error})")
                del found[name]
    for each in found.values():
        each.served.close()
    return found


def judge(found: dict[str, Found]) -> bool:
    """Print what ours reach against the fastest of the others with the same shuffle."""
    fine = True
    for name, in_windows in (("iobench", False), ("iobench_blocks", True)):
        others = {
            peer: each for peer, each in found.items()
            if not peer.startswith("iobench") and CONTENDERS[peer].in_windows == in_windows
        }  # fmt: skip
        if name in found and others:
            best = max(others, key=lambda peer: others[peer].rate())
            memory = found[name].peak() / others[best].peak()
            rate = found[name].rate() / others[best].rate()
            fine &= print_goal(f"{name} against {best}, times", rate, FASTEST)
            fine &= print_goal(f"{name}, memory of {best}'s", memory, MEMORY, at_most=True)
        if name in found:
            first_s = found[name].epochs[0]["first_s"]
            fine &= print_goal(f"{name}, first batch, s", first_s, FIRST_S, at_most=True)
    return fine


def uploaded(path: Path) -> str:
    """Copy a store to the bucket; return its URL."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket=BUCKET)
    for file in path.rglob("*"):
        if file.is_file():
            key = f"{path.name}/{file.relative_to(path)}"
            client.put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())
    return f"s3://{BUCKET}/{path.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--per-chunk", nargs="+", type=int, default=list(PER_CHUNK))
    parser.add_argument("--places", nargs="+", choices=("local", "s3"), default=["local", "s3"])
    parser.add_argument("--samples", type=int, default=256, help="of a store, 4 MB each")
    parser.add_argument("--rounds", type=int, default=3, help="epochs after the first")
    parser.add_argument("--seconds", type=float, default=20.0, help="of an epoch, at most")
    parser.add_argument("--cache", type=int, default=256, help="of decoded chunks, in MiB")
    parser.add_argument("--window", type=int, default=16, help="chunks that insitubatch shuffles")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, Job(asked.job[0], *map(int, asked.job[1:])))
        return 0
    from object_stores import S3_SERVER, serving

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    fine = True
    for per_chunk, place in itertools.product(asked.per_chunk, asked.places):
        shape = (asked.samples, LATITUDES, LONGITUDES)
        dims, chunk = ("time", "latitude", "longitude"), (per_chunk, *shape[1:])
        layout = Layout("zarr3", dims, shape, chunk, "time", codec="zstd")
        with tempfile.TemporaryDirectory() as folder:
            path = write_source(Path(folder), f"era5-{per_chunk}", layout)
            files = [each for each in (path / NAME / "c").rglob("*") if each.is_file()]
            stored_nbytes = sum(each.stat().st_size for each in files) / asked.samples
            with serving(S3_SERVER, folder) if place == "s3" else nullcontext():
                url = uploaded(path) if place == "s3" else str(path)
                job = Job(url, asked.samples, per_chunk, asked.cache << 20, asked.window)
                print(f"\n{per_chunk} samples a chunk, {place}: {stored_nbytes / 1e6:.1f} MB each")
                found = measured(job, asked)
            print_table(HEADS, [each.row(name, stored_nbytes) for name, each in found.items()])
            fine &= judge(found)
            remove_source(path)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
