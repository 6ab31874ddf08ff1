"""One way of loading in a process of its own, for loaders.py: makes its files, then takes orders.

A line of JSON with the sample numbers of an epoch comes in, one with times goes out. Everything a
contender needs is imported, and its files are opened, before the first order.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
DEVICE = os.environ.get("LOADERS_DEVICE", "")
"""Where batches go to, as torch calls it; ``""``: nowhere."""
Arrays = dict[str, np.ndarray]
Batches = Iterator[Any]
Epoch = Callable[[Sequence[int]], Batches]


def samples(name: str) -> Iterator[Arrays]:
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
    layout, _, options = kind.partition("+")
    if layout == "store":
        _write_store(target, name, options)
    else:
        WRITERS[layout](target, name)
    os.sync()
    (target / "finished").touch()


def _write_store(target: Path, name: str, options: str) -> None:
    from iobench.datasets.contract import SampleIndex
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
    index = SampleIndex(spec, range(count))
    finish_store(store, fmt, manifest, checksums=info.checksums, n_samples=count, index=index)


def _write_npy(target: Path, name: str) -> None:
    for number, sample in enumerate(samples(name)):
        parts = list(sample.values())
        joined = parts[0] if len(parts) == 1 else np.concatenate([each.ravel() for each in parts])
        np.save(target / f"{number:06d}.npy", joined)


def _write_hdf5(target: Path, name: str) -> None:
    import h5py

    _, count, _, arrays = SETS[name]
    with h5py.File(target / "samples.h5", "w") as file:
        for key, shape in arrays:
            file.create_dataset(key, (count, *shape), "f4", chunks=(1, *shape))
        for number, sample in enumerate(samples(name)):
            for key, values in sample.items():
                file[key][number] = values


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "npy": _write_npy,
    "hdf5": _write_hdf5,
}


# -- ours -------------------------------------------------------------------------------------


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

    def batches(self, epoch: int, first: int = 0, *_: object) -> Iterator[np.ndarray]:
        return (self.samples(epoch, batch) for batch in range(first, len(self)))


def _in_order(loader: Any, order: GivenOrder) -> Epoch:
    """Return epochs of a loader that goes by such an order."""

    def epoch(numbers: Sequence[int]) -> Batches:
        order.numbers = np.array(numbers, dtype=np.int64)
        return iter(loader)

    return epoch


def _store(folder: Path) -> Any:
    from iobench.stores.finished_store import open_store

    return open_store(folder / "store")


def ring(folder: Path, batch_size: int, *, verify: bool = False, **options: Any) -> Epoch:
    """Load through the ring, as NumPy arrays."""
    from iobench.loaders.ring.loader import RingLoader
    from iobench.loaders.ring.store_source import StoreSource

    source = StoreSource(_store(folder), **({"verify": True} if verify else {}))
    order = GivenOrder(len(source), batch_size)
    return _in_order(RingLoader(source, order, **options), order)  # type: ignore[arg-type]


def torch_ring(folder: Path, batch_size: int, **options: Any) -> Epoch:
    """Load through `StoreLoader`, as tensors."""
    from iobench.torch import StoreLoader

    store = _store(folder)
    loader = StoreLoader(store, batch_size, **options)
    loader.order = order = GivenOrder(len(store), batch_size)  # type: ignore[assignment]
    return _in_order(loader, order)


MOMENTS = np.arange(7.0).reshape(7, 1, 1), np.arange(1.0, 8.0).reshape(7, 1, 1)
"""A mean and a deviation for each variable of the ENS set."""


def _corners() -> Iterator[tuple[int, int]]:
    rng = random.Random(0)
    while True:
        yield rng.randrange(361 - 128 + 1), rng.randrange(720 - 128 + 1)


def then_normalised(folder: Path, batch_size: int) -> Epoch:
    """Normalise by torch, in place, after the batch."""
    import torch

    epoch = torch_ring(folder, batch_size)
    mean, std = (torch.from_numpy(each.astype("f4")) for each in MOMENTS)
    return lambda numbers: (
        {"fields": batch["fields"].sub_(mean).div_(std)} for batch in epoch(numbers)
    )


def then_cut(folder: Path, batch_size: int) -> Epoch:
    """Cut patches out of whole samples, after the batch."""
    import torch

    epoch, corners = torch_ring(folder, batch_size), _corners()

    def cut(batch: Any) -> Any:
        whole = batch["fields"]
        places = [next(corners) for _ in whole]
        parts = [x[:, i : i + 128, j : j + 128] for x, (i, j) in zip(whole, places, strict=True)]
        return {"fields": torch.stack(parts)}

    return lambda numbers: (cut(batch) for batch in epoch(numbers))


# -- torch's loader ---------------------------------------------------------------------------


class NpyFiles:
    """A file for each sample, as D2.3 had them."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> np.ndarray:
        return np.load(self.paths[number])


