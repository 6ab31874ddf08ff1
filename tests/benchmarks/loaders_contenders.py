"""One way of loading in a process of its own, for loaders.py: makes its files, then takes orders.

A line of JSON with the sample numbers of an epoch comes in, one with times goes out. Everything a
contender needs is imported, and its files are opened, before the first order.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import random
import shutil
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENS = ("ens", 120, 4, (("fields", (7, 361, 720)),))
"""Name, samples, batch size, arrays: the sample of ENS-10 on the grid of the published runs."""
RADIATION = (
    "radiation",
    16_384,
    512,
    (
        ("sca_inputs", (17,)), ("col_inputs", (137, 27)), ("hl_inputs", (138, 2)),
        ("pressure_hl", (138, 1)), ("inter_inputs", (136, 1)), ("flux_dn_sw", (138,)),
        ("flux_up_sw", (138,)), ("flux_dn_lw", (138,)), ("flux_up_lw", (138,)),
        ("hr_sw", (137,)), ("hr_lw", (137,)),
    ),
)  # fmt: skip
"""The columns of A3's training sample, as its plugin hands them on."""
SETS = {each[0]: each for each in (ENS, RADIATION)}
PAGE = 4096
LITDATA_CHUNK_NBYTES = 1 << 31
"""One chunk: LitData maps one at a time, and a random order over several maps them in turns."""

DEVICE = os.environ.get("LOADERS_DEVICE", "")
"""Where batches go to, as torch calls it; ``""``: nowhere."""
Batches = Iterator[Any]
Epoch = Callable[[Sequence[int]], Batches]
CONTENDERS: dict[str, tuple[str, tuple[str, ...], Callable[..., Epoch]]] = {}
"""By name: what files it reads, what it imports, what opens them."""
ON_DEVICE: set[str] = set()
"""Those that hand out batches on a device."""


def contender(files: str, *needs: str) -> Callable[[Callable[..., Epoch]], Callable[..., Epoch]]:
    """Enter a function that opens a folder and returns what loads an epoch in a given order."""

    def enter(function: Callable[..., Epoch]) -> Callable[..., Epoch]:
        CONTENDERS[function.__name__] = (files, needs, function)
        return function

    return enter


def on_device(function: Callable[..., Epoch]) -> Callable[..., Epoch]:
    """Enter a contender among those whose batches are on a device."""
    ON_DEVICE.add(function.__name__)
    return function


