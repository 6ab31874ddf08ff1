"""A U-Net trained on ENS-10, six ways of loading it: python tests/benchmarks/unet_step.py

The model of D2.3's application A4 (three levels of 32, 64 and 128 filters, batch normalisation),
one sample a batch, on an accelerator where torch has one, else on the CPU. Each contender loads the
same samples in a random order of its own; they take turns, epoch by epoch, with one model:

* ``numpy``: a ``DataLoader`` with two workers over ``.npy`` files, as D2.3 had it;
* ``tfrecord``: a ``DataLoader`` with two workers over our TFRecord store;
* ``fast``: ``iobench.torch.StoreLoader`` over that store;
* ``fast_numpy``, ``fast_zarr``: the same over stores of these formats;
* ``fast_grib``: the same over the GRIB files (``iobench.open_dataset``), nothing converted.

Printed in the layout of D2.3's table 4, its own rows beside: seconds of epoch, batch, forward,
backward and I/O (min, mean, median, max, stdev), over all epochs. I/O is what the training loop
waits for: for the batch, and for its copy to the device. There the copy, forward (with the loss)
and backward (with the optimiser's step) are timed by events, on the CPU by the clock.

``--tiny`` takes a small grid and few filters, so that it runs anywhere in seconds: it shows that
all of it works, and no figure of it says anything of a real training. Data are a stand-in below
``--folder``, used again; without it, in a temporary folder. ``--json FILE`` keeps the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import iobench
from iobench.errors import IobenchError
from iobench.registry import find_converter, find_format
from iobench.stores import StoreRequest
from iobench.torch import StoreLoader, collate
from iobench.torch.unet import FILTERS, TINY_FILTERS, UNet
from iobench_maelstrom.ens10.dataset import PUBLISHED

N_WORKERS = 2
N_FIRST = 3
"""Batches of an epoch that are not its steady state: they fill what is read ahead."""
ROWS = ("epoch", "batch", "forward", "backward", "I/O")
COLUMNS = ("min", "mean", "median", "max", "stdev")
CONTENDERS = ("numpy", "tfrecord", "fast", "fast_numpy", "fast_zarr", "fast_grib")


class NumpyFiles(Dataset):
    """An ``.npy`` file for each array of each sample."""

    def __init__(self, folder: Path, names: tuple[str, ...], n_samples: int) -> None:
        self.folder = folder
        self.names = names
        self.n_samples = n_samples

    def write(self, samples: Any) -> None:
        """Write the files that are not there."""
        self.folder.mkdir(exist_ok=True)
        for number in range(self.n_samples):
            if not all(self.file(number, name).exists() for name in self.names):
                for name, values in samples[number].items():
                    np.save(self.file(number, name), values)

    def file(self, number: int, name: str) -> Path:
        """Return where an array is."""
        return self.folder / f"{number:05d}.{name}.npy"

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(np.load(self.file(number, name))) for name in self.names}


class HostTimer:
    """Marks of the host's clock, where all work is the host's."""

    def mark(self) -> float:
        """Return now, s."""
        return time.perf_counter()

    def finish(self) -> None:
        """Nothing is under way."""

    def between(self, start: float, end: float) -> float:
        """Return the seconds between two marks."""
        return end - start


class EventTimer:
    """Marks in the stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self.api: Any = torch.get_device_module(device)

    def mark(self) -> Any:
        """Return an event that has been put into the stream."""
        event = self.api.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        """Wait for all that is under way, as reading the loss does."""
        self.api.synchronize()

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        return start.elapsed_time(end) / 1000


@dataclass
class Times:
    """Seconds by row of the table; the waits of steady states apart."""

    rows: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ROWS})
    steady: list[tuple[float, float]] = field(default_factory=list)

    def epoch(
        self, loader: Any, names: tuple[str, str], model: nn.Module, optimiser: Any, device: Any
    ) -> None:
        """Train for an epoch; ``names`` are those of a sample's input and target."""
        timer: Any = HostTimer() if device.type == "cpu" else EventTimer(device)
        begun = asked = time.perf_counter()
        for number, batch in enumerate(loader):
            given = time.perf_counter()
            marks = [timer.mark()]
            values = batch[names[0]].to(device, non_blocking=True)
            target = batch[names[1]].to(device, non_blocking=True)
            marks.append(timer.mark())
            loss = functional.mse_loss(model(values).squeeze(1), target.reshape(values[:, 0].shape))
            marks.append(timer.mark())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            marks.append(timer.mark())
            timer.finish()
            ended = time.perf_counter()
            copy, forward, backward = (timer.between(*pair) for pair in pairwise(marks))
            io = given - asked + copy
            for name, value in zip(ROWS[1:], (ended - asked, forward, backward, io), strict=True):
                self.rows[name].append(value)
            if number >= N_FIRST:
                self.steady.append((io, ended - asked))
            del batch, values, target, loss
            asked = time.perf_counter()
        self.rows["epoch"].append(time.perf_counter() - begun)

    def table(self) -> dict[str, tuple[float, ...]]:
        """Return min, mean, median, max and stdev of each row."""
        return {
            name: (
                min(values),
                statistics.fmean(values),
                statistics.median(values),
                max(values),
                statistics.stdev(values) if len(values) > 1 else 0.0,
            )
            for name, values in self.rows.items()
            if values
        }

    def exposed(self) -> tuple[float, float]:
        """Return the share of I/O in all batches, and in those of the steady state."""
        steady = sum(batch for _, batch in self.steady)
        whole = sum(self.rows["I/O"]) / sum(self.rows["batch"])
        return whole, sum(io for io, _ in self.steady) / steady if steady else whole


