"""Loaders beside limits and peers: python tests/benchmarks/loaders.py [--set radiation].

Contenders stay in processes of their own and take turns, epoch by epoch, each in the same random
order; the loop touches every page of a batch. Limits are measured in the same rounds: pread of the
same extents into buffers used again, and memcpy. ``--compute 21`` lets a step of 21 ms follow each
batch and tells the wait; ``--cold`` evicts a contender's files before each of its epochs, in a
fresh process. Libraries that are not installed get environments of their own (``--install``), else
they are left out and named. With ``--device cuda`` batches end on the device, where the loop
touches them: other contenders, beside copies of pinned buffers as the limit.

``--against CHECKOUT`` runs each contender of another checkout of iobench (all that load with
iobench by default) beside its twin of this one, in turns that swap from round to round; each writes
a store of its own. It prints the ratio of each round, their median and its interval:
``--against ../before --rounds 15``, and the same with ``--cold``. ``--passes 9`` takes the median
of nine epochs in turns as a round's rate: less noise. ``--cpu`` compares CPU seconds of the
processes, for a machine where others are at work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from loaders_contenders import CONTENDERS, ON_DEVICE, SETS

from iobench.errors import IobenchError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = {
    "mosaic_mds": ["mosaicml-streaming==0.13.0", "torch==2.13.0", "setuptools<81"],
    "litdata": ["litdata", "torch==2.13.0"],
    "array_record": ["array_record"],
    "zarr_with_zarrs": ["zarrs>=0.2", "zarr>=3.1"],
    "tensorstore_batched": ["tensorstore>=0.1.70"],
}
"""What goes into the environment of a contender, beside iobench's own needs."""
BASE = ["numpy", "psutil", "crc32c", "click", "rich"]
RINGS = ("ring_numpy", "ring_zarr", "ring_tfrecord")
LIBRARIES = (
    "mosaic_mds", "litdata", "array_record", "zarr_python", "zarr_with_zarrs",
    "tensorstore_batched", "h5py_in_process", "tf_data",
)  # fmt: skip
AFTER = ("ring_then_torch_normalises", "ring_then_torch_cuts")
OF_FIELDS = ("ring_normalised", "ring_patches", "memmap_patches", *AFTER)
"""What there is for the ENS set alone, whose samples are fields."""
GOALS = {
    "ens": (
        ("of one pread thread", RINGS, ("limit_pread_1",), 0.8),
        ("against np.load, 2 workers", RINGS, ("np_load_2_workers",), 10),
        ("against the best library", RINGS, LIBRARIES, 2.5),
        ("against the one-line memmap", RINGS, ("memmap_one_line",), 1.0),
        ("verified against not", ("ring_numpy_verified",), ("ring_numpy",), 0.5),
        ("lz4, one thread, GB/s", ("ring_zarr_lz4_one_thread",), (), 4.0),
        ("lz4 against blosc alone", ("ring_zarr_lz4_one_thread",), ("limit_lz4_1",), 0.8),
        ("slowest container against fastest", RINGS, RINGS, 0.8),
        ("normalised against torch after it", ("ring_normalised",), AFTER[:1], 1.5),
        ("patches against torch after it", ("ring_patches",), AFTER[1:], 3.0),
        ("patches against slices of a memmap", ("ring_patches",), ("memmap_patches",), 0.8),
    ),
    "radiation": (
        ("numpy and tfrecord, GB/s", ("ring_numpy", "ring_tfrecord"), (), 5.0),
        ("against the best library", ("ring_numpy", "ring_tfrecord"), LIBRARIES, 3.0),
        ("against zarr-python", ("ring_numpy", "ring_tfrecord"), ("zarr_python",), 50),
    ),
}
DEVICE_GOALS = (
    ("of copies alone", ("ring_device",), ("limit_copies",), 0.8),
    ("against torch's pin_memory", ("ring_device",), ("data_loader_pinned_2",), 1.0),
    ("against readers to the device", ("ring_device",), ("dali_numpy_gpu", "kvikio_store"), 1.0),
)
COLD_GOALS = (
    ("against np.load in-process", RINGS, ("np_load_in_process",), 1.0),
    ("against any with 2 workers", RINGS, ("np_load_2_workers", "data_loader_tfrecord_2"), 1.3),
)
"""What, the slowest of whom, against the fastest of whom (or in GB/s), at least how much."""
LEAST_RATIO, LEAST_LOW = 0.97, 0.95
"""Of a checkout to the one before: the median of rounds, and the lower end of its interval."""


class Failed(Exception):
    """A contender ended, with its last words."""


