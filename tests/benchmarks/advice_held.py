"""What advice says of eighteen training scripts, and what each change then gains.

    python tests/benchmarks/advice_held.py

The scripts are those of somebody who trains networks and does not know how advice is worked out:
samples that sleep (a network storage), decode by NumPy, wait for locks, lie in files and
caches; with 0 to 4 workers. In six nothing is to be gained from loading. Each runs once under
``iobench run``, and advice and report say what halving a stage and other settings would save. Then
each change that the script can make runs plain, in turns with the script as it is. Its row has

- *said*: the interval of the share of time saved, "to be tried", or nothing to gain;
- *gain*: what was obtained, of the time from the first epoch's start to the last one's end;
- *A/A*: half the range of runs of the script as it is, and the machine's load meanwhile;
- whether the interval holds the gain, give or take A/A; or, of nothing to gain, it is 5 % at most.

The last lines count them. ``--rounds 2``: runs of a change; ``--json FILE`` adds all figures to it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, Dataset

KEEP = {"persistent_workers": True}
WITHIN = 0.05
WORDS = {None: "", True: "inside", False: "OUTSIDE"}
LIMIT_S = 240
LOCK = multiprocessing.get_context("fork").Lock()


@dataclass(frozen=True)
class Knobs:
    """How a trial differs from the script as it is; 0 samples a chunk where none lie in chunks."""

    workers: int = 2
    prefetch: int = 2
    persistent_workers: bool = False
    in_order: bool = True
    chunks: int = 0
    half: str = ""

    def ms(self, stage: str, milliseconds: float) -> float:
        return milliseconds / 2 if stage == self.half else milliseconds

    def loader(self, dataset: Any, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
        if self.workers:
            options |= {"prefetch_factor": self.prefetch, "in_order": self.in_order}
            options["persistent_workers"] = self.persistent_workers
        return DataLoader(dataset, batch_size, num_workers=self.workers, **options)


def sleep(milliseconds: float) -> None:
    """Wait, as for a storage or an accelerator."""
    time.sleep(milliseconds / 1e3)


def locked(milliseconds: float) -> None:
    """Wait for a storage that one worker or thread reads at a time."""
    with LOCK:
        sleep(milliseconds)


def crunch(milliseconds: float) -> None:
    """Take so much CPU time in NumPy."""
    end = time.thread_time() + milliseconds / 1e3
    field = np.linspace(0, 1, 20_000, dtype="f4")
    while time.thread_time() < end:
        field = np.sqrt(field * field + 1) - 0.5


@functools.cache
def opened(path: str) -> Any:
    """Return the variable of an HDF5 file, opened once by each worker."""
    return h5py.File(path, "r")["t2m"]


class Fields(Dataset[Any]):
    """Samples whose stages take their time: pairs of work and milliseconds; or read from files."""

    def __init__(self, knobs: Knobs, n: int, files: str = "", **stages: Any) -> None:
        self.n, self.knobs, self.files, self.stages = n, knobs, files, stages
        self.cache: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.n

    def take(self, stage: str, number: int = 0) -> None:
        if stage in self.stages:
            work, milliseconds, *slow = self.stages[stage]
            many = slow[0] if slow and number % 17 == 5 else 1  # every 17th: on a slow target
            work(self.knobs.ms(stage, milliseconds * many))

    def read(self, number: int) -> Any:
        self.take("read", number)
        if self.files == "npz":
            with np.load(f"npz/{number:03}.npz") as file:
                return file["t2m"].ravel()
        if self.files == "zarr":
            return zarr.open_array("t2m.zarr", mode="r")[number].ravel()
        if self.files:
            return opened(f"{self.files}-{self.knobs.chunks}.h5")[number].ravel()
        return np.full(2000, number, "f4")

    def decode(self, field: Any) -> Any:
        self.take("decode")
        return field[:1000]

    def preprocess(self, field: Any) -> Any:
        self.take("preprocess")
        return torch.from_numpy((field - 100) / 50)

    def __getitem__(self, number: int) -> Any:
        return self.preprocess(self.decode(self.read(number)))


class Cached(Fields):
    """Each worker keeps what it has read."""

    def __getitem__(self, number: int) -> Any:
        if number not in self.cache:
            self.cache[number] = super().__getitem__(number)
        return self.cache[number]


def stack(milliseconds: float, samples: list[Any]) -> Any:
    """Return a batch of fields that are padded on the way."""
    crunch(milliseconds)
    return torch.stack(samples)


def train(
    knobs: Knobs, loader: Any, epochs: int, step: Any, *,
    augment: float = 0, save_every: int = 0, validation: Any = None,
) -> float:  # fmt: skip
    """Return the seconds of a training whose step takes its time, here or on an accelerator."""
    model = torch.nn.Linear(1000, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    start = time.perf_counter()
    for _ in range(epochs):
        for number, batch in enumerate(loader, 1):
            if augment:
                crunch(knobs.ms("augment", augment))
            optimizer.zero_grad()
            model(batch).mean().backward()
            step[0](step[1])
            optimizer.step()
            if save_every and number % save_every == 0:
                torch.save(model.state_dict(), "checkpoint.pt")
                sleep(500)
        if validation is not None:
            with torch.no_grad():
                for batch in validation:
                    model(batch)
                    step[0](step[1] / 2)
    return time.perf_counter() - start


def tf_data(knobs: Knobs) -> float:
    """Train on a tf.data pipeline whose reads are hidden."""
    import tensorflow as tf

    def read(number: Any) -> Any:
        sleep(knobs.ms("read", 8))
        return np.full(1000, number, "f4")

    samples = tf.data.Dataset.range(240).map(
        lambda number: tf.ensure_shape(tf.numpy_function(read, [number], tf.float32), (1000,)),
        num_parallel_calls=knobs.workers,
    )
    weights = tf.Variable(tf.zeros((1000, 1)))
    batches = samples.batch(4).prefetch(knobs.prefetch)
    start = time.perf_counter()
    for batch in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch @ weights)
        weights.assign_sub(1e-6 * tape.gradient(loss, weights))
        sleep(70)
    return time.perf_counter() - start


class Script(NamedTuple):
    """A training script, its settings, the stages it can halve, and what settings are tried."""

    run: Callable[[Knobs], float]
    knobs: Knobs
    halves: tuple[str, ...] = ()
    settings: tuple[dict[str, Any], ...] = ()
    nothing: bool = False


def tries(*workers: int, prefetch: int = 4, **other: Any) -> tuple[dict[str, Any], ...]:
    """Return settings that are tried, one at a time."""
    changes: list[dict[str, Any]] = [{"workers": number} for number in workers]
    changes += [{"prefetch": prefetch}] if prefetch else []
    return (*changes, *({name: value} for name, value in other.items()))


def fields(kind: type[Fields], n: int, *step: Any, epochs: int = 1, **stages: Any) -> Any:
    """Return the training of a network on samples of a kind, given a trial's settings."""
    loop = {name: stages.pop(name) for name in ("augment", "save_every") if name in stages}
    options = {name: stages.pop(name) for name in ("shuffle", "worker_init_fn") if name in stages}

    def run(knobs: Knobs) -> float:
        return train(knobs, knobs.loader(kind(knobs, n, **stages), **options), epochs, step, **loop)

    return run