def data_loader(folder: Path, batch_size: int, *, workers: int, **options: Any) -> Epoch:
    """Load a store, or files of NumPy, by torch's own loader."""
    from torch.utils.data import DataLoader

    dataset: Any = NpyFiles(folder)
    if (folder / "store").exists():
        from torch.utils.data import default_collate as collate

        dataset = _store(folder)
        options["collate_fn"] = collate
    if workers:
        options |= {"persistent_workers": True, "prefetch_factor": 2}
    order: list[list[int]] = []
    loader = DataLoader(dataset, batch_sampler=order, num_workers=workers, **options)

    def epoch(numbers: Sequence[int]) -> Batches:
        order[:] = [list(each) for each in _batches(numbers, batch_size)]
        return iter(loader)

    return epoch


def _batches(numbers: Sequence[int], batch_size: int) -> Iterator[Sequence[int]]:
    return (numbers[at : at + batch_size] for at in range(0, len(numbers), batch_size))


# -- limits -----------------------------------------------------------------------------------


def pread(folder: Path, batch_size: int, *, threads: int) -> Epoch:
    """Read each batch's extents, in order of their place, into buffers used again."""
    table = _store(folder).table
    descriptors = [os.open(path, os.O_RDONLY) for path in table.files]
    nbytes = int(table.length[0].sum())
    buffers = [np.ones(batch_size * nbytes, dtype=np.uint8) for _ in range(4)]
    pool = ThreadPoolExecutor(threads)

    def read(part: tuple[np.ndarray, memoryview]) -> None:
        numbers, view = part
        at = 0
        for number in np.sort(numbers).tolist():
            for file, offset, length in _extents(table, number):
                os.preadv(descriptors[file], [view[at : at + length]], offset)
                at += length

    def epoch(numbers: Sequence[int]) -> Batches:
        for count, some in enumerate(_batches(numbers, batch_size)):
            batch, view = np.array(some), memoryview(buffers[count % 4])
            cut = len(batch) // 2 if threads > 1 else len(batch)
            parts = [(batch[:cut], view[: cut * nbytes]), (batch[cut:], view[cut * nbytes :])]
            list(pool.map(read, parts[:threads]))
            yield buffers[count % 4][: len(batch) * nbytes]

    return epoch


def _extents(table: Any, number: int) -> Iterator[tuple[int, int, int]]:
    """Yield file, offset and length of each variable of a sample."""
    columns = (table.file[number], table.offset[number], table.length[number])
    return zip(*(column.tolist() for column in columns), strict=True)


