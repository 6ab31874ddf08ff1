#!/usr/bin/env python3
"""A long recording at full speed: what its spans take at most, and what a report of it takes.

``long_run.py [--seconds 1200] [--workers 2]`` trains on samples of no work with torch's DataLoader,
every sample recorded, looks at the span files each half second, and reports the run. Fails where
the files take more than IOBENCH_KEEP, or the report over 10 s of CPU or 500 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINING = """
import sys, time
import torch, iobench
from torch.utils.data import TensorDataset
from iobench.torch import DataLoader
folder, seconds, workers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
end = time.monotonic() + seconds
data = TensorDataset(torch.arange(100_000))
loader = DataLoader(data, batch_size=16, num_workers=workers, persistent_workers=workers > 0)
with iobench.record(folder, detail="sample"):
    while time.monotonic() < end:
        for _ in loader:
            if time.monotonic() > end:
                break
"""


def main() -> None:
    """Record, report, and say what both took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=int, default=64_000_000, help="IOBENCH_KEEP, in bytes")
    options = parser.parse_args()
    keep = options.keep
    environment = {**os.environ, "IOBENCH_KEEP": str(keep)}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-c", TRAINING, str(run), str(options.seconds)]
        training = subprocess.Popen([*command, str(options.workers)], env=environment)
        most = 0
        while training.poll() is None:
            most = max(most, nbytes_of(run / "spans"))
            time.sleep(0.5)
        print(f"training: exit {training.returncode}, spans took at most {most / 1e6:.0f} MB")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        report = [sys.executable, "-m", "iobench", "report", str(run)]
        # A process of its own says what it took at most, which is not that of the training.
        said = subprocess.run(
            [sys.executable, "-c", MEASURED, *report],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        memory = int(said.splitlines()[-1]) * 1024
        print("\n".join(line for line in said.splitlines() if "of " in line and "batches" in line))
        print(
            f"report: {time.monotonic() - began:.1f} s, {cpu_s:.1f} s of CPU, {memory / 1e6:.0f} MB"
        )
    if training.returncode or most > keep or cpu_s > 10 or memory > 500_000_000:
        sys.exit("over a limit: the bound, 10 s of CPU or 500 MB")


MEASURED = """
import resource, subprocess, sys
print(subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True).stdout)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def nbytes_of(folder: Path) -> int:
    """Return what the files of a folder take."""
    nbytes = 0
    for path in folder.glob("*"):
        try:
            nbytes += path.stat().st_size
        except FileNotFoundError:
            continue  # dropped meanwhile
    return nbytes


if __name__ == "__main__":
    main()