def samples(name: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield the samples of a set: smooth fields, as far as lossless codecs see."""
    _, count, _, arrays = SETS[name]
    rng = np.random.default_rng(0)
    bases = [
        {
            key: rng.standard_normal(shape, dtype="f4").cumsum(-1, dtype="f4")
            for key, shape in arrays
        }
        for _ in range(4)
    ]
    for number in range(count):
        yield {key: base + np.float32(number) for key, base in bases[number % 4].items()}


# -- files ------------------------------------------------------------------------------------


def write_files(kind: str, folder: Path, name: str) -> None:
    """Write a set in one of the layouts below, unless it is there."""
    target = folder / name / kind
    if (target / "finished").exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    WRITERS[kind.partition("+")[0]](target, name, kind.partition("+")[2])
    os.sync()
    (target / "finished").touch()


def _write_store(target: Path, name: str, options: str) -> None:
    from iobench.registry import find_format
    from iobench.samples import SampleSpec, Variable
    from iobench.stores.finished_store import finish_store
    from iobench.stores.manifest import Manifest
    from iobench.stores.shard_writer import ShardPlan

    form, _, option = options.partition(",")
    chosen = dict([option.split("=")]) if option else {}
    _, count, _, arrays = SETS[name]
    spec = SampleSpec(
        tuple(
            Variable(key, shape, "<f4", tuple(f"d{axis}" for axis in range(len(shape))))
            for key, shape in arrays
        )
    )
    fmt = find_format(form)
    store = target / "store"
    store.mkdir()
    encode = fmt.encoder(spec, chosen)
    writer = fmt.writer(store, spec, ShardPlan(0, count, count), chosen)
    for sample in samples(name):
        writer.append(encode({key: values[None] for key, values in sample.items()}))
    info = writer.close()
    manifest = Manifest(form, fmt.version, spec, (info.shard,), list(range(count)), options=chosen)
    finish_store(store, fmt, manifest, checksums=info.checksums, n_samples=count)


def _write_npy(target: Path, name: str, _: str) -> None:
    for number, sample in enumerate(samples(name)):
        data = next(iter(sample.values())) if len(sample) == 1 else _joined(sample)
        np.save(target / f"{number:06d}.npy", data)


def _joined(sample: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([values.reshape(-1) for values in sample.values()])


def _write_hdf5(target: Path, name: str, _: str) -> None:
    import h5py

    count = SETS[name][1]
    with h5py.File(target / "samples.h5", "w") as file:
        for number, sample in enumerate(samples(name)):
            for key, values in sample.items():
                if not number:
                    file.create_dataset(
                        key, (count, *values.shape), "f4", chunks=(1, *values.shape)
                    )
                file[key][number] = values


def without_torchvision() -> None:
    """Let streaming be imported where torchvision is not: it takes pictures' datasets from it."""

    class Absent(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    below = ("", ".transforms", ".transforms.functional", ".datasets", ".io")
    for name in (f"torchvision{part}" for part in below):
        module = Absent(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module


def _write_mds(target: Path, name: str, _: str) -> None:
    from streaming import MDSWriter

    shapes = SETS[name][3]
    columns = {key: f"ndarray:float32:{','.join(map(str, shape))}" for key, shape in shapes}
    with MDSWriter(out=str(target / "mds"), columns=columns, size_limit=1 << 28) as writer:
        for sample in samples(name):
            writer.write(sample)


def _write_litdata(target: Path, name: str, _: str) -> None:
    import torch
    from litdata.streaming.cache import Cache

    cache = Cache(str(target / "litdata"), chunk_bytes=LITDATA_CHUNK_NBYTES)
    for number, sample in enumerate(samples(name)):
        cache[number] = {key: torch.from_numpy(values) for key, values in sample.items()}
    cache.done()
    cache.merge()


def _write_array_record(target: Path, name: str, _: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(target / "samples.array_record"), "group_size:1,uncompressed")
    for sample in samples(name):
        writer.write(_joined(sample).tobytes())
    writer.close()


WRITERS: dict[str, Callable[[Path, str, str], None]] = {
    "store": _write_store,
    "npy": _write_npy,
    "hdf5": _write_hdf5,
    "mds": _write_mds,
    "litdata": _write_litdata,
    "array_record": _write_array_record,
}


# -- ours -------------------------------------------------------------------------------------


def _ring(store: Path, batch_size: int, **options: Any) -> Epoch:
    """Load through the ring, in an order that is given."""
    from iobench.loaders.ring.loader import RingLoader
    from iobench.loaders.ring.store_source import StoreSource
    from iobench.stores.finished_store import open_store

    verify = options.pop("verify", False)
    source = StoreSource(open_store(store / "store"), **({"verify": True} if verify else {}))
    order = GivenOrder(len(source), batch_size)
    loader = RingLoader(source, order, **options)  # type: ignore[arg-type]

    def epoch(numbers: Sequence[int]) -> Batches:
        order.numbers = np.array(numbers, dtype=np.int64)
        return iter(loader)

    return epoch


class GivenOrder:
    """An order that the benchmark decides, as `BatchOrder` is one."""

    shuffle, seed, drop_last, rank, world_size = False, 0, False, 0, 1

    def __init__(self, n_samples: int, batch_size: int) -> None:
        self.n_samples, self.batch_size = n_samples, batch_size
        self.numbers = np.arange(n_samples)

    def __len__(self) -> int:
        return -(-len(self.numbers) // self.batch_size)

    def samples(self, epoch: int, batch: int) -> np.ndarray:
        return self.numbers[batch * self.batch_size : (batch + 1) * self.batch_size]

    def batches(self, epoch: int, first: int = 0, expect: object = None) -> Iterator[np.ndarray]:
        return (self.samples(epoch, batch) for batch in range(first, len(self)))


@contender("store+numpy", "iobench.loaders.ring")
def ring_numpy(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size)


@contender("store+zarr", "iobench.loaders.ring")
def ring_zarr(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size)


@contender("store+tfrecord", "iobench.loaders.ring")
def ring_tfrecord(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size)


@contender("store+numpy", "iobench.loaders.ring")
def ring_numpy_one_thread(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size, threads=1)


@contender("store+numpy", "iobench.loaders.ring", "crc32c")
def ring_numpy_verified(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size, verify=True)


@contender("store+zarr,codec=blosc-lz4", "iobench.loaders.ring", "numcodecs.blosc")
def ring_zarr_lz4_one_thread(folder: Path, batch_size: int) -> Epoch:
    return _ring(folder, batch_size, threads=1)


def _torch_ring(folder: Path, batch_size: int, **options: Any) -> Epoch:
    from iobench.stores.finished_store import open_store
    from iobench.torch import StoreLoader

    store = open_store(folder / "store")
    loader = StoreLoader(store, batch_size, **options)
    order = GivenOrder(len(store), batch_size)
    loader.order = order  # type: ignore[assignment]

    def epoch(numbers: Sequence[int]) -> Batches:
        order.numbers = np.array(numbers, dtype=np.int64)
        return iter(loader)

    return epoch


@contender("store+numpy", "torch", "iobench.torch")
def ring_torch(folder: Path, batch_size: int) -> Epoch:
    return _torch_ring(folder, batch_size)


PATCH = {"d1": 128, "d2": 128}
"""Of the fields of the ENS set."""


def _moments() -> tuple[np.ndarray, np.ndarray]:
    """Return a mean and a deviation for each variable of the ENS set."""
    return np.arange(7.0).reshape(7, 1, 1), np.arange(1.0, 8.0).reshape(7, 1, 1)


def _corners() -> Iterator[tuple[int, int]]:
    rng = random.Random(0)
    while True:
        yield rng.randrange(361 - 128 + 1), rng.randrange(720 - 128 + 1)


@contender("store+numpy", "torch", "iobench.torch")
def ring_normalised(folder: Path, batch_size: int) -> Epoch:
    return _torch_ring(folder, batch_size, normalise={"fields": _moments()})


@contender("store+numpy", "torch", "iobench.torch")
def ring_then_torch_normalises(folder: Path, batch_size: int) -> Epoch:
    """The same by torch, in place, after the batch."""
    import torch

    epoch = _torch_ring(folder, batch_size)
    mean, std = (torch.from_numpy(each.astype("f4")) for each in _moments())
    return lambda numbers: (
        {"fields": batch["fields"].sub_(mean).div_(std)} for batch in epoch(numbers)
    )


@contender("store+numpy", "torch", "iobench.torch")
def ring_patches(folder: Path, batch_size: int) -> Epoch:
    return _torch_ring(folder, batch_size, patch=PATCH)


@contender("store+numpy", "torch", "iobench.torch")
def ring_then_torch_cuts(folder: Path, batch_size: int) -> Epoch:
    """The same of whole samples, after the batch."""
    import torch

    epoch, corners = _torch_ring(folder, batch_size), _corners()

    def cut(batch: Any) -> Any:
        whole = batch["fields"]
        places = [next(corners) for _ in whole]
        parts = [x[:, i : i + 128, j : j + 128] for x, (i, j) in zip(whole, places, strict=True)]
        return {"fields": torch.stack(parts)}

    return lambda numbers: (cut(batch) for batch in epoch(numbers))


@contender("store+numpy", "torch", "iobench.stores")
def memmap_patches(folder: Path, batch_size: int) -> Epoch:
    """``np.stack`` of slices of a mapping: what is in memory, in the loop."""
    import torch

    (path,) = (folder / "store").glob("*.npy")
    mapped, corners = np.load(path, mmap_mode="r"), _corners()

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            places = [(n, *next(corners)) for n in numbers[at : at + batch_size]]
            parts = [mapped[n, :, i : i + 128, j : j + 128] for n, i, j in places]
            yield {"fields": torch.from_numpy(np.stack(parts))}

    return epoch


def _data_loader(
    dataset: Any, batch_size: int, workers: int, collate: Any = None, **options: Any
) -> Epoch:
    from torch.utils.data import DataLoader

    order: list[list[int]] = []
    loader = DataLoader(
        dataset,
        batch_sampler=order,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
        prefetch_factor=2 if workers else None,
        **options,
    )

    def epoch(numbers: Sequence[int]) -> Batches:
        order[:] = [
            list(numbers[at : at + batch_size]) for at in range(0, len(numbers), batch_size)
        ]
        return iter(loader)

    return epoch


@contender("store+numpy", "torch", "iobench.torch")
def data_loader_store(folder: Path, batch_size: int) -> Epoch:
    """The store under torch's own loader, in the loop, without a second copy."""
    from iobench.stores.finished_store import open_store
    from iobench.torch import collate

    return _data_loader(open_store(folder / "store"), batch_size, 0, collate)


@contender("store+tfrecord", "torch", "iobench.torch")
def data_loader_tfrecord_2(folder: Path, batch_size: int) -> Epoch:
    from iobench.stores.finished_store import open_store
    from iobench.torch import collate

    return _data_loader(open_store(folder / "store"), batch_size, 2, collate)


# -- limits -----------------------------------------------------------------------------------


def _pread(folder: Path, batch_size: int, threads: int) -> Epoch:
    """Read each batch's extents, in order of their place, into buffers used again."""
    from concurrent.futures import ThreadPoolExecutor

    from iobench.stores.finished_store import open_store

    store = open_store(folder / "store")
    table = store.table  # type: ignore[attr-defined]
    descriptors = [os.open(path, os.O_RDONLY) for path in table.files]
    nbytes = int(table.length[0].sum())
    buffers = [np.ones(batch_size * nbytes, dtype=np.uint8) for _ in range(4)]
    pool = ThreadPoolExecutor(threads)

    def read(part: tuple[np.ndarray, memoryview]) -> None:
        numbers, view = part
        at = 0
        for number in np.sort(numbers).tolist():
            for file, offset, length in zip(
                table.file[number], table.offset[number], table.length[number], strict=True
            ):
                os.preadv(descriptors[file], [view[at : at + length]], offset)
                at += int(length)

    def epoch(numbers: Sequence[int]) -> Batches:
        for count, at in enumerate(range(0, len(numbers), batch_size)):
            batch = np.array(numbers[at : at + batch_size])
            view = memoryview(buffers[count % 4])
            cut = len(batch) // 2 if threads > 1 else len(batch)
            parts = [(batch[:cut], view[: cut * nbytes]), (batch[cut:], view[cut * nbytes :])]
            list(pool.map(read, parts[:threads]))
            yield buffers[count % 4][: len(batch) * nbytes]

    return epoch


@contender("store+numpy", "iobench.stores")
def limit_pread_1(folder: Path, batch_size: int) -> Epoch:
    return _pread(folder, batch_size, 1)


@contender("store+numpy", "iobench.stores")
def limit_pread_2(folder: Path, batch_size: int) -> Epoch:
    return _pread(folder, batch_size, 2)


@contender("store+numpy", "iobench.stores")
def limit_memcpy(folder: Path, batch_size: int) -> Epoch:
    from iobench.stores.finished_store import open_store

    nbytes = batch_size * open_store(folder / "store").spec.nbytes
    sources = [np.ones(nbytes, dtype=np.uint8) for _ in range(8)]
    buffers = [np.ones(nbytes, dtype=np.uint8) for _ in range(4)]

    def epoch(numbers: Sequence[int]) -> Batches:
        for count in range(-(-len(numbers) // batch_size)):
            np.copyto(buffers[count % 4], sources[count % 8])
            yield buffers[count % 4]

    return epoch


@contender("store+zarr,codec=blosc-lz4", "iobench.stores", "numcodecs.blosc")
def limit_lz4_1(folder: Path, batch_size: int) -> Epoch:
    """Decompress each batch's chunks, in order of their place, into buffers used again."""
    import mmap

    from numcodecs import blosc

    from iobench.stores.finished_store import open_store

    store = open_store(folder / "store")
    table = store.table  # type: ignore[attr-defined]
    files = [np.memmap(path, mode="r") for path in table.files]
    nbytes = [variable.nbytes for variable in store.spec]
    buffers = []
    for _ in range(4):
        pages = mmap.mmap(-1, batch_size * sum(nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        buffers.append(np.frombuffer(pages, dtype=np.uint8))

    def epoch(numbers: Sequence[int]) -> Batches:
        blosc.use_threads = False
        for count, at in enumerate(range(0, len(numbers), batch_size)):
            end = 0
            for number in sorted(numbers[at : at + batch_size]):
                for extent, length in enumerate(nbytes):
                    start = table.offset[number, extent]
                    stored = files[table.file[number, extent]][
                        start : start + table.length[number, extent]
                    ]
                    blosc.decompress(stored, buffers[count % 4][end : end + length])
                    end += length
            yield buffers[count % 4][:end]

    return epoch


# -- others -----------------------------------------------------------------------------------


@contender("store+numpy", "torch", "iobench.stores")
def memmap_one_line(folder: Path, batch_size: int) -> Epoch:
    """``torch.from_numpy(memmap[numbers])``: the honest baseline for what is in memory."""
    import torch

    (path,) = (folder / "store").glob("*.npy")
    mapped = np.load(path, mmap_mode="r")
    names = mapped.dtype.names

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            batch = mapped[numbers[at : at + batch_size]]
            if names:
                yield {name: torch.from_numpy(batch[name]) for name in names}
            else:
                yield torch.from_numpy(batch)

    return epoch


class NpyFiles:
    """A file for each sample, as D2.3 had them."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> np.ndarray:
        return np.load(self.paths[number])


@contender("npy", "torch.utils.data")
def np_load_in_process(folder: Path, batch_size: int) -> Epoch:
    return _data_loader(NpyFiles(folder), batch_size, 0)


@contender("npy", "torch.utils.data")
def np_load_2_workers(folder: Path, batch_size: int) -> Epoch:
    return _data_loader(NpyFiles(folder), batch_size, 2)


def _stacked(
    get: Callable[[int], dict[str, Any]], batch_size: int, stack: Callable[..., Any] = np.stack
) -> Epoch:
    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            found = [get(number) for number in numbers[at : at + batch_size]]
            yield {key: stack([sample[key] for sample in found]) for key in found[0]}

    return epoch


@contender("hdf5", "h5py")
def h5py_in_process(folder: Path, batch_size: int) -> Epoch:
    import h5py

    file = h5py.File(folder / "samples.h5", "r")
    sets = dict(file.items())

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            batch = numbers[at : at + batch_size]
            out = {key: np.empty((len(batch), *one.shape[1:]), "f4") for key, one in sets.items()}
            for row, number in enumerate(batch):
                for key, one in sets.items():
                    one.read_direct(out[key], np.s_[number], np.s_[row])
            yield out

    return epoch


def _zarr_arrays(folder: Path) -> dict[str, Any]:
    import zarr

    return dict(zarr.open_group(folder / "store", mode="r").arrays())


@contender("store+zarr", "zarr")
def zarr_python(folder: Path, batch_size: int) -> Epoch:
    arrays = _zarr_arrays(folder)
    return _stacked(lambda number: {key: one[number] for key, one in arrays.items()}, batch_size)


@contender("store+zarr", "zarr", "zarrs")
def zarr_with_zarrs(folder: Path, batch_size: int) -> Epoch:
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    arrays = _zarr_arrays(folder)
    return _stacked(lambda number: {key: one[number] for key, one in arrays.items()}, batch_size)


@contender("store+zarr", "tensorstore")
def tensorstore_batched(folder: Path, batch_size: int) -> Epoch:
    import tensorstore

    root = folder / "store"
    names = [path.parent.name for path in root.glob("*/zarr.json")]
    stores = {
        name: tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(root / name)}}
        ).result()
        for name in names
    }

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            batch = list(numbers[at : at + batch_size])
            reads = {name: store[batch].read() for name, store in stores.items()}
            yield {name: read.result() for name, read in reads.items()}

    return epoch


@contender("store+tfrecord,encoding=bytes", "tensorflow", "iobench.stores")
def tf_data(folder: Path, batch_size: int) -> Epoch:
    """tf.data over the records of an epoch in its own, weaker order: its shuffle is over names."""
    import tensorflow as tf

    from iobench.stores.finished_store import open_store

    spec = open_store(folder / "store").spec
    wanted = {v.name: tf.io.FixedLenFeature((), tf.string) for v in spec}

    def parse(records: Any) -> dict[str, Any]:
        found = tf.io.parse_example(records, wanted)
        return {
            v.name: tf.reshape(tf.io.decode_raw(found[v.name], tf.float32), (-1, *v.shape))
            for v in spec
        }

    files = sorted(map(str, (folder / "store").glob("*.tfrecord")))

    def epoch(numbers: Sequence[int]) -> Batches:
        data = tf.data.TFRecordDataset(files).batch(batch_size)
        data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        return iter(data)

    return epoch


@contender("array_record", "array_record.python.array_record_module")
def array_record(folder: Path, batch_size: int) -> Epoch:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(folder / "samples.array_record"))

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            found = reader.read(list(numbers[at : at + batch_size]))
            yield np.stack([np.frombuffer(data, "f4") for data in found])

    return epoch


@contender("mds", "streaming")
def mosaic_mds(folder: Path, batch_size: int) -> Epoch:
    from streaming.base.dataset import StreamingDataset

    data = StreamingDataset(local=str(folder / "mds"), shuffle=False, batch_size=batch_size)
    return _stacked(lambda number: data[number], batch_size)


@contender("litdata", "litdata", "torch")
def litdata(folder: Path, batch_size: int) -> Epoch:
    """As tensors, which are views of its mapping, in the process: its fastest way here."""
    import torch
    from litdata import StreamingDataset

    data = StreamingDataset(str(folder / "litdata"))
    return _stacked(lambda number: data[number], batch_size, torch.stack)


# -- to a device ------------------------------------------------------------------------------


def _moved(epoch: Epoch, *, pinned: bool) -> Epoch:
    """Move batches in the loop, as scripts do."""
    return lambda numbers: (
        {key: value.to(DEVICE, non_blocking=pinned) for key, value in batch.items()}
        for batch in epoch(numbers)
    )


@on_device
@contender("store+numpy", "torch", "iobench.torch")
def ring_device(folder: Path, batch_size: int) -> Epoch:
    return _torch_ring(folder, batch_size, device=DEVICE)


@on_device
@contender("store+numpy", "torch", "iobench.torch")
def ring_then_to(folder: Path, batch_size: int) -> Epoch:
    """From memory that is not pinned."""
    return _moved(_torch_ring(folder, batch_size), pinned=False)


@on_device
@contender("store+numpy", "torch", "iobench.torch")
def data_loader_pinned_2(folder: Path, batch_size: int) -> Epoch:
    """The store under torch's own loader, ``pin_memory`` and ``non_blocking``."""
    from iobench.stores.finished_store import open_store
    from iobench.torch import collate

    store = open_store(folder / "store")
    return _moved(_data_loader(store, batch_size, 2, collate, pin_memory=True), pinned=True)


@on_device
@contender("npy", "torch.utils.data")
def np_load_pinned_2(folder: Path, batch_size: int) -> Epoch:
    """Files of NumPy under torch's own loader, likewise."""
    epoch = _data_loader(NpyFiles(folder), batch_size, 2, pin_memory=True)
    return lambda numbers: (batch.to(DEVICE, non_blocking=True) for batch in epoch(numbers))


@on_device
@contender("npy", "torch", "nvidia.dali.plugin.pytorch")
def dali_numpy_gpu(folder: Path, batch_size: int) -> Epoch:
    """DALI's reader to the device (cuFile), in its own, weaker order: it shuffles files."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=batch_size, num_threads=4, device_id=_device_index())
    def pipeline() -> Any:
        return fn.readers.numpy(
            device="gpu", file_root=str(folder), file_filter="*.npy", shuffle_after_epoch=True,
            name="files",
        )  # fmt: skip

    batches = DALIGenericIterator([pipeline()], ["fields"], reader_name="files", auto_reset=True)
    return lambda numbers: (parts[0] for parts in batches)


@on_device
@contender("store+numpy", "torch", "kvikio")
def kvikio_store(folder: Path, batch_size: int) -> Epoch:
    """Each batch's extents straight to its place on the device (GDS where there is any)."""
    import kvikio
    import torch

    from iobench.stores.finished_store import open_store

    torch.empty(0, device=DEVICE)  # its context
    store = open_store(folder / "store")
    table = store.table  # type: ignore[attr-defined]
    files = [kvikio.CuFile(str(path), "r") for path in table.files]
    nbytes = int(table.length[0].sum())

    def epoch(numbers: Sequence[int]) -> Batches:
        for at in range(0, len(numbers), batch_size):
            batch = np.sort(numbers[at : at + batch_size]).tolist()
            out = torch.empty(len(batch) * nbytes, dtype=torch.uint8, device=DEVICE)
            end, reads = 0, []
            for number in batch:
                for file, offset, length in zip(
                    table.file[number], table.offset[number], table.length[number], strict=True
                ):
                    place = out[end : end + int(length)]
                    reads.append(files[file].pread(place, int(length), int(offset)))
                    end += int(length)
            for read in reads:
                read.get()
            yield out

    return epoch


@on_device
@contender("store+numpy", "torch", "iobench.stores")
def limit_copies(folder: Path, batch_size: int) -> Epoch:
    """Nothing but copies of pinned buffers."""
    import torch

    from iobench.stores.finished_store import open_store

    nbytes = batch_size * open_store(folder / "store").spec.nbytes
    buffers = [torch.ones(nbytes, dtype=torch.uint8).pin_memory() for _ in range(4)]

    def epoch(numbers: Sequence[int]) -> Batches:
        for count in range(-(-len(numbers) // batch_size)):
            yield buffers[count % 4].to(DEVICE, non_blocking=True)

    return epoch


def _device_index() -> int:
    return int(DEVICE.partition(":")[2] or 0)


# -- the loop ---------------------------------------------------------------------------------


def touch(batch: Any) -> int:
    """Read a number of every page of a batch, on a device in its queue; return its bytes."""
    values = batch.values() if isinstance(batch, dict) else [batch]
    nbytes = 0
    for value in values:
        if DEVICE:
            value.reshape(-1)[:: PAGE // value.itemsize].sum()
            nbytes += value.nbytes
            continue
        array = value.numpy() if hasattr(value, "numpy") else value
        if array.flags.c_contiguous:
            array = array.reshape(-1).view(np.uint8)
            array[::PAGE].sum()
        else:
            array.reshape(-1)[:: PAGE // array.itemsize].sum()
        nbytes += array.nbytes
    return nbytes


def run(batches: Batches, compute_s: float) -> dict[str, Any]:
    """Take an epoch of batches, each followed by a step of ``compute_s`` seconds."""
    waits, nbytes = [], 0
    started = asked = time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - asked)
        nbytes += touch(batch)
        if compute_s:
            time.sleep(compute_s)
        asked = time.perf_counter()
    if DEVICE:
        import torch

        torch.get_device_module(DEVICE).synchronize()
    return {"seconds": time.perf_counter() - started, "nbytes": nbytes, "waits": waits}


def main() -> None:
    """Serve one contender: NAME, SET and FOLDER on the command line, orders on stdin."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=CONTENDERS, metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument("which", choices=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where its files are written")
    arguments = parser.parse_args()
    which, folder = arguments.which, arguments.folder
    kind, needs, opened = CONTENDERS[arguments.name]
    if "streaming" in needs:
        without_torchvision()
    for module in needs:
        __import__(module)
    write_files(kind, folder, which)
    batch_size = SETS[which][2]
    files = [path for path in (folder / which / kind).rglob("*") if path.is_file()]
    epoch = None
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["cold"]:
            from iobench.storage.page_cache import evict, residency

            evict(files)
            cold = 1 - (residency(files) or 0)
        if epoch is None:
            epoch = opened(folder / which / kind, asked["batch_size"] or batch_size)
        found = run(epoch(asked["order"]), asked["compute_s"])
        if asked["cold"]:
            found["evicted"] = cold
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