def memcpy(folder: Path, batch_size: int) -> Epoch:
    """Copy memory to memory."""
    nbytes = batch_size * _store(folder).spec.nbytes
    sources = [np.ones(nbytes, dtype=np.uint8) for _ in range(8)]
    buffers = [np.ones(nbytes, dtype=np.uint8) for _ in range(4)]

    def epoch(numbers: Sequence[int]) -> Batches:
        for count in range(-(-len(numbers) // batch_size)):
            np.copyto(buffers[count % 4], sources[count % 8])
            yield buffers[count % 4]

    return epoch


def lz4(folder: Path, batch_size: int) -> Epoch:
    """Decompress each batch's chunks, in order of their place, into buffers used again."""
    from numcodecs import blosc

    store = _store(folder)
    files = [np.memmap(path, mode="r") for path in store.table.files]
    nbytes = [variable.nbytes for variable in store.spec]
    buffers = []
    for _ in range(4):
        pages = mmap.mmap(-1, batch_size * sum(nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        buffers.append(np.frombuffer(pages, dtype=np.uint8))

    def epoch(numbers: Sequence[int]) -> Batches:
        blosc.use_threads = False
        for count, batch in enumerate(_batches(numbers, batch_size)):
            end = 0
            for number in sorted(batch):
                for (file, start, length), n in zip(
                    _extents(store.table, number), nbytes, strict=True
                ):
                    stored = files[file][start : start + length]
                    blosc.decompress(stored, buffers[count % 4][end : end + n])
                    end += n
            yield buffers[count % 4][:end]

    return epoch


# -- others -----------------------------------------------------------------------------------


def _mapped(folder: Path) -> Any:
    (path,) = (folder / "store").glob("*.npy")
    return np.load(path, mmap_mode="r")


def memmap(folder: Path, batch_size: int) -> Epoch:
    """``torch.from_numpy(memmap[numbers])``: the honest baseline for what is in memory."""
    import torch

    mapped = _mapped(folder)

    def epoch(numbers: Sequence[int]) -> Batches:
        for some in _batches(numbers, batch_size):
            batch = mapped[some]
            names = mapped.dtype.names or ()
            yield {name: torch.from_numpy(batch[name]) for name in names} or torch.from_numpy(batch)

    return epoch


def memmap_cut(folder: Path, batch_size: int) -> Epoch:
    """``np.stack`` of slices of a mapping: what is in memory, in the loop."""
    import torch

    mapped, corners = _mapped(folder), _corners()

    def epoch(numbers: Sequence[int]) -> Batches:
        for batch in _batches(numbers, batch_size):
            places = [(n, *next(corners)) for n in batch]
            parts = [mapped[n, :, i : i + 128, j : j + 128] for n, i, j in places]
            yield {"fields": torch.from_numpy(np.stack(parts))}

    return epoch


def _stacked(get: Callable[[int], dict[str, Any]], batch_size: int) -> Epoch:
    def epoch(numbers: Sequence[int]) -> Batches:
        for batch in _batches(numbers, batch_size):
            found = [get(number) for number in batch]
            yield {key: np.stack([sample[key] for sample in found]) for key in found[0]}

    return epoch


def h5py_loop(folder: Path, batch_size: int) -> Epoch:
    import h5py

    sets = dict(h5py.File(folder / "samples.h5", "r").items())

    def epoch(numbers: Sequence[int]) -> Batches:
        for batch in _batches(numbers, batch_size):
            out = {key: np.empty((len(batch), *one.shape[1:]), "f4") for key, one in sets.items()}
            for row, number in enumerate(batch):
                for key, one in sets.items():
                    one.read_direct(out[key], np.s_[number], np.s_[row])
            yield out

    return epoch


def zarr_loop(folder: Path, batch_size: int, *, pipeline: str = "") -> Epoch:
    import zarr

    if pipeline:
        zarr.config.set({"codec_pipeline.path": pipeline})
    arrays = dict(zarr.open_group(folder / "store", mode="r").arrays())
    return _stacked(lambda number: {key: one[number] for key, one in arrays.items()}, batch_size)


def tensorstore(folder: Path, batch_size: int) -> Epoch:
    import tensorstore

    stores = {
        path.parent.name: tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path.parent)}}
        ).result()
        for path in (folder / "store").glob("*/zarr.json")
    }

    def epoch(numbers: Sequence[int]) -> Batches:
        for batch in _batches(numbers, batch_size):
            reads = {name: store[list(batch)].read() for name, store in stores.items()}
            yield {name: read.result() for name, read in reads.items()}

    return epoch


