"""The rows of gpu_day.py, each a function in a process of its own: ROW ARGUMENT ASKED.

A function returns its figures. What is not here it raises as `NotAvailable`, what does not hold as
`Wrong`; every other exception is a failure too. `Asked.device` is the device, or the tests'
stand-in for one (``--fake``), for those that can do with it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import io
import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import iobench
from iobench.errors import IobenchError, OptionError
from iobench.files.atomic import write_atomically
from iobench.recording.clocks import now_ns, wait_until_ns
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
MS = 1_000_000
TOLERANCE = 0.05
SMALL = ("small", 24, 4, (("fields", (7, 36, 72)),))
"""A set of loaders_contenders.py for the stand-in, whose link is slow."""


class NotAvailable(Exception):
    """What is not here, in words."""


class Wrong(Exception):
    """What does not hold; with the figures that say so."""

    def __init__(self, why: str, **figures: Any) -> None:
        super().__init__(why)
        self.figures = figures


# -- the device ---------------------------------------------------------------------------------


class RealDevice:
    """The accelerator that torch has here, and kernels of known length on it.

    Nothing is allocated before a kernel is asked for: a device that serves one process at a time
    is left to the commands that rows start.
    """

    def __init__(self) -> None:
        import torch

        from iobench.torch.device import find_accelerator

        try:
            # Where there is none, asking for CUDA's tells why.
            found = find_accelerator("auto") or find_accelerator("cuda")
        except OptionError as error:
            reason = str(error).partition(": ")[2].partition("; leave it out")[0]
            raise NotAvailable(reason) from None
        assert found is not None
        self.accelerator: Any = found
        self.name = found.name
        self.on = f"{found.name} {found.facts()['title']}"
        self._torch, self._api = torch, torch.get_device_module(found.device)
        self._ran: list[tuple[Any, Any]] = []

    def _spin(self, units: int) -> None:
        if self.accelerator.device.type == "cuda":
            self._torch.cuda._sleep(units)  # clock cycles
            return
        for _ in range(units):
            self._torch.mm(self._square, self._square)

    def _timed_ns(self, units: int) -> int:
        first = self.accelerator.mark()
        self._spin(units)
        last = self.accelerator.mark()
        self.accelerator.wait(last)
        return int(self.accelerator.between_ns(first, last))

    @cached_property
    def _square(self) -> Any:
        return self._torch.rand(256, 256, device=self.accelerator.device)

    @cached_property
    def _units_a_ns(self) -> float:
        units = 16
        while self._timed_ns(units) < 50 * MS:  # it takes its highest clock meanwhile
            units *= 2
        return units / statistics.median(self._timed_ns(units) for _ in range(5))

    def kernel(self, duration_ns: int) -> None:
        """Give it work of about that length, between two marks of its own."""
        first = self.accelerator.mark()
        self._spin(round(duration_ns * self._units_a_ns))
        self._ran.append((first, self.accelerator.mark()))

    def kernels(self, given: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield when the last kernels ran, given at these times: each after the one before."""
        free = 0
        for at_ns, marks in zip(given, self._ran[-len(given) :], strict=True):
            start = max(free, at_ns)
            free = start + self.accelerator.between_ns(*marks)
            yield start, free

    def plain_copy_ns(self, tensor: Any) -> int:
        """Return what a copy and waiting for it take, with nothing of iobench's."""
        begun_ns = now_ns()
        tensor.to(self.accelerator.device)
        self._api.synchronize()
        return now_ns() - begun_ns

    def take_memory(self) -> Any:
        """Return all of its memory, to less than a batch."""
        self.free_memory()
        device, held = self.accelerator.device, []
        part, _ = self._api.mem_get_info()
        while part > 1 << 20:
            try:
                held.append(self._torch.empty(part, dtype=self._torch.uint8, device=device))
            except self._torch.OutOfMemoryError:
                part //= 2
        return held

    def free_memory(self) -> None:
        """Give back what nobody holds, and torch keeps."""
        gc.collect()
        self._api.empty_cache()