def make_loaders(
    folder: Path, arguments: argparse.Namespace, device: torch.device
) -> tuple[dict[str, Any], Any]:
    """Return the contenders, and what one sample is; what they read is written first."""
    samples = iobench.open_dataset(
        "maelstrom-ens10", store_dir=folder, tiny=arguments.tiny, scale=arguments.scale
    )
    count = min(arguments.samples or len(samples), len(samples))
    samples.numbers = range(count)
    kind = f"{'tiny' if arguments.tiny else 'whole'}-{arguments.scale or 1}"
    files = NumpyFiles(folder / f"numpy-{kind}", samples.spec.names, count)
    files.write(samples)

    def stored(form: str) -> Any:
        request = StoreRequest(
            samples.dataset, samples.index, find_format(form), folder / f"{form}-{kind}-{count}",
            samples=range(count), files=samples.files,
        )  # fmt: skip
        return find_converter()(request)

    on_device = None if device.type == "cpu" else device
    stock: dict[str, Any] = {
        "batch_size": 1,
        "shuffle": True,
        "num_workers": arguments.workers,
        "pin_memory": on_device is not None,
    }
    own: dict[str, Any] = {"shuffle": True, "device": on_device}
    made = {
        "numpy": lambda: DataLoader(files, **stock),
        "tfrecord": lambda: DataLoader(stored("tfrecord"), collate_fn=collate, **stock),
        "fast": lambda: StoreLoader(stored("tfrecord"), 1, **own),
        "fast_numpy": lambda: StoreLoader(stored("numpy"), 1, **own),
        "fast_zarr": lambda: StoreLoader(stored("zarr"), 1, **own),
        "fast_grib": lambda: StoreLoader(samples, 1, **own),
    }
    return {name: made[name]() for name in arguments.contenders}, samples.spec


def printed(title: str, table: dict[str, tuple[float, ...]]) -> str:
    """Return a table as lines."""
    lines = [f"{title:38s}" + "".join(f"{name:>11s}" for name in COLUMNS)]
    for name, values in table.items():
        lines.append(f"  {name:36s}" + "".join(f"{value:11.5f}" for value in values))
    return "\n".join(lines)


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train, print, and return the figures."""
    wanted = arguments.device or torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(wanted or "cpu")
    torch.manual_seed(0)
    loaders, spec = make_loaders(folder, arguments, device)
    by_role = [[v.name for v in spec if v.role == role] for role in ("input", "target")]
    names = by_role[0][0], by_role[1][0]
    shape = spec[names[0]].shape
    model = UNet(shape[0], TINY_FILTERS if arguments.tiny else FILTERS).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    n_parameters = sum(values.numel() for values in model.parameters())
    name = "the CPU"
    if device.type != "cpu":
        name = torch.get_device_module(device).get_device_name(device)
    print(
        f"U-Net of {n_parameters / 1e6:.3f} M parameters on {name}; a sample is "
        f"{spec.nbytes / 1e6:.2f} MB, {' x '.join(map(str, shape))}"
        + (", tiny: no figure says anything of a real training" if arguments.tiny else "")
    )
    warm = torch.zeros((1, *shape), device=device)
    for _ in range(3):  # libraries choose their kernels before anything is timed
        model(warm).mean().backward()
    optimiser.zero_grad(set_to_none=True)
    times = {contender: Times() for contender in loaders}
    for _ in range(arguments.epochs):
        for contender, loader in loaders.items():
            times[contender].epoch(loader, names, model, optimiser, device)
            gc.collect()
    for loader in loaders.values():
        if isinstance(loader, StoreLoader):
            loader.close()
    figures: dict[str, Any] = {"device": name, "parameters": n_parameters, "contenders": {}}
    for title, rows in PUBLISHED.tables.items():  # about 1,512 batches an epoch
        print("\n" + printed(title, rows))
    for contender, found in times.items():
        whole, steady = found.exposed()
        print("\n" + printed(contender, found.table()))
        print(f"  I/O is {whole:.1%} of all batches, {steady:.1%} without the first {N_FIRST}")
        if isinstance(loaders[contender], StoreLoader):
            print(f"  {loaders[contender].choice}")
        figures["contenders"][contender] = {
            "rows": found.table(), "exposed": whole, "exposed_steady": steady,
        }  # fmt: skip
    return figures


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a small grid, few filters")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, help="of an epoch; all of the stand-in by default")
    parser.add_argument("--scale", type=float, help="of the stand-in, as of iobench stand-in")
    parser.add_argument("--workers", type=int, default=N_WORKERS, help="of DataLoaders")
    parser.add_argument("--device", help="cuda, xpu or cpu")
    parser.add_argument("--folder", type=Path, help="where data are kept")
    parser.add_argument("--json", type=Path, help="where figures are kept")
    parser.add_argument(
        "--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS,
    )  # fmt: skip
    arguments = parser.parse_args(given)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unet-step-")))
        folder.mkdir(parents=True, exist_ok=True)
        figures = run(arguments, folder)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return figures


if __name__ == "__main__":
    try:
        main()
    except IobenchError as error:
        sys.exit(str(error))
