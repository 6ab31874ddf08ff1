"""Loaders beside limits and peers: python tests/benchmarks/loaders.py [--set radiation].

Contenders stay in processes of their own and take turns, epoch by epoch, each in the same random
order; the loop touches every page of a batch. Limits are measured in the same rounds: pread of the
same extents into buffers used again, and memcpy. ``--compute 21`` lets a step of 21 ms follow each
batch and tells the wait; ``--cold`` evicts a contender's files before each of its epochs, in a
fresh process. Libraries that are not installed are left out and named. With ``--device cuda``
batches end on the device, where the loop touches them: other contenders, beside copies of pinned
buffers as the limit.

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
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from harness import ROOT, Failed, Served, median_interval, print_goal, print_table
from loaders_contenders import ALL, CONTENDERS, ON_DEVICE, SETS

from iobench.errors import IobenchError

HERE = Path(__file__).parent
RINGS = ("ring_numpy", "ring_zarr", "ring_tfrecord")
LIBRARIES = (
    "zarr_python", "zarr_with_zarrs", "tensorstore_batched", "h5py_in_process", "tf_data",
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
    "device": (
        ("of copies alone", ("ring_device",), ("limit_copies",), 0.8),
        ("against torch's pin_memory", ("ring_device",), ("data_loader_pinned_2",), 1.0),
        ("against readers to the device", ("ring_device",), ("dali_numpy_gpu", "kvikio_store"), 1),
    ),
    "cold": (
        ("against np.load in-process", RINGS, ("np_load_in_process",), 1.0),
        ("against any with 2 workers", RINGS, ("np_load_2_workers", "data_loader_tfrecord_2"), 1.3),
    ),
}
"""What, the slowest of whom, against the fastest of whom (or in GB/s), at least how much."""
LEAST_RATIO, LEAST_LOW = 0.97, 0.95
"""Of a checkout to the one before: the median of rounds, and the lower end of its interval."""


@dataclass
class Contender:
    """One way of loading, in its process, and what its epochs took."""

    name: str
    folder: Path
    root: Path
    arguments: argparse.Namespace
    served: Served | None = None
    rates: list[float] = field(default_factory=list)
    waits: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evicted: list[float] = field(default_factory=list)

    def start(self) -> Served:
        """Start the process."""
        script = self.root / HERE.relative_to(ROOT) / "loaders_contenders.py"
        paths = (str(self.root), str(self.root / "converters"))
        self.served = Served(
            [script, self.name, self.arguments.which, self.folder],
            {
                "PYTHONPATH": os.pathsep.join(paths),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "LOADERS_DEVICE": self.arguments.device,
            },
        )
        self.served.answer()
        return self.served

    def epoch(self, order: list[int]) -> None:
        """Let it load an epoch and keep what it says."""
        served, cold = self.served or self.start(), self.arguments.cold
        before_s = served.cpu_s()
        found = served.ask(
            {
                "order": order,
                "cold": cold,
                "compute_s": self.arguments.compute / 1000,
                "batch_size": self.arguments.batch_size,
            }
        )
        spent_s = served.cpu_s() - before_s if self.arguments.cpu else found["seconds"]
        self.rates.append(found["nbytes"] / 1e9 / max(spent_s, 0.01))
        self.waits.append(found["waits"])
        self.seconds.append(found["seconds"])
        self.evicted.append(found.get("evicted", 0.0))
        if cold:
            self.close()

    def forget(self) -> None:
        """Forget what was measured so far."""
        for kept in (self.rates, self.waits, self.seconds):
            kept.clear()

    def close(self) -> None:
        """End the process."""
        if self.served is not None:
            self.served.close()
            self.served = None


def print_rates(contenders: list[Contender], arguments: argparse.Namespace) -> None:
    """Print a row for each contender, then the goals."""
    state = "evicted before each epoch" if arguments.cold else "warm"
    print(f"\n{arguments.which}, random order, {state}")
    rates = {each.name: statistics.median(each.rates) for each in contenders}
    rows = [
        [
            each.name,
            *(f"{n:.2f}" for n in (rates[each.name], min(each.rates), max(each.rates))),
            f"{1e3 * statistics.median(wait for waits in each.waits for wait in waits):.3f}",
        ]
        for each in contenders
    ]
    print_table(["", "GB/s", "lowest", "highest", "median wait, ms"], rows)
    print()
    kind = "device" if arguments.device else "cold" if arguments.cold else arguments.which
    for what, who, whom, goal in GOALS[kind]:
        others = [rates[name] for name in whom if name in rates]
        if {*who} <= {*rates} and (others or not whom):
            reached = min(rates[name] for name in who) / max(others or [1.0])
            print_goal(what, reached, goal)


def print_ratios(
    contenders: list[Contender], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Print the ratio of this checkout's rate to the other's by round; return the medians."""
    middle = statistics.harmonic_mean if arguments.cpu else statistics.median
    passes, n_epochs = arguments.passes, arguments.rounds * arguments.passes

    def by_round(one: Contender) -> list[float]:
        rates = one.rates[-n_epochs:]
        return [middle(rates[at : at + passes]) for at in range(0, n_epochs, passes)]

    unit = "samples by CPU second" if arguments.cpu else "samples/s"
    print(f"\n{unit} of this checkout / of the other, by round")
    figures = {}
    for ours, other in zip(contenders[::2], contenders[1::2], strict=True):
        ratios = [a / b for a, b in zip(by_round(ours), by_round(other), strict=True)]
        median, low, high = median_interval(ratios)
        rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
        missed = "" if median >= LEAST_RATIO and low >= LEAST_LOW else "   MISSED"
        print(f"{ours.name:26}{median:6.3f} ({low:.3f} to {high:.3f})   {rounds}{missed}")
        figures[ours.name] = {"ratio": median, "low": low, "high": high}
    return figures