class FakeDevice:
    """The tests' stand-in, found as the device wherever iobench looks for one."""

    on = "a stand-in"
    name = "fake:0"

    def __init__(self) -> None:
        from fake_accelerator import FakeAccelerator

        import iobench.torch.store_loader  # noqa: F401 - who looks for a device

        self.accelerator: Any = FakeAccelerator()
        self._put = contextlib.ExitStack()
        for module in list(sys.modules.values()):
            if hasattr(module, "find_accelerator"):
                found = patch.object(module, "find_accelerator", lambda *_, **__: self.accelerator)
                self._put.enter_context(found)

    def close(self) -> None:
        """Take it away again."""
        self._put.close()
        self.accelerator.close()

    def kernel(self, duration_ns: int) -> None:
        self.accelerator.launch(duration_ns)

    def kernels(self, given: Sequence[int]) -> Iterator[tuple[int, int]]:
        pieces = [piece for piece in self.accelerator.pieces if piece.name == "kernel"]
        for piece in pieces[-len(given) :]:
            yield piece.start_ns, piece.end_ns

    def plain_copy_ns(self, tensor: Any) -> int:
        begun_ns = now_ns()
        self.accelerator.to(tensor)
        return now_ns() - begun_ns

    def take_memory(self) -> None:
        self.accelerator._memory_nbytes = 0

    def free_memory(self) -> None:
        self.accelerator._memory_nbytes = None


@dataclass
class Asked:
    """What a row is asked for."""

    data: Path
    seconds: float
    fake: bool

    @cached_property
    def device(self) -> Any:
        """The device."""
        try:
            import torch  # noqa: F401
        except ImportError:
            raise NotAvailable("torch is not installed") from None
        return FakeDevice() if self.fake else RealDevice()

    def real(self) -> Any:
        """Return the device, where a stand-in would say nothing."""
        if self.fake:
            raise NotAvailable("needs a device, no stand-in")
        return self.device


def needs(*modules: str) -> None:
    """Refuse to go on without these packages."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # nothing of what it is a part of
            found = None
        if found is None:
            raise NotAvailable(f"{name} is not installed")


def ran(command: Sequence[Any], *, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command, which fails or does not; what it printed goes to the log as well."""
    found = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    print(*command, found.stdout, found.stderr, sep="\n", flush=True)
    if bool(found.returncode) is not fails:
        lines = (found.stderr.strip() or found.stdout.strip() or "says nothing").splitlines()
        lines = [line for line in lines if "Error" in line] or lines
        what = " ".join(Path(str(word)).name for word in command[1:4])
        raise Wrong(f"{what} ended with {found.returncode}: {lines[-1]}")
    return found


IOBENCH = (sys.executable, "-m", "iobench")


# -- what the device is, its time, its link ------------------------------------------------------


def device(asked: Asked, _: str) -> dict[str, Any]:
    return dict(asked.device.accelerator.facts())


def events(asked: Asked, _: str) -> dict[str, Any]:
    """Two marks in a row, and a long kernel between two marks by both clocks."""
    accelerator = asked.device.accelerator
    asked.device.kernel(MS)  # the first is slow
    pairs, costs = [], []
    for _number in range(200):
        begun_ns = now_ns()
        first, last = accelerator.mark(), accelerator.mark()
        costs.append((now_ns() - begun_ns) / 2)
        pairs.append((first, last))
    accelerator.wait(last)
    apart = [accelerator.between_ns(*pair) for pair in pairs]
    steps = sorted({value for value in apart if value})
    by_clock = []
    for _number in range(3):
        first = accelerator.mark()
        accelerator.wait(first)
        begun_ns = now_ns()
        asked.device.kernel(300 * MS)
        last = accelerator.mark()
        accelerator.wait(last)
        by_clock.append(accelerator.between_ns(first, last) / (now_ns() - begun_ns))
    figures = {
        "mark_us": statistics.median(costs) / 1e3,
        "apart_ns": statistics.median(apart),
        "least_step_ns": min((b - a for a, b in itertools.pairwise(steps)), default=None),
        "device_to_host_clock": statistics.median(by_clock),
    }
    if abs(figures["device_to_host_clock"] - 1) > TOLERANCE:
        raise Wrong("the device's clock and the host's differ", **figures)
    return figures


def exposure(asked: Asked, _: str) -> dict[str, Any]:
    """Sleep for a batch, give the device a kernel, and never wait for it."""
    figures = {"slow_loader": _idle(asked, 30, 20), "fast_loader": _idle(asked, 10, 30)}
    for name, found in figures.items():
        off = abs(found["told_ms"] - found["truth_ms"])
        if off > TOLERANCE * max(found["truth_ms"], found["waits_ms"]):
            raise Wrong(f"{name}: the report's idle time is off by {off:.1f} ms", **figures)
    slow = figures["slow_loader"]
    if abs(slow["told_ms"] / slow["truth_ms"] - 1) > TOLERANCE:
        raise Wrong("slow_loader: off by more than 5 %", **figures)
    return figures


