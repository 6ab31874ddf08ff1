"""NetCDF to Zarr, NumPy and TFRecord, beside other ways: python tests/benchmarks/conversion.py.

The source is compressed (zlib 4, shuffled), in chunks of 30 time steps of a quarter field: what
archives hold and training cannot use. Contenders take turns, each in a process of its own; the
source is in the page cache. Ours syncs what it wrote, the others do not. Memory that is touched for
the first time counts: in a virtual machine that is given it only then, up to 3 CPU seconds per GB
of it, which weighs less the longer the source is. Needs isal, zarr, xarray, netCDF4, distributed
and TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from conversion_contenders import CONTENDERS, STEPS

N_LATITUDES, N_LONGITUDES = 361, 720
FIELD_NBYTES = 4 * N_LATITUDES * N_LONGITUDES

OURS = ("iobench_numpy", "iobench_zarr")
GOALS: tuple[tuple[str, tuple[str, ...], str, float], ...] = (
    ("numpy or zarr, MB/s", OURS, "", 500),
    ("against xarray, a chunk a sample", ("iobench_zarr",), "xarray_to_zarr_samples", 1.9),
    ("against xarray as it comes", ("iobench_zarr",), "xarray_to_zarr_default", 1.9),
    ("against dask p2p", ("iobench_zarr",), "dask_p2p", 10),
    ("against TensorFlow, FloatList", ("iobench_tfrecord",), "tensorflow_float_list", 10),
    ("against TensorFlow, bytes", ("iobench_tfrecord",), "tensorflow_bytes", 1.5),
)
"""What, by whom, against whom (or in MB/s), and at least how much."""
RSS_GOAL = 1.3


class Turn(NamedTuple):
    """One conversion of one contender."""

    mb_per_s: float
    cpu_s_per_gb: float
    growth_nbytes: int


def write_source(path: Path, n_samples: int, n_variables: int) -> None:
    """Write smooth fields with a little noise; rows of chunks repeat, so that it takes seconds."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(0)
    latitude = np.linspace(0, 6, N_LATITUDES)[:, None]
    longitude = np.linspace(0, 12, N_LONGITUDES)
    phases = 0.1 * np.arange(STEPS)[:, None, None]
    chunk = (STEPS, -(-N_LATITUDES // 2), -(-N_LONGITUDES // 2))
    shape = (n_samples, N_LATITUDES, N_LONGITUDES)
    with h5py.File(path, "w") as file:
        lengths = {"time": n_samples, "lat": N_LATITUDES, "lon": N_LONGITUDES}
        for name, length in lengths.items():
            file[name] = np.arange(length, dtype="f8")
            file[name].make_scale(name)
        for number in range(n_variables):
            variable = file.create_dataset(
                f"v{number}",
                shape,
                "f4",
                chunks=chunk,
                compression="gzip",
                compression_opts=4,
                shuffle=True,
            )
            for axis, name in enumerate(lengths):
                variable.dims[axis].attach_scale(file[name])
            waves = np.sin(latitude + phases + number) * np.cos(longitude - phases)
            noise = rng.normal(0, 0.5, size=waves.shape)
            row = (280 + 10 * waves + noise).astype("f4")
            variable[:STEPS] = row[:n_samples]
            stored = [variable.id.get_chunk_info(n) for n in range(variable.id.get_num_chunks())]
            for start in range(STEPS, n_samples, STEPS):
                for info in stored:
                    _, content = variable.id.read_direct_chunk(info.chunk_offset)
                    variable.id.write_direct_chunk((start, *info.chunk_offset[1:]), content)


def turn(name: str, source: Path, memory_nbytes: int) -> Turn:
    """Run one contender in a process of its own."""
    script = Path(__file__).with_name("conversion_contenders.py")
    command = [sys.executable, str(script), name, str(source), str(memory_nbytes)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{name} failed:\n{ran.stderr}")
    said = json.loads(ran.stdout.splitlines()[-1])
    nbytes = said["nbytes"]
    return Turn(nbytes / 1e6 / said["seconds"], said["cpu_s"] / nbytes * 1e9, said["growth_nbytes"])


def rate(turns: list[Turn]) -> float:
    """Return the median rate."""
    return statistics.median(each.mb_per_s for each in turns)


def print_table(turns: dict[str, list[Turn]]) -> None:
    """Print rates and peaks, and the goals beside what was reached."""
    print(f"{'':26}{'MB/s':>8}{'lowest':>9}{'highest':>9}{'CPU s/GB':>10}{'peak RSS, MB':>14}")
    for name, each in turns.items():
        rates = [one.mb_per_s for one in each]
        growth = max(one.growth_nbytes for one in each) / 1e6
        cpu = statistics.median(one.cpu_s_per_gb for one in each)
        print(
            f"{name:26}{rate(each):8.0f}{min(rates):9.0f}{max(rates):9.0f}{cpu:10.2f}{growth:14.0f}"
        )
    print()
    for what, who, whom, goal in GOALS:
        if set(who) - turns.keys() or (whom and whom not in turns):
            continue
        reached = min(rate(turns[name]) for name in who) / (rate(turns[whom]) if whom else 1)
        said = "reached" if reached >= goal else "MISSED"
        print(f"{what:36} {reached:7.1f}   goal {goal:5.1f}   {said}")


def print_memory(folder: Path, sizes: list[int], n_variables: int, memory_nbytes: int) -> None:
    """Print the peaks of our conversions for sources of several sizes."""
    print(f"\npeak RSS over the idle process, --memory {memory_nbytes / 1e6:.0f} MB, in MB")
    for size in sizes:
        source = folder / f"{size}.nc"
        write_source(source, n_for(size, n_variables), n_variables)
        for name in (*OURS, "iobench_tfrecord"):
            found = turn(name, source, memory_nbytes)
            times = found.growth_nbytes / memory_nbytes
            said = "" if times <= RSS_GOAL else f"   MISSED: goal {RSS_GOAL}"
            print(
                f"{size:6} MB, {name:18}{found.growth_nbytes / 1e6:8.0f}   "
                f"{times:.2f} times   {found.mb_per_s:5.0f} MB/s{said}"
            )
        source.unlink()


def n_for(size_mb: int, n_variables: int) -> int:
    """Return how many samples have this many MB, whole rows of chunks."""
    row_nbytes = STEPS * n_variables * FIELD_NBYTES
    return STEPS * max(1, round(size_mb * 1e6 / row_nbytes))


def main() -> None:
    """Write a source, let all take turns, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=940, help="of the source, decoded, in MB")
    parser.add_argument("--variables", type=int, default=3)
    parser.add_argument("--memory", type=int, default=256, help="in MiB")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[200, 2000], help="for the peaks")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one by default")
    arguments = parser.parse_args()
    memory_nbytes = arguments.memory << 20
    with tempfile.TemporaryDirectory(dir=arguments.folder) as named:
        folder = Path(named)
        source = folder / "source.nc"
        n_samples = n_for(arguments.size, arguments.variables)
        write_source(source, n_samples, arguments.variables)
        decoded = n_samples * arguments.variables * FIELD_NBYTES
        print(
            f"{n_samples} samples of {arguments.variables} fields, {decoded / 1e6:.0f} MB decoded, "
            f"{source.stat().st_size / 1e6:.0f} MB stored; {arguments.rounds} rounds\n"
        )
        turns: dict[str, list[Turn]] = {name: [] for name in arguments.only}
        for _ in range(arguments.rounds):
            for name in arguments.only:
                turns[name].append(turn(name, source, memory_nbytes))
                last = turns[name][-1]
                print(f"{name}: {last.mb_per_s:.0f} MB/s", file=sys.stderr, flush=True)
        print_table(turns)
        if arguments.sizes:
            print_memory(folder, arguments.sizes, arguments.variables, memory_nbytes)


if __name__ == "__main__":
    main()
