"""Stand-ins beside those of an older checkout: how they compress, and what reading them costs.

    python tests/benchmarks/sample_digests.py OLD --make default    # with the older checkout
    python tests/benchmarks/stand_ins.py OLD

Writes today's stand-ins of the same size (or takes those below ``--new NEW``, as ``--make`` lays
them out). For each variable of at least 4 KiB it prints what shuffled bytes take after zlib level 4
in the old files and in the new ones (of TFRecords the features, of GRIB the packed values), of up
to eight files of a kind; for each name the CPU time to read and decode a sample, medians of rounds
that take turns, and the median of their ratios. Exit status 1 where a variable is off by more than
10 %, or reading by more than 20 %.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import re
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sample_digests import STAND_INS, make_files

from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset
from iobench.stores import parse_example

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES_OF_A_KIND = 8
RECORDS = 400
"""Examples or messages looked at of a file."""
BLOCK_NBYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
SMALL_NBYTES = 4 << 10
LARGE_NBYTES = 256 << 20
"""Of a variable that has more, the first indexes."""
SAMPLES, SAMPLES_MS = 200, 100
"""Of a round at most, and for how long about."""


def main() -> int:
    """Print both tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--size", choices=("default", "tiny"), default="default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=STAND_INS, default=list(STAND_INS))
    given = parser.parse_args()
    labels = [label for label in given.only if (given.old / label).exists()]
    with tempfile.TemporaryDirectory() as folder:
        new = given.new or Path(folder)
        if given.new is None:
            make_files(new, given.size, labels)
        worst = [compare_sizes(given.old / label, new / label, label) for label in labels]
        costs = [
            compare_reading(given.old / label, new / label, label, given.rounds) for label in labels
        ]
    print(f"largest difference: {max(worst):.1%} in size, {max(costs):.1%} in CPU time")
    return int(max(worst) > 0.1 or max(costs) > 0.2)


def compare_sizes(old: Path, new: Path, label: str) -> float:
    """Print a line for each variable; return the largest relative difference."""
    before, now = compressed(old), compressed(new)
    worst = 0.0
    for key, (size, nbytes) in before.items():
        if nbytes < SMALL_NBYTES:
            continue
        if now[key][1] != nbytes:
            print(f"{label:22} {key}: {nbytes} bytes, now {now[key][1]}")
            return 1.0
        change = now[key][0] / size - 1
        worst = max(worst, abs(change))
        print(
            f"{label:22} {key:48} {size / nbytes:6.3f} {now[key][0] / nbytes:6.3f} {change:+7.1%}"
        )
    return worst