def _idle(asked: Asked, load_ms: int, kernel_ms: int) -> dict[str, Any]:
    from iobench.findings.devices import device_exposure
    from iobench.torch import DeviceTimer

    where = _fresh(asked.data / "runs" / f"idle-{load_ms}-{kernel_ms}")
    asks, delivered = [], []
    asked.device.kernel(MS)  # the first is slow
    asked.device.accelerator.wait(asked.device.accelerator.mark())
    with iobench.record(where) as session:
        timer = DeviceTimer(clock=asked.device.accelerator)
        log = DeliveryLog(session, session.add_loader("own", "Sleeper", "sleeps"), epoch=0)
        for number in range(16):
            asks.append(now_ns())
            log.ask(number)
            wait_until_ns(now_ns() + load_ms * MS)
            log.deliver(number, maker="consumer")
            delivered.append(now_ns())
            with timer("forward"):
                asked.device.kernel(kernel_ms * MS)
        log.leave()
    found = device_exposure(iobench.open_profile(where))
    assert found is not None
    truth, free = 0, 0
    for at_ns, (start_ns, end_ns) in zip(asks, asked.device.kernels(delivered), strict=True):
        truth += max(0, start_ns - max(at_ns, free))
        free = end_ns
    return {
        "told_ms": int(found.exposed_ns.sum()) / MS,
        "truth_ms": truth / MS,
        "waits_ms": int((found.delivered_ns - found.requested_ns).sum()) / MS,
        "off_at_most_us": found.uncertainty_ns / 1e3,
    }