SCRIPTS = {
    "network": Script(
        fields(Fields, 480, sleep, 10, read=(sleep, 16), decode=(crunch, 3)),
        Knobs(), ("read", "decode"), tries(1, 3, 4)),
    "no workers": Script(
        fields(Fields, 160, sleep, 25, epochs=2, read=(sleep, 9), preprocess=(crunch, 3)),
        Knobs(0), ("read", "preprocess"), tries(1, 2, prefetch=0)),
    "zarr with four workers": Script(
        fields(Fields, 96, sleep, 12, epochs=4, files="zarr", read=(sleep, 40),
               preprocess=(crunch, 3)),
        Knobs(4, persistent_workers=True), ("preprocess",), tries(2, 8)),
    "slow targets": Script(
        fields(Fields, 480, sleep, 14, shuffle=True, read=(sleep, 6, 20), decode=(crunch, 1)),
        Knobs(), ("read",), tries(3, 4, in_order=False)),
    "a batch in the way": Script(
        fields(Fields, 480, sleep, 24, shuffle=True, read=(sleep, 3, 60)),
        Knobs(3), (), tries(prefetch=0, in_order=False)),
    "lock of all workers": Script(
        fields(Fields, 400, sleep, 8, read=(locked, 10), preprocess=(crunch, 3)),
        Knobs(), ("read", "preprocess"), tries(1, 3, 4)),
    "gzip chunks": Script(
        fields(Fields, 96, sleep, 10, files="gzip", shuffle=True, preprocess=(crunch, 4)),
        Knobs(chunks=16), ("preprocess",), tries(1, 3, chunks=1)),
    "npz": Script(
        fields(Fields, 96, sleep, 10, epochs=3, files="npz", shuffle=True, preprocess=(crunch, 8)),
        Knobs(1), ("preprocess",), tries(2, 3, **KEEP)),
    "cache in workers": Script(
        fields(Cached, 64, sleep, 10, epochs=5, read=(sleep, 30), decode=(crunch, 2)),
        Knobs(), ("read", "decode"), tries(3, **KEEP)),
    "short epochs": Script(
        fields(Fields, 40, sleep, 20, epochs=8, read=(sleep, 8),
               worker_init_fn=lambda _: sleep(350)),
        Knobs(), ("read",), tries(1, 3, **KEEP)),
    "slow collate": Script(
        lambda k: train(k, k.loader(
            Fields(k, 400, read=(sleep, 5)),
            collate_fn=functools.partial(stack, k.ms("collate", 30))), 1, (sleep, 8)),
        Knobs(1), ("collate", "read"), tries(2, 3)),
    "augmentation in the loop": Script(
        fields(Fields, 320, sleep, 15, augment=25, read=(sleep, 8)),
        Knobs(), ("augment", "read"), tries(3)),
    "hidden": Script(
        fields(Fields, 280, sleep, 65, read=(sleep, 8), decode=(crunch, 0.5)),
        Knobs(), ("read", "decode"), tries(1, 3), nothing=True),
    "computing": Script(
        lambda k: train(k, k.loader(torch.rand(480, 1000), 8, shuffle=True), 2, (crunch, 35)),
        Knobs(0), (), tries(1, 2, prefetch=0), nothing=True),
    "checkpoints": Script(
        fields(Fields, 240, sleep, 40, save_every=12, read=(sleep, 8)),
        Knobs(), ("read",), tries(1, 3), nothing=True),
    "validation": Script(
        lambda k: train(
            k, k.loader(Fields(k, 80, read=(sleep, 6), preprocess=(crunch, 0.5))), 3, (sleep, 60),
            validation=k.loader(Fields(k, 40, read=(sleep, 4)))),
        Knobs(persistent_workers=True), ("read", "preprocess"), tries(1, 3),
        nothing=True),
    "contiguous": Script(
        fields(Fields, 96, sleep, 60, epochs=3, files="contiguous", shuffle=True,
               preprocess=(crunch, 1)),
        Knobs(1, persistent_workers=True), ("preprocess",), tries(2), nothing=True),
    "tf.data": Script(tf_data, Knobs(), ("read",), tries(4), nothing=True),
}  # fmt: skip
"""The schedules, by name."""


