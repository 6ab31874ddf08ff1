"""One schedule of referee.py in real time: trains, and writes what its own clock saw.

Samples sleep or burn CPU; the loop reads the clock before and after it gets a batch.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from known_times import Samples, burn, spend
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Clock:
    """What a script knows of its own loops: how long they waited, and took; ns."""

    def __init__(self) -> None:
        self.waited = self.took = self.between = self.began = self.asked = 0

    def begin(self) -> None:
        self.began = self.asked = time.perf_counter_ns()

    def ask(self) -> None:
        self.asked = time.perf_counter_ns()

    def got(self) -> None:
        self.waited += time.perf_counter_ns() - self.asked

    def turn(self) -> None:
        self.asked = now = time.perf_counter_ns()
        self.took += now - self.began
        self.began = now


class Stream(Samples, IterableDataset):
    """A generator whose workers have different numbers of samples."""

    def __iter__(self) -> Iterator[int]:
        for number in range(self.n[get_worker_info().id]):
            sample = self.read(number)
            yield self.decode(sample)

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
        batch = batch[0] if isinstance(batch, tuple) else batch
        self.model(torch.as_tensor(batch).float().reshape(-1, 1)[:1]).sum().backward()
        spend(step_ms)
        self.optimiser.step()
        self.optimiser.zero_grad()


def loop(walk: Any, own: Clock, step_ms: float, *more: Callable[..., Any], most: int = -1) -> None:
    """One epoch; walk gives what is iterated, more is what else the body of the loop does."""
    model = Model()
    own.begin()
    for number, batch in enumerate(walk() if callable(walk) else walk, 1):
        own.got()
        model.step(batch, step_ms)
        for function in more:
            function(number, model, own)
        own.turn()
        if number == most:
            return
    own.got()
    own.turn()


def load(data: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, num_workers=workers, **{"batch_size": 4, **options})


def of(stages: str, data: Any, step_ms: float, **options: Any) -> tuple[str, Any]:
    """Return a schedule of epochs over one loader: by a thread, or of so many batches at most."""
    thread, most = options.pop("thread", False), options.pop("most", -1)
    n_epochs = options.pop("n_epochs", 1)

    def train(own: Clock) -> None:
        loader = load(data, **options)
        for _ in range(n_epochs):
            loop(partial(by_thread, loader) if thread else loader, own, step_ms, most=most)

    return stages, train


def future(own: Clock) -> None:
    coming: list[Any] = []
    pool, batches = ThreadPoolExecutor(1), iter(())

    def ask() -> Any:
        nonlocal batches
        if not coming:
            batches = iter(load(Samples(200, 8), 0))
            coming.append(pool.submit(next, batches, None))
        coming.append(pool.submit(next, batches, None))
        return coming.pop(0).result()

    loop(iter(ask, None), own, 25)


def child_process(own: Clock) -> None:
    batches: Any = multiprocessing.Queue(4)

    def feed() -> None:
        for batch in itertools.chain(load(Samples(240, 8), 0), [None]):
            batches.put(batch if batch is None else batch.tolist())

    multiprocessing.Process(target=feed, daemon=True).start()
    loop(iter(batches.get, None), own, 25)


def copying(own: Clock) -> None:
    """A generator copies between loader and loop: no wait for a loader."""

    def copied(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
        for batch in loader:
            own.got()
            spend(20)
            yield batch
        own.got()

    model = Model()
    own.begin()
    for batch in copied(load(Samples(240, 20))):
        model.step(batch, 10)
        own.turn()
    own.turn()


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

    loop(load(Samples(240, 5)), own, 20, validate)


def preloaded(own: Clock) -> None:
    batches = list(load(Samples(160, 8)))
    for _ in range(4):
        loop(batches, own, 8)


def tf_map(own: Clock) -> None:
    import tensorflow as tf

    def stage(milliseconds: float) -> Callable[[Any], Any]:
        return lambda it: tf.numpy_function(lambda n: spend(milliseconds) or n, [it], tf.int64)

    data = tf.data.Dataset.range(240).map(stage(40), 3).map(stage(12), 3)
    own.begin()
    for _ in data.batch(2).prefetch(1):
        own.got()
        spend(8)
        own.turn()


def two_ranks(own: Clock) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one = torch.ones(1)
    data = Samples(200, 20 if dist.get_rank() else 4)
    loop(load(data, 1), own, 25, lambda *_: dist.all_reduce(one))
    dist.destroy_process_group()


def slow_number(number: int) -> int:
    return spend(4) or number


# With the stages that make the loop wait; none: it does not.
SCHEDULES: dict[str, tuple[str, Callable[[Clock], None]]] = {
    "burning CPU": of("cpu_wait decode", Samples(200, 2, 12, burn), 5, workers=6),
    "thread without workers": of("read", Samples(240, 8), 25, workers=0, thread=True),
    "thread with workers": of("", Samples(800, 4), 26, thread=True),
    "futures": ("read", future),
    "a child loads": ("read", child_process),
    "a generator copies": ("read", copying),
    "validation": ("startup read", validation),
    "slow sampler": of("sampler", Samples(320, 3, 1), 6, sampler=map(slow_number, range(320))),
    "breaks": of("read startup", Samples(400, 8), 10, n_epochs=6, most=10),
    "uneven shards": of("read", Stream((30, 200), 10), 12),
    "tf.data": ("read opaque", tf_map),
    "ranks": ("read", two_ranks),
    "kept in memory": ("", preloaded),
}


def main() -> None:
    """Train one schedule: its NAME."""
    torch.set_num_threads(1)
    own = Clock()
    SCHEDULES[sys.argv[1]][1](own)
    told = {"waited": own.waited, "took": own.took}
    Path(f"own-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