def parts(asked: Asked, _: str) -> dict[str, Any]:
    """Time the parts of a step, beside marks of the script's own around its forward pass."""
    import torch

    from iobench.findings.devices import device_exposure
    from iobench.torch import DeviceTimer

    device = asked.real()
    accelerator, own = device.accelerator, []
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)])
    model.to(accelerator.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    values = torch.rand(2048, 4096, device=accelerator.device)
    where = _fresh(asked.data / "runs" / "parts")
    with iobench.record(where):
        timer = DeviceTimer()
        for _number in range(100):
            first = accelerator.mark()
            with timer("forward"):
                loss = model(values).sum()
            own.append((first, accelerator.mark()))
            with timer("backward"):
                loss.backward()
            with timer("step"):
                optimizer.step()
            optimizer.zero_grad()
    found = device_exposure(iobench.open_profile(where))
    told = {} if found is None else {part: ns / MS for part, ns in found.busy_ns.items()}
    figures = {"told_ms": told, "own_forward_ms": sum(map(_between(accelerator), own)) / MS}
    if not {"forward", "backward", "step"} <= told.keys():
        raise Wrong("a part of the step is not told", **figures)
    if abs(told["forward"] / figures["own_forward_ms"] - 1) > TOLERANCE:
        raise Wrong("forward is off by more than 5 %", **figures)
    return figures


def _between(accelerator: Any) -> Callable[[tuple[Any, Any]], int]:
    return lambda marks: int(accelerator.between_ns(*marks))


def _pages(nbytes: int) -> mmap.mmap:
    """Return memory that is there."""
    pages = mmap.mmap(-1, nbytes)
    np.frombuffer(pages, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
    return pages


def copies(asked: Asked, _: str) -> dict[str, Any]:
    """Copies from pinned and from other memory that are waited for; of ten the fastest."""
    import torch

    accelerator, figures = asked.device.accelerator, {}
    sizes = (1 << 18, 1 << 22) if asked.fake else (1 << 16, 1 << 20, 1 << 24, 1 << 28)
    for nbytes in sizes:
        of_size = {}
        for name in ("pinned", "pageable"):
            pages = _pages(nbytes)
            held = accelerator.pin(pages) if name == "pinned" else None
            tensor = torch.frombuffer(pages, dtype=torch.uint8)
            took_ns = min(asked.device.plain_copy_ns(tensor) for _number in range(10))
            of_size[f"{name}_GBps"] = nbytes / took_ns
            del held
        figures[f"{nbytes >> 10}_KiB"] = of_size
    return figures


# -- the ring ------------------------------------------------------------------------------------


def _store(asked: Asked) -> Any:
    from loaders_contenders import SETS, write_files

    from iobench.stores.finished_store import open_store

    SETS["small"] = SMALL
    which = "small" if asked.fake else "ens"
    write_files("store+numpy", asked.data, which)
    return open_store(asked.data / which / "store+numpy" / "store")


def _is_right(store: Any, batch: Any, numbers: Any) -> bool:
    return all(
        np.array_equal(tensor.cpu().numpy(), np.stack([store[int(n)][name] for n in numbers]))
        for name, tensor in batch.items()
    )


def loader(asked: Asked, _: str) -> dict[str, Any]:
    """Batches held while the device is kept busy and others follow, compared at the end."""
    from iobench.torch import StoreLoader

    store, accelerator = _store(asked), asked.device.accelerator
    made = StoreLoader(store, 4, shuffle=True, device=asked.device.name)
    n_batches = nbytes = 0
    for epoch in range(2):
        held: list[tuple[Any, Any]] = []
        for place, batch in enumerate(made):
            numbers = made.order.samples(epoch, place).tolist()
            asked.device.kernel(2 * MS)  # copies are not to wait for it, nor it for them
            held.append((numbers, batch))
            nbytes += sum(tensor.nbytes for tensor in batch.values())
            if len(held) == 6:
                accelerator.wait(accelerator.mark())
                n_batches += len(held)
                if not all(_is_right(store, batch, numbers) for numbers, batch in held):
                    raise Wrong("a batch on the device has not the store's values")
                held.clear()
    made.close()
    return {"batches_equal": n_batches, "bytes": nbytes}


def memory(asked: Asked, _: str) -> dict[str, Any]:
    """Take the device's memory away, load, give it back and load again."""
    from iobench.torch import StoreLoader

    store = _store(asked)
    made = StoreLoader(store, 4, device=asked.device.name)
    next(iter(made))
    held = asked.device.take_memory()
    try:
        for _batch in made:
            pass
    except IobenchError as error:
        told = str(error)
    else:
        raise Wrong("nothing was said, though there was no memory for a batch")
    if "\n" in told:
        raise Wrong(f"said in {len(told.splitlines())} lines, not one", told=told)
    del held
    asked.device.free_memory()
    n_batches = sum(1 for _batch in made)
    if n_batches != len(made):
        raise Wrong(f"{n_batches} of {len(made)} batches came afterwards", told=told)
    return {"told": told, "batches_afterwards": n_batches}


# -- commands ------------------------------------------------------------------------------------


def _fresh(path: Path) -> Path:
    """Return a place for a run that nothing is at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    while (found := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found


def _profile(asked: Asked, *options: Any) -> tuple[Path, str]:
    """Profile ENS-10; return the run and what was printed."""
    run = _fresh(asked.data / "runs" / "profile")
    words = [
        "profile", "maelstrom-ens10", "--store-dir", asked.data, "--out", run, *options, "--json",
    ]  # fmt: skip
    if not asked.fake:
        return run, ran([*IOBENCH, *words]).stdout
    from iobench.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as out:  # where the stand-in is
        code = main([str(word) for word in words])
    if code:
        raise Wrong(f"iobench profile ended with {code}")
    return run, out.getvalue()


def _moved(run: Path, *, by_marks: bool = True) -> dict[str, Any]:
    """Return what a run tells of copies to the device: on the host, and by its marks."""
    spans = iobench.open_profile(run).spans
    found = spans[spans["kind"] == Kind.H2D]
    of_device = (found["flags"] & Flag.DEVICE) != 0
    told = {"h2d_calls": int((~of_device).sum()), "h2d_on_device": int(of_device.sum())}
    if not told["h2d_calls"] or (by_marks and not told["h2d_on_device"]):
        raise Wrong("no copies to the device are told", **told)
    took_ns = (found["end_ns"] - found["start_ns"])[of_device]
    nbytes = found["nbytes"][of_device]
    known = (nbytes > 0) & (took_ns > 0)
    rate = float(np.median(nbytes[known] / took_ns[known])) if known.any() else None
    host = found["nbytes"][~of_device]
    return told | {"h2d_bytes": int(host[host > 0].sum()), "h2d_GBps": rate}


FORMATS = ("--format", "source,tfrecord,numpy,zarr", "--batches", "100")


def data(asked: Asked, _: str) -> dict[str, Any]:
    """Write the stand-in, and the probes that later rows read."""
    asked.real()
    printed = _profile(asked, *FORMATS, "--compute", "none", "--device", "none")[1]
    return _by_format(printed, "samples_per_s")


def _by_format(printed: str, *keys: str) -> dict[str, Any]:
    figures = {}
    for each in json.loads(printed)["runs"]:
        part = each["steady"] or each
        figures[each["label"] or each["format"]] = {key: part[key] for key in keys}
    return figures


def profile(asked: Asked, framework: str) -> dict[str, Any]:
    device = asked.device if framework in ("native", "torch") else asked.real()
    needs(*{"tensorflow": ["tensorflow"], "dali": ["nvidia.dali"]}.get(framework, []))
    size, n_batches = (("--tiny",), 12) if asked.fake else ((), 100)
    run, printed = _profile(
        asked, *size, "--format", "tfrecord", "--framework", framework, "--batches", n_batches,
        "--compute", "10ms", "--device", "cuda" if asked.fake else device.name,
    )  # fmt: skip
    (document,) = json.loads(printed)["runs"]
    told = document["device"]["copies"]
    figures = _moved(run) | {"bytes_per_s": told["bytes_per_s"], "memory": told["memory"]}
    least = document["nbytes"]
    if figures["h2d_bytes"] < least:
        raise Wrong(f"{least} bytes came in {n_batches} batches", **figures)
    return figures


def missing(asked: Asked, _: str) -> dict[str, Any]:
    """Ask for what no machine has, and for whatever is there; no stand-in is needed for this."""
    asked = replace(asked, fake=False)
    common = ("--tiny", "--format", "tfrecord", "--batches", "8", "--compute", "none")
    words = ("profile", "maelstrom-ens10", "--store-dir", asked.data, *common)
    found = ran(
        [*IOBENCH, *words, "--out", _fresh(asked.data / "none"), "--device", "cuda:99"], fails=True
    )
    lines = [line for line in found.stderr.splitlines() if "cuda:99" in line]
    if len(lines) != 1 or "Traceback" in found.stderr:
        raise Wrong("cuda:99 is not refused in a line", told=found.stderr[-400:])
    run, _printed = _profile(asked, *common, "--device", "auto")
    told = json.loads((run / "run.json").read_text())
    return {"told": lines[0], "auto": told.get("device", {}).get("name") or told["no_device"]}


SCRIPTS = {
    "plain": """
data = DataLoader(Numbers(), batch_size=4, pin_memory=True)
for batch in data:
    batch = batch.to(DEVICE, non_blocking=True)
    model(batch).sum().backward()
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = model
    def training_step(self, batch, _):
        return self.inner(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)
lightning.Trainer(
    max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
).fit(Module(), DataLoader(Numbers(), batch_size=4))
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
model, optimizer, data = accelerator.prepare(model, optimizer, DataLoader(Numbers(), batch_size=4))
for batch in data:
    accelerator.backward(model(batch).sum())
    optimizer.step()
""",
}
SCRIPTS["jax"] = """
import jax
for batch in DataLoader(Numbers(), batch_size=4):
    jax.block_until_ready(jax.device_put(batch.numpy()))
"""
COMMON = """
import torch
from torch.utils.data import DataLoader, Dataset
DEVICE = "{device}"
class Numbers(Dataset):
    def __len__(self):
        return 128
    def __getitem__(self, number):
        return torch.full((1 << 18,), float(number))
model = torch.nn.Linear(1 << 18, 1)
if {moves}:
    model.to(DEVICE)
"""
N_BATCHES, BATCH_NBYTES = 32, 4 << 20


def script(asked: Asked, which: str) -> dict[str, Any]:
    """Batches of 4 MiB, 32 of them: each is a copy, with its bytes."""
    name = asked.real().name
    needs(*([] if which == "plain" else [which]))
    if which == "jax":
        asks = "import jax; print(jax.default_backend())"  # which takes the device's memory
        if ran([sys.executable, "-c", asks]).stdout.split()[-1:] == ["cpu"]:
            raise NotAvailable("jax sees no device")
    path, run = asked.data / f"moves_by_{which}.py", _fresh(asked.data / "runs" / which)
    asked.data.mkdir(parents=True, exist_ok=True)
    path.write_text(COMMON.format(device=name, moves=which == "plain") + SCRIPTS[which])
    ran([*IOBENCH, "run", "--out", run, "--", sys.executable, path])
    figures = _moved(run, by_marks=False)  # of scripts the calls are timed
    if figures["h2d_bytes"] < N_BATCHES * BATCH_NBYTES:
        raise Wrong(f"{N_BATCHES * BATCH_NBYTES} bytes are moved in batches alone", **figures)
    return figures


# -- energy --------------------------------------------------------------------------------------


def energy(asked: Asked, _: str) -> dict[str, Any]:
    """The driver's counter: how often it is renewed, and joules of waits and of computing."""
    import torch

    from iobench.analysis.run import Run
    from iobench.findings.energy import energy_of
    from iobench.recording.energy_counters import open_counters
    from iobench.recording.meter import start_meter

    place = asked.real().accelerator.device
    found = open_counters(os.environ)
    counters = [each for each in found.counters if each.source.kind == "gpu"]
    if not counters:
        raise NotAvailable("; ".join(each.reason for each in found.unreadable))
    matrix = torch.randn(8192, 8192, device=place, dtype=torch.float16)

    def load(seconds: float) -> float:
        """Return the counter's watts under load."""
        begun_ns, before_uj = now_ns(), counters[0].read_uj()
        while now_ns() - begun_ns < seconds * 1e9:
            (matrix @ matrix)[0, 0].item()
        return (counters[0].read_uj() - before_uj) * 1e3 / (now_ns() - begun_ns)

    renewed, value = [now_ns()], counters[0].read_uj()
    while now_ns() - renewed[0] < 2e9:
        if (told := counters[0].read_uj()) != value:
            value = told
            renewed.append(now_ns())
    watts, where = load(4), _fresh(asked.data / "runs" / "energy")
    with (
        iobench.record(where) as session,
        contextlib.closing(start_meter([session.run.path], energy=True, machine=False)),
    ):
        log = DeliveryLog(session, session.add_loader("own", "Sleeper", "sleeps"), epoch=0)
        for number in range(6):
            log.ask(number)
            wait_until_ns(now_ns() + 1000 * MS)
            log.deliver(number, maker="consumer")
            load(1)
        log.leave()
    found.close()
    spent = energy_of(Run(where).of_rank())
    gpu = None if spent is None else spent.kinds.get("gpu")
    figures = {
        "counter": counters[0].source.name,
        "renewal_ms": statistics.median(np.diff(renewed)) / MS if renewed[1:] else None,
        "load_w": watts,
    }
    if gpu is None or gpu.wait_j is None:
        raise Wrong("the run has no joules of the device", **figures)
    figures |= {"wait_j": gpu.wait_j, "compute_j": gpu.total_j - gpu.wait_j}
    if figures["compute_j"] <= figures["wait_j"]:
        raise Wrong("computing took no more than waiting", **figures)
    return figures


def loaders(asked: Asked, _: str) -> dict[str, Any]:
    name = asked.real().name
    figures = asked.data / "loaders.json"
    ran([
        sys.executable, HERE / "loaders.py", "--device", name, "--folder", asked.data,
        "--rounds", "3", "--json", figures,
    ])  # fmt: skip
    return dict(json.loads(figures.read_text()))


# -- one row -------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Asked, str], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        device, events, exposure, parts, copies, loader, memory, missing, data, profile,
        script, energy, loaders,
    )
}  # fmt: skip