def tf_data(folder: Path, batch_size: int) -> Epoch:
    """tf.data over the records of an epoch in its own, weaker order: its shuffle is over names."""
    import tensorflow as tf

    spec = _store(folder).spec
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
        return iter(data.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))

    return epoch


# -- to a device ------------------------------------------------------------------------------


def to_device(
    folder: Path, batch_size: int, *, load: Callable[..., Epoch], **options: Any
) -> Epoch:
    """Move batches in the loop, as scripts do."""
    epoch = load(folder, batch_size, **options)
    pinned = bool(options.get("pin_memory"))

    def moved(batch: Any) -> Any:
        if isinstance(batch, dict):
            return {key: value.to(DEVICE, non_blocking=pinned) for key, value in batch.items()}
        return batch.to(DEVICE, non_blocking=pinned)

    return lambda numbers: map(moved, epoch(numbers))


def dali(folder: Path, batch_size: int) -> Epoch:
    """DALI's reader to the device (cuFile), in its own, weaker order: it shuffles files."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    index = int(DEVICE.partition(":")[2] or 0)

    @pipeline_def(batch_size=batch_size, num_threads=4, device_id=index)
    def pipeline() -> Any:
        return fn.readers.numpy(
            device="gpu", file_root=str(folder), file_filter="*.npy", shuffle_after_epoch=True,
            name="files",
        )  # fmt: skip

    batches = DALIGenericIterator([pipeline()], ["fields"], reader_name="files", auto_reset=True)
    return lambda numbers: (parts[0] for parts in batches)


def kvikio(folder: Path, batch_size: int) -> Epoch:
    """Each batch's extents straight to its place on the device (GDS where there is any)."""
    import kvikio
    import torch

    torch.empty(0, device=DEVICE)  # its context
    table = _store(folder).table
    files = [kvikio.CuFile(str(path), "r") for path in table.files]
    nbytes = int(table.length[0].sum())

    def epoch(numbers: Sequence[int]) -> Batches:
        for batch in _batches(numbers, batch_size):
            out = torch.empty(len(batch) * nbytes, dtype=torch.uint8, device=DEVICE)
            end, reads = 0, []
            for number in sorted(batch):
                for file, offset, length in _extents(table, number):
                    reads.append(files[file].pread(out[end : end + length], length, offset))
                    end += length
            for read in reads:
                read.get()
            yield out

    return epoch


