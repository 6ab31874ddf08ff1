"""Loops that time their own waits beside what iobench says: python tests/benchmarks/schedules.py.

Each schedule is a script that looks at the clock itself before and after it gets a batch, and runs
under `iobench run`. Beside each other: the share of its loops that the script waited and that the
report's JSON says (`!`: more than 5 points apart); the same after the start, for the headline
(without the first epoch, else the first tenth of the steps); what a generator between loader and
loop takes, own and said; the stage that by construction makes the loop wait and the one said;
whether waits by stage add up in nanoseconds. Exit code 1: a share is off, or a sum not exact.

    --only NAME     this schedule (repeatable); --list: all, with the stages that make them wait
    --keep FOLDER   keep runs and reports there
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from known_times import Samples, burn, spend
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WITHIN = 5.0
SIZES = [list(range(9 * n, 9 * n + size)) for n, size in enumerate((1, 12, 3, 7, 2, 9) * 7)]
LOCK, KNOWN = multiprocessing.Lock(), set[int]()  # of readers, and of a worker's cache


class Clock:
    """What a script knows of its own turns: waited, between loader and loop, all (ns)."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, int, int]] = []
        self.epochs: list[int] = []
        self.waited = self.between = self.began = self.asked = 0

    def begin(self) -> None:
        self.epochs.append(len(self.turns))
        self.began = self.asked = time.perf_counter_ns()

    def ask(self) -> None:
        self.asked = time.perf_counter_ns()

    def got(self) -> None:
        self.waited += time.perf_counter_ns() - self.asked

    def turn(self) -> None:
        now = time.perf_counter_ns()
        self.turns.append((self.waited - self.between, self.between, now - self.began))
        self.waited, self.between, self.began, self.asked = 0, 0, now, now

    def shares(self) -> list[float]:
        """Return per cent of the loops: waited, waited after the start, and between."""
        later = self.epochs[1] if len(self.epochs) > 1 else max(len(self.turns) // 10, 1)
        waited, between, took = map(sum, zip(*self.turns, strict=True))
        late, _, late_took = map(sum, zip(*self.turns[later:], strict=True))
        return [100 * waited / took, 100 * late / late_took, 100 * between / took]


class Together(Samples):
    def __getitems__(self, numbers: list[int]) -> list[int]:
        return list(map(self.__getitem__, numbers))


class Stream(Samples, IterableDataset):
    """A generator that calls methods: of so many samples a worker."""

    def __iter__(self) -> Iterator[int]:
        sizes = self.n if isinstance(self.n, tuple) else (self.n,) * 2
        for number in range(sizes[get_worker_info().id]):
            sample = self.read(number)
            self.decode(number)
            yield sample

    def __len__(self) -> int:
        return 10**6


def by_thread(loader: Iterable[Any]) -> Iterator[Any]:
    """Return the batches of a loader, which a thread walks ahead."""
    batches = queue.Queue[Any](4)

    def walk() -> None:
        for batch in itertools.chain(loader, [None]):
            batches.put(batch)

    threading.Thread(target=walk, daemon=True).start()
    return iter(batches.get, None)


class Model:
    def __init__(self) -> None:
        self.model: Any = torch.nn.Linear(1, 1)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self, batch: Any, step_ms: float) -> None:
        self.model(torch.as_tensor(batch).float().reshape(-1, 1)[:1]).sum().backward()
        spend(step_ms)
        self.optimiser.step()
        self.optimiser.zero_grad()


Extra = Callable[[int, Model, Clock], None]
Schedule = tuple[str, Callable[[Clock], None]]


def loop(walk: Any, own: Clock, step_ms: float, *more: Extra, most: int = -1) -> None:
    """One epoch; walk gives what is iterated, more is what else the body of the loop does."""
    model = Model()
    own.begin()
    batches = enumerate(walk() if callable(walk) else walk, 1)  # ended after the last look
    for number, batch in batches:
        own.got()
        model.step(batch[0] if isinstance(batch, tuple) else batch, step_ms)
        for function in more:
            function(number, model, own)
        own.turn()
        if number == most:
            return
    own.got()
    own.turn()