@dataclass
class Contender:
    """One way of loading, in its process."""

    name: str
    python: str
    which: str
    folder: Path
    device: str = ""
    root: Path = ROOT
    process: subprocess.Popen[str] | None = None
    rates: list[float] = field(default_factory=list)
    waits: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evicted: list[float] = field(default_factory=list)
    by_cpu: bool = False

    def start(self) -> str:
        """Start the process; return why it cannot serve."""
        script = self.root / HERE.relative_to(ROOT) / "loaders_contenders.py"
        command = [self.python, str(script), self.name, self.which, str(self.folder)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (self.root, self.root / "converters"))),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "LOADERS_DEVICE": self.device,
        }
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip
        return "" if self._line() == "ready" else self._reason()

    def epoch(self, order: list[int], arguments: argparse.Namespace) -> None:
        """Let it load an epoch and keep what it says.

        Raises
        ------
        Failed
        """
        if self.process is None and (reason := self.start()):
            raise Failed(f"does not start again: {reason}")
        assert self.process is not None
        assert self.process.stdin is not None
        asked = {
            "order": order,
            "cold": arguments.cold,
            "compute_s": arguments.compute / 1000,
            "batch_size": arguments.batch_size,
        }
        before_s = self._cpu_s()
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        line = self._line()
        if not line:
            raise Failed(self._reason())
        found = json.loads(line)
        spent_s = self._cpu_s() - before_s if self.by_cpu else found["seconds"]
        self.rates.append(found["nbytes"] / 1e9 / max(spent_s, 0.01))
        self.waits.append(found["waits"])
        self.seconds.append(found["seconds"])
        self.evicted.append(found.get("evicted", 0.0))
        if arguments.cold:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def _cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def _line(self) -> str:
        """Return the process's next line of ours; libraries print between."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("ready", '{"seconds"')):
                return line.strip()
        return ""

    def _reason(self) -> str:
        assert self.process is not None
        assert self.process.stderr is not None
        lines = self.process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "no reason given"


def interpreter(name: str, folder: Path, *, install: bool) -> str | None:
    """Return the Python that has what a contender imports; None where none has."""
    needs = CONTENDERS[name][1]
    found = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(module.split('.')[0] for module in needs)}"],
        capture_output=True,
        check=False,
    )
    if not found.returncode:
        return sys.executable
    packages = PACKAGES.get(name)
    if not install or packages is None:
        return None
    home = folder / f"environment-{name}"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        ran = subprocess.run(
            [python, "-m", "pip", "install", "-q", *BASE, *packages],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            print(f"left out: {name} ({ran.stderr.strip().splitlines()[-1]})")
            return None
    return str(python)


def print_rates(contenders: list[Contender], goals: Any, what: str) -> None:
    """Print a row for each contender, then the goals."""
    print(f"\n{what}\n{'':26}{'GB/s':>8}{'lowest':>9}{'highest':>9}{'median wait, ms':>17}")
    rates = {}
    for each in contenders:
        rates[each.name] = statistics.median(each.rates)
        wait = statistics.median(w for waits in each.waits for w in waits) * 1e3
        print(
            f"{each.name:26}{rates[each.name]:8.2f}{min(each.rates):9.2f}{max(each.rates):9.2f}"
            f"{wait:17.3f}"
        )
    print()
    for told, who, whom, goal in goals:
        others = [rates[name] for name in whom if name in rates]
        if any(name not in rates for name in who) or (whom and not others):
            continue
        reached = min(rates[name] for name in who) / (max(others) if whom else 1)
        print(f"{told:36}{reached:8.2f}   goal {goal:5.2f}   {'' if reached >= goal else 'MISSED'}")


def in_turns(contenders: list[Contender], number: int, *, paired: bool) -> list[Contender]:
    """Return the order of a round: as they are, or the two of each pair swapped in every other."""
    if not paired or number % 2:
        return list(contenders)
    return [contenders[index ^ 1] for index in range(len(contenders))]


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its interval of at least 95 %, by order statistics."""
    ordered, n = sorted(values), len(values)
    below = 0  # the largest k of which P(fewer than k of n lie below the median) is 2.5 % at most
    while sum(math.comb(n, i) for i in range(below + 1)) <= 0.025 * 2**n:
        below += 1
    return statistics.median(ordered), ordered[max(below - 1, 0)], ordered[n - max(below, 1)]


def print_ratios(
    contenders: list[Contender], rounds: int, passes: int
) -> dict[str, dict[str, float]]:
    """Print the ratio of this checkout's rate to the other's by round; return the medians."""
    figures = {}
    for each in contenders:
        rates = each.rates[-rounds * passes :]
        middle = statistics.harmonic_mean if each.by_cpu else statistics.median
        each.rates = [
            middle(rates[start : start + passes]) for start in range(0, len(rates), passes)
        ]
    unit = "samples by CPU second" if contenders[0].by_cpu else "samples/s"
    print(f"\n{unit} of this checkout / of the other, by round")
    for ours, other in zip(contenders[::2], contenders[1::2], strict=True):
        ratios = [a / b for a, b in zip(ours.rates, other.rates, strict=True)]
        median, low, high = median_interval(ratios)
        rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
        missed = "" if median >= LEAST_RATIO and low >= LEAST_LOW else "   MISSED"
        print(f"{ours.name:26}{median:6.3f} ({low:.3f} to {high:.3f})   {rounds}{missed}")
        figures[ours.name] = {"ratio": median, "low": low, "high": high}
    return figures