def write_data() -> None:
    """Write what the scripts read."""
    noise = np.random.default_rng(0).normal(size=(96, 2, 181, 360))
    fields = np.round(280 + noise.cumsum(axis=3), 1).astype("f4")
    for chunk in (1, 16):
        with h5py.File(f"gzip-{chunk}.h5", "w") as file:
            layout = {"chunks": (chunk, *fields.shape[1:]), "compression": "gzip"}
            file.create_dataset("t2m", data=fields, **layout, compression_opts=1)
    with h5py.File("contiguous-0.h5", "w") as file:
        file["t2m"] = fields
    Path("npz").mkdir()
    for number, field in enumerate(fields):
        np.savez_compressed(f"npz/{number:03}.npz", t2m=field)
    zarr.create_array("t2m.zarr", data=fields, chunks=(1, *fields.shape[1:]))


def seconds_of(script: Script, **change: Any) -> float:
    """Return what a plain trial takes, in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    knobs = replace(script.knobs, **change)
    process = context.Process(target=lambda: there.send(script.run(knobs)))
    process.start()
    try:
        if not here.poll(LIMIT_S):
            raise SystemExit(f"{knobs}: no end within {LIMIT_S} s")
        return float(here.recv())
    finally:
        process.join(5)
        process.kill()


def recorded(name: str) -> dict[str, Any]:
    """Return what is said of a script from one recorded run."""
    run = f"run-{time.time_ns()}"

    def command(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "iobench", *words],
            check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S,
        ).stdout  # fmt: skip

    options = ("--out", run, "--no-report", "--quiet")
    command("run", *options, "--", sys.executable, str(Path(__file__).resolve()), "--one", name)
    (report,) = json.loads(command("report", run, "--json"))["runs"]
    advice = json.loads(command("advise", run, "--json", "--quiet"))
    return {"advice": advice, "replay": report["replay"], "verdict": report["verdict"]}


def change_of(proposal: dict[str, Any], knobs: Knobs) -> dict[str, Any]:
    """Return the knobs that a proposal turns; none where the script has no such knob."""
    settings = dict(proposal["settings"])
    if "chunks" in proposal["levers"] and knobs.chunks:
        settings = {"chunks": 1}
    values = {"True": True, "False": False}
    known = settings.keys() <= Knobs.__annotations__.keys()
    return {name: values.get(value, value) for name, value in settings.items() if known}


def said_of(change: dict[str, Any], outcome: dict[str, Any]) -> tuple[str, Any, Any]:
    """Return what advice or the report says of a change, and both ends of its interval."""
    knobs, advice = Knobs(**outcome["knobs"]), outcome["advice"]
    gains = ((outcome["replay"] or {}).get("gains") or {}).items()
    claims = [({"half": stage}, gain) for stage, gain in gains]
    proposals = (*advice["changes"], *advice["to_measure"])
    claims += [(change_of(proposal, knobs), proposal) for proposal in proposals]
    for changed, claim in claims:
        if changed == change:
            low, high = claim["low_fraction"], claim["high_fraction"]
            if low is None and high is None:
                return "to be tried", None, None
            ends = [f"{100 * end:.0f}" for end in (low, high) if end is not None]
            return f"{' to '.join(ends)} %{' or more' if high is None else ''}", low, high
    refused = [each for each in advice["ruled_out"] if change_of(each, knobs) == change]
    return (f"no: {refused[0]['reason']}" if refused else "not said"), None, None


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Record a script, and run it plain with each change, in turns."""
    script = SCRIPTS[name]
    outcome: dict[str, Any] = {"script": name, "knobs": asdict(script.knobs), **recorded(name)}
    changes = [*({"half": stage} for stage in script.halves), *script.settings]
    for kind in ("changes", "to_measure", "ruled_out"):
        for proposal in outcome["advice"][kind]:
            change = change_of(proposal, script.knobs)
            changes += [change] if change and change not in changes else []
    times: list[list[float]] = [[] for _ in changes]
    loads, plain = [os.getloadavg()[0]], [seconds_of(script)]
    for number in range(rounds):
        for place in range(len(changes))[:: -1 if number % 2 else 1]:
            times[place].append(seconds_of(script, **changes[place]))
        plain.append(seconds_of(script))
        loads.append(os.getloadavg()[0])
    pairs = list(zip(changes, times, strict=True))
    return outcome | {"plain_s": plain, "times_s": pairs, "loads": loads}