def answer(name: str, argument: str, asked: Asked) -> dict[str, Any]:
    """Run a row and return its state, figures, and why."""
    try:
        figures = ROWS[name](asked, argument)
        state, why = "stand-in" if asked.fake and name != "missing" else "measured", ""
    except NotAvailable as error:
        state, why, figures = "not available", str(error), {}
    except Wrong as error:
        state, why, figures = "failed", str(error), error.figures
    except Exception as error:  # noqa: BLE001 - whatever it is goes into this row's line
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        state, why, figures = "failed", f"{type(error).__name__}: {first}", {}
    on = ""
    if state in ("measured", "stand-in", "failed"):
        on = asked.__dict__["device"].on if "device" in asked.__dict__ else "the CPU"
    return {"state": state, "why": why, "figures": figures, "on": on}


def main() -> None:
    """Answer for one row into the file that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("row", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("argument", metavar="ARGUMENT", help="of the row; may be empty")
    parser.add_argument(
        "asked", type=json.loads, metavar="ASKED", help="JSON, as gpu_day.py has it"
    )
    arguments = parser.parse_args()
    name, argument, words = arguments.row, arguments.argument, arguments.asked
    asked = Asked(Path(words["data"]), words["seconds"], words["fake"])
    asked.data.mkdir(parents=True, exist_ok=True)
    found = answer(name, argument, asked)
    write_atomically(Path(words["answer"]), json.dumps(found).encode())
    sys.stdout.flush()
    os._exit(0)  # how a driver lets go of its device is not of interest now


if __name__ == "__main__":
    main()
