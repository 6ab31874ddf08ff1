"""The training of `bounds.py`, in all ways that advice may name: run by it, with options as JSON.

Importing it is cheap, as workers that are spawned import it; which samples there are is told by
the environment, since conversions ask for them by ``bounds_job:samples``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (64, 64)
SAMPLES = "BOUNDS_SAMPLES"


def burn(milliseconds: float) -> None:
    """Compute for so long on a CPU, in calls that let other threads run Python."""
    end_ns = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end_ns:
        zlib.crc32(BURNED)


BURNED = bytes(200_000)


class Samples:
    """Samples that take their time: to open once for each process, to read, and to decode."""

    def __init__(self, n: int, open_ms: float, read_ms: float, decode_ms: float) -> None:
        self.n, self.times, self.file = n, (open_ms, read_ms, decode_ms), None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> dict[str, Any]:
        open_ms, read_ms, decode_ms = self.times
        if self.file is None:
            time.sleep(open_ms / 1000)
            self.file = True
        time.sleep(read_ms / 1000)
        burn(decode_ms)
        return {"field": np.full(SHAPE, number, "<f4")}


def samples() -> Samples:
    """Return the samples that the environment tells of."""
    return Samples(**json.loads(os.environ[SAMPLES]))


def batches(
    *,
    loader: str,
    store: str | None,
    workers: int,
    batch_size: int,
    context: str,
    anew: bool,
    prefetch: int,
    persistent: bool,
    in_order: bool,
) -> Any:
    """Yield, epoch by epoch, what to take batches from."""
    if loader == "fast":
        import iobench

        fast = (
            iobench.open_dataset(samples()).loader(batch_size)
            if store is None
            else iobench.loader(store, batch_size)
        )
        while True:
            yield fast
    from torch.utils.data import DataLoader

    source: Any = samples()
    if store is not None:
        import iobench

        source = iobench.open_store(store)

    def made() -> Any:
        more: dict[str, Any] = {}
        if workers:
            more = {"prefetch_factor": prefetch, "persistent_workers": persistent}
            more |= {"multiprocessing_context": context, "in_order": in_order}
        return DataLoader(source, batch_size, num_workers=workers, **more)

    kept = None if anew else made()
    while True:
        yield made() if kept is None else kept


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("options", type=Path, metavar="FILE", help="JSON, as bounds.py writes it")
    options = json.loads(parser.parse_args().options.read_text())
    step_ms, burns = options.pop("step_ms"), options.pop("burns")
    epochs = options.pop("epochs")
    import torch

    torch.set_num_threads(1)
    found = batches(**options)
    for _ in range(epochs):
        for _ in next(found):
            if burns:
                burn(step_ms)
            else:
                time.sleep(step_ms / 1000)


if __name__ == "__main__":
    main()
