"""What digests of samples cost: XXH3 on batches as large and as small as the applications' are.

    python tests/benchmarks/digests.py

Prints, for batches whose memory is not in the CPU's cache: bytes per second, time per sample, and
the share of the application's published training step that it would take on the host. Three
shapes: ENS-10 (one sample of 23.9 MB), radiation columns as A3 has them (512 samples of 8 arrays,
4.4 kB each), as rows of a batch and one by one, which is what PyTorch's workers have.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.recording.clocks import now_ns
from iobench.recording.digests import DigestLog

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
N_BATCHES = 6
"""Batches taken by turns: together larger than caches."""
ENS10_STEP_NS = 21_120_000
"""MAELSTROM D2.3, table 4: U-Net, PyTorch 1.12.1, A100 40 GB, medians of forward and backward."""


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    generator = np.random.default_rng(0)
    large = [
        {"field": generator.random((1, 23_913_120 // 4), dtype="f4")} for _ in range(N_BATCHES)
    ]
    small = [
        {f"v{number}": generator.random((512, 138), dtype="f4") for number in range(8)}
        for _ in range(N_BATCHES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = DigestLog(Path(folder))
        show("ENS-10, a batch of 1 x 23.9 MB", large, 1, lambda b: log.add_batch(0, 0, [0], b, 1),
             ENS10_STEP_NS)  # fmt: skip
        numbers = range(512)
        show("A3-like, rows of a batch of 512", small, 512,
             lambda b: log.add_batch(0, 0, numbers, b, 512))  # fmt: skip
        rows = [[{name: a[i] for name, a in batch.items()} for i in range(512)] for batch in small]
        show("A3-like, 512 samples one by one", rows, 512,
             lambda b: log.add_samples(0, 0, numbers, b))  # fmt: skip
        log.close()


def show(
    what: str,
    batches: list[object],
    n_samples: int,
    note: Callable[[object], None],
    step_ns: int | None = None,
) -> None:
    """Print the median over rounds of all batches, one after the other."""
    first = batches[0][0] if isinstance(batches[0], list) else batches[0]
    nbytes = sum(array.nbytes for array in first.values())  # type: ignore[attr-defined]
    nbytes *= n_samples if isinstance(batches[0], list) else 1
    spent = []
    for _ in range(ROUNDS):
        for batch in batches:
            start = now_ns()
            note(batch)
            spent.append(now_ns() - start)
    median = statistics.median(spent)
    share = "" if step_ns is None else f", {100 * median / step_ns:.1f} % of the published step"
    print(
        f"{what}: {nbytes / median:.1f} GB/s, {median / n_samples / 1e3:.2f} us a sample, "
        f"{median / 1e6:.2f} ms a batch{share}"
    )


if __name__ == "__main__":
    main()