def load(data: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, num_workers=workers, **{"batch_size": 4, **options})


def of(stages: str, data: Any, step_ms: float, *more: Extra, **options: Any) -> Schedule:
    """Return a schedule of epochs over one loader: by a thread, or of so many batches at most."""
    thread, most = options.pop("thread", False), options.pop("most", -1)
    n_epochs = options.pop("n_epochs", 1)

    def train(own: Clock) -> None:
        loader = load(data, **options)
        for _ in range(n_epochs):
            walk = partial(by_thread, loader) if thread else loader
            loop(walk, own, step_ms, *more, most=most)
            time.sleep(1.2 * ("persistent_workers" in options))

    return stages, train


def three() -> list[DataLoader[Any]]:
    """Return three loaders of which the first is the slow one."""
    sizes = ((160, 20), (400, 2), (300, 5))
    return [load(Samples(n, read, 0), 1, batch_size=2) for n, read in sizes]


def cold_first_epoch(own: Clock) -> None:
    for epoch in range(6):
        loop(load(Samples(80, 2 if epoch else 40)), own, 12)


def future(own: Clock) -> None:
    coming: list[Any] = []
    pool, batches = ThreadPoolExecutor(1), iter(())

    def ask() -> Any:
        nonlocal batches
        if not coming:
            batches = iter(load(Samples(240, 8), 0))
            coming.append(pool.submit(next, batches, None))
        coming.append(pool.submit(next, batches, None))
        return coming.pop(0).result()

    loop(iter(ask, None), own, 25)


def asyncio_ahead(own: Clock) -> None:
    async def train() -> None:
        model, batches = Model(), iter(load(Samples(240, 8), 0))
        coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
        own.begin()
        while (batch := await coming) is not None:
            own.got()
            coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
            await asyncio.to_thread(spend, 25)
            model.step(batch, 1)
            own.turn()

    asyncio.run(train())


def child_process(own: Clock) -> None:
    batches: Any = multiprocessing.Queue(4)

    def feed() -> None:
        for batch in itertools.chain(load(Samples(320, 8), 0), [None]):
            batches.put(batch if batch is None else batch.tolist())

    multiprocessing.Process(target=feed, daemon=True).start()
    loop(iter(batches.get, None), own, 25)


def by_hand(own: Clock) -> None:
    batches: list[Iterator[Any]] = []

    def ask() -> Any:
        batches.extend([] if batches else map(iter, three()[:2]))
        next(batches[1])
        return next(batches[0], None)

    loop(iter(ask, None), own, 12)


