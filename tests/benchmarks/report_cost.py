"""What a report costs with all its outputs: python tests/benchmarks/report_cost.py.

Writes the run directory of a made-up training (see html_size.py), has `iobench report` make every
output of it, each alone and all together, in processes of their own, and says the CPU time and
memory of each: the least of so many repeats.

    python tests/benchmarks/report_cost.py                             100,000 spans
    python tests/benchmarks/report_cost.py --iobench OTHER/bin/iobench with another checkout's

A change of the measuring side keeps "all together" of 100,000 spans within what it was before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from html_size import write_training

FILES = ["--html", "page.html", "--trace", "trace.json.gz", "--parquet", "spans.parquet"]
OUTPUTS = {
    "terminal": [],
    "terminal, full": ["--full"],
    "JSON": ["--json"],
    "Markdown": ["--markdown"],
    "page": FILES[:2],
    "trace, compressed": FILES[2:4],
    "Parquet": FILES[4:],
    "all together": ["--json", *FILES],
}


def cost(program: list[str], run: Path, words: list[str]) -> dict[str, float]:
    """Return the CPU time, the time and the most memory of one report."""
    begun = time.perf_counter()
    with subprocess.Popen(
        [*program, "report", str(run), *words], cwd=run.parent, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"report {' '.join(words)}: exit {process.returncode}")
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.perf_counter() - begun,
        "peak_nbytes": used.ru_maxrss * 1024,
    }


def main() -> None:
    """Measure each output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iobench", help="the command to time; default: of this Python")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    program = [given.iobench] if given.iobench else [sys.executable, "-m", "iobench"]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_training(run, given.spans)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in OUTPUTS}
        for _ in range(given.repeats):  # in turns: what else the machine does is of all of them
            for name, words in OUTPUTS.items():
                found[name].append(cost(program, run, words))
    for name, costs in found.items():
        figures[name] = {key: min(each[key] for each in costs) for key in costs[0]}
        told = figures[name]
        print(
            f"{name:<18} {told['cpu_s']:6.2f} s CPU  {told['wall_s']:6.2f} s"
            f"  {told['peak_nbytes'] / 1e6:6.0f} MB"
        )
    if given.json is not None:
        given.json.write_text(json.dumps({"spans": given.spans, "outputs": figures}, indent=1))


if __name__ == "__main__":
    main()