def rows_of(outcome: dict[str, Any]) -> Iterator[tuple[bool, str, bool, bool | None, str]]:
    """Yield of each change: whether a stage is halved, what is said, an interval, held, a row."""
    plain = outcome["plain_s"]
    middle, noise = statistics.median(plain), (max(plain) - min(plain)) / 2 / min(plain)
    for change, times in outcome["times_s"]:
        said, low, high = said_of(change, outcome)
        gain = 1 - statistics.median(times) / middle
        held = None
        if said.startswith("no:"):
            held = gain <= WITHIN + noise
        elif (low, high) != (None, None):
            ends = (gain if low is None else low), (gain if high is None else high)
            held = ends[0] - noise <= gain <= ends[1] + noise
        what = ", ".join(f"{name} {value}" for name, value in change.items())
        row = (
            f"{outcome['script']:<25}{what:<38}{said:<20}{100 * gain:>7.1f}{100 * noise:>7.1f}"
            f"{statistics.mean(outcome['loads']):>6.1f}  {WORDS[held]}"
        )
        yield "half" in change, said, None not in (low, high), held, row


def print_counts(outcomes: list[dict[str, Any]]) -> None:
    """Print how much of it holds."""
    rows = [row for outcome in outcomes for row in rows_of(outcome)]
    for title, is_half in (("halved stages", True), ("settings", False)):
        part = [row for row in rows if row[0] is is_half]
        claims = [held for _, said, _, held, _ in part if held is not None and "%" in said]
        closed = sum(both for _, _, both, _, _ in part)
        print(f"{title}: {len(part)}, {len(claims)} with an interval ({closed} with both ends); "
              f"{sum(claims)} hold the gain")  # fmt: skip
    refused = [held for _, said, _, held, _ in rows if said.startswith("no:")]
    print(f"nothing to gain: {len(refused)}; {refused.count(False)} gained over 5 % beyond A/A")
    idle = [each for each in outcomes if SCRIPTS[each["script"]].nothing]
    right = sum(each["advice"]["outcome"].startswith("nothing") for each in idle)
    print(f"scripts where nothing is to be gained: {len(idle)}; said of {right}")


def main() -> None:
    """Run the scripts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scripts", default=",".join(SCRIPTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=lambda name: Path(name).absolute())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    if arguments.one:
        print(SCRIPTS[arguments.one].run(SCRIPTS[arguments.one].knobs))
        return
    print(f"{'script':<25}{'change':<38}{'said':<20}{'gain %':>7}{'A/A %':>7}{'load':>6}")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)  # imports much, before trials
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_data()
        for name in arguments.scripts.split(","):
            outcomes.append(measure(name, arguments.rounds))
            print(f"-- {name}: {outcomes[-1]['advice']['sentence']}")
            for *_, row in rows_of(outcomes[-1]):
                print(row, flush=True)
            if arguments.json:
                with arguments.json.open("a") as file:
                    print(json.dumps(outcomes[-1]), file=file)
    print_counts(outcomes)


if __name__ == "__main__":
    main()
