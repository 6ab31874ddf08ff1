"""How fast a run becomes a trace and a table, and how large these are: python exports.py.

Makes profiles of so many spans, as four loading processes would have left them (read and decode of
each sample, hand-over and wait of each batch), and writes them in each format. Each writing is a
process of its own, so that its peak memory is its own.

    python tests/benchmarks/exports.py                      100,000 and 1,000,000 spans
    python tests/benchmarks/exports.py --spans 20000        fewer
    python tests/benchmarks/exports.py --json figures.json  the figures as JSON as well
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

FORMATS = {"trace": "run.json", "trace, compressed": "run.json.gz", "Parquet": "run.parquet"}
WALL_NS = 1_795_000_000_000_000_000


def make_profile(n_spans: int) -> Any:
    """Return a profile of about so many spans: reads and decodes of samples by four workers."""
    from many_spans import many_spans
    from schedules import on_machine

    return on_machine(many_spans(n_spans), wall_ns=WALL_NS)


def measure(n_spans: int, name: str, folder: Path) -> dict[str, Any]:
    """Write a profile in one format; return what it took."""
    from iobench.analysis.run import Run
    from iobench.report.timeline.arrow_table import write_parquet
    from iobench.report.timeline.chrome_trace import write_trace

    profile = make_profile(n_spans)
    path = folder / FORMATS[name]
    if name == "Parquet":
        import pyarrow.parquet  # noqa: F401  # what importing it takes is no matter of spans
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, cpu = time.perf_counter(), time.process_time()
    if name == "Parquet":
        write_parquet(path, [Run(profile)])
    else:
        write_trace(path, [Run(profile)])
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "format": name,
        "spans": len(profile.spans),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "spans_per_s": len(profile.spans) / seconds,
        "nbytes": path.stat().st_size,
        "more_memory_nbytes": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=[*FORMATS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    figures = []
    for n_spans in arguments.spans:
        for name in arguments.formats:
            with tempfile.TemporaryDirectory() as folder:
                if arguments.one:
                    print(json.dumps(measure(n_spans, name, Path(folder))))
                    continue
                command = [sys.executable, __file__, "--one", "--spans", str(n_spans)]
                done = subprocess.run(
                    [*command, "--formats", name], check=True, capture_output=True, text=True
                )
            row = json.loads(done.stdout)
            figures.append(row)
            print(
                f"{row['spans']:>9,} spans  {name:<18} {row['seconds']:6.2f} s"
                f" ({row['cpu_seconds']:5.2f} s CPU)  {row['spans_per_s']:>9,.0f} spans/s"
                f"  {row['nbytes']:>12,} B ({row['nbytes'] / row['spans']:5.1f} B a span)"
                f"  {row['more_memory_nbytes'] / 1e6:6.0f} MB more memory"
            )
    if arguments.json is not None and not arguments.one:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