def print_waits(contenders: list[Contender], compute_ms: float) -> None:
    """Print the waits beside a step: per batch, of the steady state, of the first epoch."""
    print(f"\nwait for a batch at a step of {compute_ms} ms")
    rows = []
    for each in contenders:
        steady = [wait for waits in each.waits for wait in waits[3:]]
        share = sum(steady) / (sum(steady) + len(steady) * compute_ms / 1e3)
        median, highest = 1e3 * statistics.median(steady), 1e3 * max(steady)
        whole = sum(each.waits[0]) / each.seconds[0]
        rows.append([each.name, f"{median:.3f}", f"{highest:.3f}", f"{share:.2%}", f"{whole:.2%}"])
    print_table(["", "median, ms", "highest, ms", "steady share", "whole share"], rows)


def started(arguments: argparse.Namespace, folder: Path) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders that serve, twins beside each other, and why others do not."""
    ways = ON_DEVICE if arguments.device else CONTENDERS
    chosen = [
        name
        for name, way in ways.items()
        if not arguments.against or {*way.needs} & {"iobench.loaders.ring", "iobench.torch"}
    ]
    roots = {"": ROOT}
    if arguments.against:  # each reads what it wrote: a store has a version
        roots = {"this": ROOT, "other": arguments.against.resolve()}
    contenders: list[Contender] = []
    left_out: dict[str, str] = {}
    for name in arguments.only or chosen:
        if name in OF_FIELDS and arguments.which != "ens":
            continue
        twins = [Contender(name, folder / own, root, arguments) for own, root in roots.items()]
        try:
            for twin in twins:
                twin.start()
            contenders += twins
        except Failed as error:
            left_out[name] = str(error)
    for name, reason in left_out.items():
        print(f"left out: {name} ({reason})")
    return contenders, left_out


def main() -> None:
    """Write the files, let all take turns, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=SETS, default="ens", dest="which")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=ALL)
    parser.add_argument("--device", default="", help="where batches are to be: cuda, cuda:1")
    parser.add_argument("--json", type=Path, help="where figures are kept")
    parser.add_argument("--compute", type=float, default=0, help="of a step, in ms")
    parser.add_argument("--batch-size", type=int, default=0, help="the set's own by default")
    parser.add_argument("--cold", action="store_true", help="evict files before each epoch")
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
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        contenders, left_out = started(arguments, folder)
        n_samples = SETS[arguments.which][1]
        rng = random.Random(0)
        for number in range(arguments.rounds * arguments.passes + 1):
            order = rng.sample(range(n_samples), arguments.epochs_of or n_samples)
            turns = list(contenders)
            if arguments.against and number % 2 == 0:  # the two of each pair swap
                turns = [contenders[index ^ 1] for index in range(len(contenders))]
            for each in turns:
                try:
                    each.epoch(order)
                except Failed as error:
                    if number or arguments.against:
                        raise SystemExit(f"{each.name} failed: {error}") from None
                    left_out[each.name] = str(error)
                    print(f"left out: {each.name} ({error})")
                    contenders.remove(each)
            if not number and not arguments.cold and not arguments.compute:
                for each in contenders:  # the first warms the page cache and every library up
                    each.forget()
        figures: dict[str, Any] = {
            each.name: {"GBps": statistics.median(each.rates)} for each in contenders
        }
        if arguments.against:
            figures = print_ratios(contenders, arguments)
        elif arguments.compute:
            print_waits(contenders, arguments.compute)
        else:
            print_rates(contenders, arguments)
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
