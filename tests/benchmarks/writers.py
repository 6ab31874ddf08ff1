"""What appending to a store costs: python tests/benchmarks/writers.py [MB].

Each format writes the same bytes as large samples (7.3 MB) and as 16 KB ones, beside a buffered
write of them by Python, taking turns. Both include fsync and the store's manifest. The time of the
processor is given as well: it hardly depends on what else the machine does. Where TensorFlow is
installed, its TFRecordWriter takes turns too, with float lists and with bytes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import finish_store
from iobench.stores.manifest import Manifest

ROUNDS = 3
GOAL = 0.5
"""Small samples against large ones."""
PEER = "TensorFlow"
PEER_GOALS = {"float": 10, "bytes": 1.5}
"""What our TFRecords must be faster than TensorFlow's, by its kind of list."""
LARGE = SampleSpec(tuple(Variable(f"v{n}", (361, 720), "f4", ("y", "x")) for n in range(7)))
SMALL = SampleSpec(
    (
        Variable("scalars", (17,), "f4", ("quantity",)),
        Variable("levels", (137, 27), "f4", ("level", "quantity")),
        Variable("halves", (138, 2), "f4", ("half_level", "quantity")),
    )
)
CASES = (
    ("numpy", {}),
    ("tfrecord", {}),
    ("tfrecord", {"encoding": "bytes"}),
    ("zarr", {}),
    ("zarr", {"codec": "blosc-lz4"}),
)


def samples(spec: SampleSpec) -> list[dict[str, np.ndarray]]:
    """Return a few samples that are smooth enough to be compressed."""
    random = np.random.default_rng(0)
    return [
        {v.name: random.standard_normal(v.shape, dtype="f4").cumsum(-1, dtype="f4") for v in spec}
        for _ in range(4)
    ]


MADE = {spec: samples(spec) for spec in (LARGE, SMALL)}
TENSORFLOW_NBYTES = 60e6
"""What TensorFlow writes, at most: its float lists take a minute for more."""


def tensorflow_write(folder: Path, spec: SampleSpec, n_samples: int, kind: str) -> None:
    """Write examples as TensorFlow's guide does."""
    import tensorflow as tf

    def feature(values: np.ndarray):
        if kind == "float":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values.ravel()))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values.tobytes()]))

    with tf.io.TFRecordWriter(str(folder / "peer.tfrecord")) as writer:
        for number in range(n_samples):
            made = MADE[spec][number % 4]
            features = {name: feature(values) for name, values in made.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def buffered_write(folder: Path, spec: SampleSpec, n_samples: int) -> None:
    """Write as many bytes with Python's own buffer."""
    data = bytes(spec.nbytes)
    with (folder / "plain").open("wb", buffering=1 << 20) as file:
        for _ in range(n_samples):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_store(folder: Path, spec: SampleSpec, n_samples: int, name: str, options) -> None:
    """Write a finished store of one shard."""
    fmt = find_format(name)
    made = MADE[spec]
    writer = fmt.writer(folder, spec, shard=0, options=options, n_samples=n_samples)
    for number in range(n_samples):
        writer.append(made[number % len(made)])
    info = writer.close()
    manifest = Manifest(
        name, fmt.version, spec, (info.shard,), tuple(range(n_samples)), options=options
    )
    finish_store(folder, fmt, manifest, checksums=info.checksums, n_samples=n_samples)


def measure(job, spec: SampleSpec, n_samples: int, *more) -> tuple[float, float]:
    """Return MB/s of the clock and of the processor's time."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        started, worked = time.perf_counter(), time.process_time()
        job(Path(folder), spec, n_samples, *more)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - worked
    return spec.nbytes * n_samples / seconds / 1e6, spec.nbytes * n_samples / cpu_s / 1e6


def main() -> int:
    """Print the table; 1 where small samples are below the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mb", nargs="?", type=float, default=1600, help="MB a store")
    nbytes = parser.parse_args().mb * 1e6
    found: dict[tuple[str, SampleSpec], list[tuple[float, float]]] = {}
    if shutil.disk_usage(os.environ.get("TMPDIR", "/var/tmp")).free < 2 * nbytes:
        sys.exit("not enough free space")
    jobs = [("buffered write", buffered_write, ())]
    if importlib.util.find_spec("tensorflow"):
        importlib.import_module("tensorflow")
        jobs += [(f"{PEER} {kind}", tensorflow_write, (kind,)) for kind in PEER_GOALS]
    jobs += [(f"{n} {' '.join(map('='.join, o.items()))}", write_store, (n, o)) for n, o in CASES]
    for _ in range(ROUNDS):
        for spec in (LARGE, SMALL):
            n_samples = max(1, round(nbytes / spec.nbytes))
            n_peer = max(1, round(min(nbytes, TENSORFLOW_NBYTES) / spec.nbytes))
            for name, job, more in jobs:
                one = measure(job, spec, n_peer if PEER in name else n_samples, *more)
                found.setdefault((name, spec), []).append(one)
    print(f"{'MB/s, medians':32} {'large':>7} {'16 KB':>7} {'ratio':>6}   by CPU time, and ratio")
    missed = 0
    for name, *_ in jobs:
        large, small = (
            [statistics.median(values) for values in zip(*found[name, spec], strict=True)]
            for spec in (LARGE, SMALL)
        )
        ratio, by_cpu = small[0] / large[0], small[1] / large[1]
        ours = name != "buffered write" and PEER not in name
        missed += ours and max(ratio, by_cpu) < GOAL
        print(
            f"{name:32} {large[0]:7.0f} {small[0]:7.0f} {ratio:6.2f}   "
            f"{large[1]:7.0f} {small[1]:7.0f} {by_cpu:6.2f}"
        )
    for kind, goal in PEER_GOALS.items():
        name = f"tfrecord {'encoding=bytes' if kind == 'bytes' else ''}"
        for spec, size in ((LARGE, "large"), (SMALL, "16 KB")):
            if (f"{PEER} {kind}", spec) in found:
                pairs = zip(found[name, spec], found[f"{PEER} {kind}", spec], strict=True)
                times = sorted(ours[0] / peer[0] for ours, peer in pairs)
                median = statistics.median(times)
                missed += median < goal
                said = f"{median:5.1f} times {PEER} ({times[0]:.1f} to {times[-1]:.1f})"
                print(f"tfrecord, {kind}, {size}: {said}, goal {goal}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
