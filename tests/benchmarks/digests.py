"""What digests of samples cost: XXH3 on batches as large and as small as the applications' are.

    python tests/benchmarks/digests.py

Prints, for batches whose memory is not in the CPU's cache: bytes per second, time per batch, and
the share of the application's published training step that it would take on the host. Two shapes:
ENS-10 (one sample of 23.9 MB), radiation columns as A3 has them (512 samples of 8 arrays).
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
    from numpy.typing import NDArray

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
        large_nbytes, small_nbytes = large[0]["field"].nbytes, 8 * small[0]["v0"].nbytes
        show("ENS-10, 1 x 23.9 MB", large_nbytes, large, log, ENS10_STEP_NS)
        show("A3-like, 512 samples", small_nbytes, small, log)
        log.close()


def show(
    what: str,
    nbytes: int,
    batches: list[dict[str, NDArray[np.float32]]],
    log: DigestLog,
    step_ns: int | None = None,
) -> None:
    """Print the median over rounds of all batches, one after the other."""
    spent = []
    for _ in range(ROUNDS):
        for batch in batches:
            start = now_ns()
            log.add(0, 0, batch, 1)
            spent.append(now_ns() - start)
    median = statistics.median(spent)
    share = "" if step_ns is None else f", {100 * median / step_ns:.1f} % of the published step"
    print(f"{what}: {nbytes / median:.1f} GB/s, {median / 1e6:.2f} ms a batch{share}")


if __name__ == "__main__":
    main()