def copying(own: Clock) -> None:
    def copied(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
        for batch in loader:
            began = time.perf_counter_ns()
            spend(20)
            own.between += time.perf_counter_ns() - began
            yield batch

    loop(copied(load(Samples(320, 10))), own, 10)


def validation(own: Clock) -> None:
    validating = load(Samples(24, 10))

    def validate(number: int, model: Model, own: Clock) -> None:
        if number % 10 == 0:
            model.model.eval()
            own.ask()
            for batch in validating:
                own.got()
                with torch.no_grad():
                    model.model(batch[:1].float())
                own.ask()
            own.got()
            model.model.train()

    loop(load(Samples(320, 5)), own, 20, validate)


def save(number: int, model: Model, own: Clock) -> None:
    if number % 10 == 0:
        file = SimpleNamespace(write=lambda data: spend(50) or len(data), flush=lambda: None)
        torch.save(model.model.state_dict(), file)


def locked(_: int) -> float:
    with LOCK:
        return spend(9) or 0


def unless_known(number: int) -> float:
    new = number // 2 not in KNOWN
    KNOWN.add(number // 2)
    return 30 * new


def preloaded(own: Clock) -> None:
    batches = list(load(Samples(240, 8)))
    for _ in range(5):
        loop(batches, own, 8)


def tiny_samples(own: Clock) -> None:
    own.begin()
    for _ in load(range(100_000), 0, batch_size=8):
        own.got()
        own.turn()


def tf_map(own: Clock) -> None:
    import tensorflow as tf

    def stage(milliseconds: float) -> Callable[[Any], Any]:
        return lambda it: tf.numpy_function(lambda n: spend(milliseconds) or n, [it], tf.int64)

    data = tf.data.Dataset.range(300).map(stage(40), 3).map(stage(12), 3)
    own.begin()
    for _ in data.batch(2).prefetch(1):
        own.got()
        spend(8)
        own.turn()


def grain_threads(own: Clock) -> None:
    import grain.python as grain

    data = grain.MapDataset.range(400).map(Samples(400, 8).__getitem__)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    loop(data.batch(4).to_iter_dataset(options), own, 8)


def two_ranks(own: Clock) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one = torch.ones(1)
    data = Samples(240, 20 if dist.get_rank() else 4)
    loop(load(data, 1), own, 25, lambda *_: dist.all_reduce(one))
    dist.destroy_process_group()


def torchdata_nodes(own: Clock) -> None:
    from torchdata import nodes

    numbers = nodes.IterableWrapper(range(400))
    mapped = nodes.ParallelMapper(numbers, Samples(400, 8).__getitem__, num_workers=2)
    batched = nodes.Mapper(nodes.Batcher(mapped, 4), torch.as_tensor)
    loop(nodes.Loader(nodes.Prefetcher(batched, 2)), own, 12)


def np_load(own: Clock) -> None:
    np.save("samples.npy", np.zeros(2_000_000, "f4"))
    loop(map(np.load, ["samples.npy"] * 160), own, 8)


def slow_number(number: int) -> int:
    return spend(4) or number


def slow_collate(samples: list[int]) -> torch.Tensor:
    spend(40)
    return torch.as_tensor(samples)


# With the stages that make the loop wait; "-": none.
SCHEDULES: dict[str, Schedule] = {
    "tails": of("read", Samples(400, lambda n: 4 if n % 25 else 300), 12),
    "slow_first_worker": of("read", Samples(240, lambda _: 5 if get_worker_info().id else 30), 12),
    "slow_file": of("read", Samples(300, lambda n: 100 if n // 6 == 20 else 6), 6, n_epochs=2),
    "cold_first_epoch": ("read startup", cold_first_epoch),
    "workers_over_cores": of("cpu_wait decode", Samples(240, 2, 12, burn), 5, workers=6),
    "prefetch_thread": of("read", Samples(320, 8), 25, workers=0, thread=True),
    "background": of("read", Samples(480, 8), 24, thread=True),
    "future": ("read", future),
    "asyncio": ("read", asyncio_ahead),
    "child_process": ("read", child_process),
    "loop_preprocesses": of("-", Samples(320, 8), 5, lambda *_: spend(30)),
    "variable_batches": of("read", Samples(400, 6), 12, batch_size=1, batch_sampler=SIZES),
    "zipped": ("read", lambda own: loop(lambda: zip(*three()[:2], strict=False), own, 12)),
    "three_zipped": ("read", lambda own: loop(lambda: zip(*three(), strict=False), own, 12)),
    "by_hand": ("read", by_hand),
    "copying": ("read", copying),
    "getitems": of("read fused", Together(400, 8), 12),
    "uneven_shards": of("read", Stream((40, 280), 10), 12),
    "generator": of("read", Stream(160, 10), 12),
    "endless": of("read", Stream(10**6, 10), 6, n_epochs=5, most=30),
    "breaks": of("read startup", Samples(400, 8), 10, n_epochs=6, most=10),
    "pauses": of("read", Samples(100, 8), 12, n_epochs=4, persistent_workers=True),
    "validation": ("startup read", validation),
    "checkpoint": of("read", Samples(320, 8), 10, save),
    "slow_sampler": of("sampler", Samples(400, 3, 1), 6, sampler=map(slow_number, range(400))),
    "locked_reads": of("read", Samples(320, locked, 2), 12, workers=3),
    "cache_restarts": of("read startup", Samples(80, unless_known, 2), 10, n_epochs=5),
    "preloaded": ("-", preloaded),
    "alternating": of(
        "read decode",
        Samples(400, lambda n: 22 - n // 4 % 2 * 20, lambda n: 2 + n // 4 % 2 * 20),
        6,
    ),
    "tiny_samples": ("sampler fused collate", tiny_samples),
    "tf_map": ("read", tf_map),
    "grain": ("read", grain_threads),
    "two_ranks": ("read", two_ranks),
    "torchdata_nodes": ("read", torchdata_nodes),
    "np_load": ("read", np_load),
    "collate": of("collate", Samples(320, 2, 1), 10, collate_fn=slow_collate),
}


def run_recorded(name: str, folder: Path) -> str:
    """Run a schedule under `iobench run`; return why that went wrong, or nothing."""
    folder.mkdir(parents=True)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [*(ranks if name == "two_ranks" else []), str(Path(__file__).absolute())]
    main = "import sys; from iobench.cli import main; sys.exit(main())"
    asked = ["run", "--no-report", "--out", "run", "--json", "report.json", "--", sys.executable]
    command = [sys.executable, "-P", "-c", main, *asked, "-W", "ignore", *script, "--train", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-2]


def rows(name: str, folder: Path) -> Iterator[tuple[str, bool]]:
    """Return a schedule's lines of the table, one a rank, and whether each holds."""
    if failed := run_recorded(name, folder):
        yield f"{name:20} {failed[:79]}", False
        return
    runs = json.loads((folder / "report.json").read_text())["runs"]
    for rank, path in enumerate(sorted(folder.glob("own-*.json"))):
        *own, between = json.loads(path.read_text())
        run = runs[min(rank, len(runs) - 1)]
        parts = [part for part in (run, run["steady"], run["recurring"], run["validation"]) if part]
        waits = [(sum((part["exposed_ns"] or {}).values()), part["wait_ns"] or 0) for part in parts]
        exact = all(total == wait for total, wait in waits)
        said = [part["wait_fraction"] for part in (run, run["diagnosis"])]
        stages, top = SCHEDULES[name][0], run["diagnosis"]["top_stage"] or "-"
        line = f"{name + f' {rank}' * (len(runs) > 1):20}"
        off = []
        for truth, share in zip(own, said, strict=True):
            off.append(share is None or abs(100 * share - truth) > WITHIN)
            line += f"{truth:7.1f}{'-' if share is None else f'{100 * share:.1f}':>6}"
            line += "!" if off[-1] else " "
        known = run["between_ns"] or ({"": None} if between else {})
        if known:
            share = None if None in known.values() else sum(known.values())
            share = share and share / (run["wall_ns"] - run["own_ns"])
            off.append(share is None or abs(100 * share - between) > WITHIN)
            line += f"{between:7.1f}{'-' if share is None else f'{100 * share:.1f}':>6}"
            line += "!" if off[-1] else " "
        else:
            line += " " * 14
        line += f"   {stages:16}{top:14}{' ' if top in stages.split() else '!'} "
        yield line + ("exact" if exact else "NOT EXACT"), exact and not off[0] and not any(off[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=SCHEDULES, metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name:20} {stages}" for name, (stages, _) in SCHEDULES.items()))
        return 0
    if asked.train:
        torch.set_num_threads(1)
        own = Clock()
        SCHEDULES[asked.train][1](own)
        Path(f"own-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(own.shares()))
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    print(f"{'per cent':20}   wait  said   later  said between  said   stage{'said':>15}")
    held = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as made:
        for name in asked.only or SCHEDULES:
            for line, holds in rows(name, (asked.keep or Path(made)).absolute() / name):
                print(line, flush=True)
                held.append(holds)
    print(f"{held.count(False)} of {len(held)} loops: more than 5 points off, or not exact")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