def print_waits(contenders: list[Contender], compute_ms: float) -> None:
    """Print the waits beside a step: per batch, of the steady state, of the first epoch."""
    print(f"\nwait for a batch at a step of {compute_ms} ms")
    print(f"{'':26}{'median, ms':>12}{'highest, ms':>13}{'steady share':>14}{'whole share':>13}")
    for each in contenders:
        steady = [wait for waits in each.waits for wait in waits[3:]]
        share = sum(steady) / (sum(steady) + len(steady) * compute_ms / 1e3)
        whole = sum(each.waits[0]) / each.seconds[0]
        print(
            f"{each.name:26}{statistics.median(steady) * 1e3:12.3f}{max(steady) * 1e3:13.3f}"
            f"{share:14.2%}{whole:13.2%}"
        )


def main() -> None:
    """Write the files, let all take turns, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=SETS, default="ens", dest="which")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--device", default="", help="where batches are to be: cuda, xpu:0")
    parser.add_argument("--json", type=Path, help="where figures are kept")
    parser.add_argument("--compute", type=float, default=0, help="of a step, in ms")
    parser.add_argument("--batch-size", type=int, default=0, help="the set's own by default")
    parser.add_argument("--cold", action="store_true", help="evict files before each epoch")
    parser.add_argument("--install", action="store_true", help="make environments for peers")
    parser.add_argument("--epochs-of", type=int, default=0, help="samples of an epoch; all")
    parser.add_argument("--folder", type=Path, help="where files stay; a temporary one by default")
    parser.add_argument(
        "--passes", type=int, default=1, help="epochs in turns whose median is a round's rate"
    )
    parser.add_argument("--cpu", action="store_true", help="with --against: by CPU seconds")
    parser.add_argument("--against", type=Path, help="another checkout, run in turns with this one")
    arguments = parser.parse_args()
    if arguments.device:
        from iobench.torch.device import find_accelerator

        find_accelerator(arguments.device, option="--device")
    chosen = [
        name
        for name, (_, needs, _) in CONTENDERS.items()
        if (name in ON_DEVICE) == bool(arguments.device)
        and (not arguments.against or {*needs} & {"iobench.loaders.ring", "iobench.torch"})
    ]
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        contenders = []
        for name in arguments.only or chosen:
            if name in OF_FIELDS and arguments.which != "ens":
                continue
            python = interpreter(name, folder, install=arguments.install)
            reason = "" if python else f"not installed: all of {', '.join(CONTENDERS[name][1])}"
            if python:
                roots = {"": ROOT}
                if arguments.against:  # each reads what it wrote: a store has a version
                    roots = {"this": ROOT, "other": arguments.against.resolve()}
                twins = [
                    Contender(
                        name, python, arguments.which, folder / own, arguments.device, root,
                        by_cpu=arguments.cpu,
                    )
                    for own, root in roots.items()
                ]  # fmt: skip
                reason = next(filter(None, (one.start() for one in twins)), "")
            if reason:
                left_out[name] = reason
                print(f"left out: {name} ({reason})")
            else:
                contenders.extend(twins)
        n_samples = arguments.epochs_of or SETS[arguments.which][1]
        rng = random.Random(0)
        for number in range(arguments.rounds * arguments.passes + 1):
            order = rng.sample(range(SETS[arguments.which][1]), n_samples)
            for each in in_turns(contenders, number, paired=arguments.against is not None):
                try:
                    each.epoch(order, arguments)
                except Failed as error:
                    if number or arguments.against:
                        raise SystemExit(f"{each.name} failed: {error}") from None
                    left_out[each.name] = str(error)
                    print(f"left out: {each.name} ({error})")
                    contenders.remove(each)
            if not number and not arguments.cold and not arguments.compute:
                for each in contenders:  # the first warms the page cache and every library up
                    each.rates.clear()
                    each.waits.clear()
                    each.seconds.clear()
        figures = {each.name: {"GBps": statistics.median(each.rates)} for each in contenders}
        if arguments.against:
            figures = print_ratios(contenders, arguments.rounds, arguments.passes)
        elif arguments.compute:
            print_waits(contenders, arguments.compute)
        else:
            goals = COLD_GOALS if arguments.cold else GOALS[arguments.which]
            goals = DEVICE_GOALS if arguments.device else goals
            state = "evicted before each epoch" if arguments.cold else "warm"
            print_rates(contenders, goals, f"{arguments.which}, random order, {state}")
        if arguments.cold:
            least = min(min(each.evicted) for each in contenders)
            print(f"evicted before each epoch: {least:.1%} of the pages or more")
        for each in contenders:
            each.close()
    if arguments.json:
        arguments.json.write_text(json.dumps({"rates": figures, "left_out": left_out}, indent=1))


if __name__ == "__main__":
    try:
        main()
    except IobenchError as error:
        sys.exit(str(error))