def compressed(folder: Path) -> dict[str, tuple[int, int]]:
    """Return compressed and whole bytes of each variable, by kind of file and name."""
    found: dict[str, tuple[int, int]] = {}
    seen: collections.Counter[str] = collections.Counter()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        kind = re.sub(r"\d+", "#", path.name)
        seen[kind] += 1
        if seen[kind] > FILES_OF_A_KIND or path.name.startswith(("stand-in", ".")):
            continue
        for name, values in variables(path):
            some = values[: max(1, LARGE_NBYTES * len(values) // max(1, values.nbytes))]
            size, nbytes = found.get(f"{kind} {name}", (0, 0))
            found[f"{kind} {name}"] = size + shuffled_size(some), nbytes + some.nbytes
    return found


def shuffled_size(values: NDArray[Any]) -> int:
    """Return the bytes of an array whose bytes are shuffled and compressed, block by block."""
    width = values.dtype.itemsize
    rows = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, width)
    step = BLOCK_NBYTES // width
    blocks = (rows[start : start + step].T for start in range(0, len(rows), step))
    return sum(len(zlib.compress(np.ascontiguousarray(each), 4)) for each in blocks)


def variables(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of numbers of a file, as it holds them."""
    if path.suffix == ".nc":
        import netCDF4

        with netCDF4.Dataset(path) as file:
            file.set_auto_maskandscale(False)
            for name, variable in file.variables.items():
                if variable.dtype is not str and variable.ndim:
                    yield name, np.asarray(variable[...])
    elif path.suffix in (".h5", ".hdf5"):
        import h5py

        arrays: list[tuple[str, NDArray[Any]]] = []
        with h5py.File(path) as file:
            file.visititems(
                lambda name, each: (
                    arrays.append((name, each[...]))
                    if isinstance(each, h5py.Dataset) and each.ndim
                    else None
                )
            )
        yield from arrays
    elif path.suffix == ".tfrecord":
        content = path.read_bytes()
        if content.startswith(GZIP_MAGIC):  # what a whole file takes is all there is to compare
            yield "compressed", np.frombuffer(content, np.uint8)
        else:
            yield from stacked(features(content))
    elif path.name.startswith("output."):
        yield from stacked(packed_fields(path))


def stacked(rows: Iterator[tuple[str, NDArray[Any]]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of each name as one."""
    by_name: dict[str, list[NDArray[Any]]] = collections.defaultdict(list)
    for name, values in rows:
        by_name[name].append(values)
    yield from ((name, np.stack(values)) for name, values in by_name.items())


def features(content: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the features of the first examples of a TFRecord file that are floats."""
    at = 0
    for _ in range(RECORDS):
        if at >= len(content):
            break
        (length,) = struct.unpack_from("<Q", content, at)
        example = parse_example(memoryview(content)[at + 12 : at + 12 + length])
        yield from ((name, each.floats()) for name, each in example.items() if name != "x")
        at += 16 + length


def packed_fields(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the packed values of the first messages of a GRIB file, by variable."""
    import eccodes

    with path.open("rb") as stream:
        for _ in range(RECORDS):
            handle = eccodes.codes_grib_new_from_file(stream)
            if handle is None:
                break
            keys = ("shortName", "level", "offsetBeforeData", "numberOfValues")
            name, level, start, count = (eccodes.codes_get(handle, key) for key in keys)
            message = eccodes.codes_get_message(handle)
            eccodes.codes_release(handle)
            yield f"{name}{level or ''}", np.frombuffer(message, ">u2", count, start).astype("u2")


def compare_reading(old: Path, new: Path, label: str, rounds: int) -> float:
    """Print the CPU time of a sample of each; return how far the median of ratios is from 1."""
    name, options = STAND_INS[label]
    with tempfile.TemporaryDirectory() as cache:
        readers = [
            Reader(name, options, each, Path(cache, str(n))) for n, each in enumerate((old, new))
        ]
        count = max(1, min(SAMPLES, int(SAMPLES_MS * 1e6 / readers[0].cost_ns(3))))
        pairs = []
        for number in range(rounds):
            order = (0, 1) if number % 2 else (1, 0)
            spent = {each: readers[each].cost_ns(count) for each in order}
            pairs.append((spent[0], spent[1]))
    ratio = statistics.median(now / before for before, now in pairs)
    before, now = (statistics.median(each) / 1e6 for each in zip(*pairs, strict=True))
    print(f"{label:22} read and decoded: {before:9.3f} ms {now:9.3f} ms of CPU, {ratio - 1:+7.1%}")
    return abs(ratio - 1)


class Reader:
    """Reads and decodes samples of a stand-in, over and over."""

    def __init__(self, name: str, options: dict[str, str], folder: Path, cache: Path) -> None:
        self.dataset: Any = find_dataset(name, **options)
        locator = FileLocator(stand_in=folder, cache_dir=cache)
        index = self.dataset.samples(self.dataset.files(locator), locator)
        numbers = range(0, len(index.where), max(1, len(index.where) // SAMPLES))
        self.places = itertools.cycle([index.where[number] for number in numbers])

    def cost_ns(self, count: int) -> float:
        """Return the CPU time of a sample, over so many."""
        start = time.process_time_ns()
        for where in itertools.islice(self.places, count):
            self.dataset.decode(self.dataset.read(where), where)
        return (time.process_time_ns() - start) / count


if __name__ == "__main__":
    sys.exit(main())