def copies(folder: Path, batch_size: int) -> Epoch:
    """Nothing but copies of pinned buffers."""
    import torch

    nbytes = batch_size * _store(folder).spec.nbytes
    buffers = [torch.ones(nbytes, dtype=torch.uint8).pin_memory() for _ in range(4)]

    def epoch(numbers: Sequence[int]) -> Batches:
        for count in range(-(-len(numbers) // batch_size)):
            yield buffers[count % 4].to(DEVICE, non_blocking=True)

    return epoch


# -- all of them ------------------------------------------------------------------------------


class Way(NamedTuple):
    """What files it reads, what it imports, what opens them."""

    files: str
    needs: tuple[str, ...]
    opened: Callable[..., Epoch]


RING, STORES, TORCH = ("iobench.loaders.ring",), ("iobench.stores",), ("torch", "iobench.torch")
LZ4 = "store+zarr,codec=blosc-lz4"
CONTENDERS = {
    "ring_numpy": Way("store+numpy", RING, ring),
    "ring_zarr": Way("store+zarr", RING, ring),
    "ring_tfrecord": Way("store+tfrecord", RING, ring),
    "ring_numpy_one_thread": Way("store+numpy", RING, partial(ring, threads=1)),
    "ring_numpy_verified": Way("store+numpy", RING, partial(ring, verify=True)),
    "ring_zarr_lz4_one_thread": Way(LZ4, RING, partial(ring, threads=1)),
    "ring_torch": Way("store+numpy", TORCH, torch_ring),
    "ring_normalised": Way(
        "store+numpy", TORCH, partial(torch_ring, normalise={"fields": MOMENTS})
    ),
    "ring_then_torch_normalises": Way("store+numpy", TORCH, then_normalised),
    "ring_patches": Way("store+numpy", TORCH, partial(torch_ring, patch={"d1": 128, "d2": 128})),
    "ring_then_torch_cuts": Way("store+numpy", TORCH, then_cut),
    "memmap_patches": Way("store+numpy", ("torch", *STORES), memmap_cut),
    "data_loader_store": Way("store+numpy", TORCH, partial(data_loader, workers=0)),
    "data_loader_tfrecord_2": Way("store+tfrecord", TORCH, partial(data_loader, workers=2)),
    "limit_pread_1": Way("store+numpy", STORES, partial(pread, threads=1)),
    "limit_pread_2": Way("store+numpy", STORES, partial(pread, threads=2)),
    "limit_memcpy": Way("store+numpy", STORES, memcpy),
    "limit_lz4_1": Way(LZ4, STORES, lz4),
    "memmap_one_line": Way("store+numpy", ("torch", *STORES), memmap),
    "np_load_in_process": Way("npy", ("torch",), partial(data_loader, workers=0)),
    "np_load_2_workers": Way("npy", ("torch",), partial(data_loader, workers=2)),
    "h5py_in_process": Way("hdf5", ("h5py",), h5py_loop),
    "zarr_python": Way("store+zarr", ("zarr",), zarr_loop),
    "zarr_with_zarrs": Way(
        "store+zarr", ("zarr", "zarrs"), partial(zarr_loop, pipeline="zarrs.ZarrsCodecPipeline")
    ),
    "tensorstore_batched": Way("store+zarr", ("tensorstore",), tensorstore),
    "tf_data": Way("store+tfrecord,encoding=bytes", ("tensorflow", *STORES), tf_data),
}
"""By name."""
ON_DEVICE = {
    "ring_device": Way("store+numpy", TORCH, partial(torch_ring, device=DEVICE)),
    "ring_then_to": Way("store+numpy", TORCH, partial(to_device, load=torch_ring)),
    "data_loader_pinned_2": Way(
        "store+numpy", TORCH, partial(to_device, load=data_loader, workers=2, pin_memory=True)
    ),
    "np_load_pinned_2": Way(
        "npy", ("torch",), partial(to_device, load=data_loader, workers=2, pin_memory=True)
    ),
    "dali_numpy_gpu": Way("npy", ("torch", "nvidia.dali.plugin.pytorch"), dali),
    "kvikio_store": Way("store+numpy", ("torch", "kvikio", *STORES), kvikio),
    "limit_copies": Way("store+numpy", ("torch", *STORES), copies),
}
"""Those that hand out batches on a device."""
ALL = CONTENDERS | ON_DEVICE


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
    parser.add_argument("name", choices=ALL, metavar="NAME", help=", ".join(ALL))
    parser.add_argument("which", choices=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where its files are written")
    arguments = parser.parse_args()
    way, place = ALL[arguments.name], arguments.folder / arguments.which
    for module in way.needs:
        __import__(module)
    write_files(way.files, arguments.folder, arguments.which)
    files = [path for path in (place / way.files).rglob("*") if path.is_file()]
    epoch = None
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["cold"]:
            from iobench.storage.page_cache import evict, residency

            evict(files)
            cold = 1 - (residency(files) or 0)
        if epoch is None:
            batch_size = asked["batch_size"] or SETS[arguments.which][2]
            epoch = way.opened(place / way.files, batch_size)
        found = run(epoch(asked["order"]), asked["compute_s"])
        if asked["cold"]:
            found["evicted"] = cold
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
