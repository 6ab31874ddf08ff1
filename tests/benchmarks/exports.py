"""How fast a run becomes a trace and a table, and how large these are: python exports.py.

Makes profiles of so many spans, as two loading processes would have left them (open, read, decode,
preprocess and collate of each sample, hand-over and wait of each batch, and a counter), and writes
them in each format. Each writing is a process of its own, so that its peak memory is its own.

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

import numpy as np
from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))

FORMATS = {"trace": "run.json", "trace, compressed": "run.json.gz", "Parquet": "run.parquet"}
SAMPLES, STAGES = 8, 4
WALL_NS = 1_795_000_000_000_000_000


def make_profile(n_spans: int) -> Any:
    """Return a profile of about so many spans: batches of 8 samples, 4 stages for each sample."""
    from ground_truth_profiles import span_file

    from iobench.recording.kinds import Kind
    from iobench.recording.span_file import SPAN_DTYPE, Flag
    from iobench.recording.span_reader import Anchor
    from iobench.runs.reading import make_profile as joined

    n_batches = max(n_spans // (SAMPLES * STAGES + 4), 2)
    rng = np.random.default_rng(1)
    strings = dict(enumerate(["", "consumer", *(f"/data/era5/{n:05d}.nc" for n in range(500))]))
    anchors = (Anchor(0, WALL_NS), Anchor(10**12, WALL_NS + 10**12))
    files, ready = [], np.zeros(n_batches, dtype=np.int64)
    for worker in range(2):
        batches = np.arange(worker, n_batches, 2)
        n_samples = len(batches) * SAMPLES
        stages = rng.integers(50_000, 400_000, (n_samples, STAGES))
        ends = np.cumsum(stages).reshape(n_samples, STAGES)
        spans = np.zeros((n_samples, STAGES), SPAN_DTYPE)
        spans["start_ns"], spans["end_ns"] = ends - stages, ends
        spans["kind"] = [Kind.OPEN, Kind.READ, Kind.DECODE, Kind.PREPROCESS]
        spans["nbytes"] = [-1, 1_000_000, 4_000_000, 4_000_000]
        spans["cpu_ns"] = stages // 2
        spans["batch"] = np.repeat(batches, SAMPLES)[:, None]
        spans["sample"] = rng.integers(0, 100_000, (n_samples, 1))
        spans["detail"] = rng.integers(2, 502, (n_samples, 1))
        per_batch = spans.reshape(len(batches), SAMPLES * STAGES)
        collate, counter = (per_batch[:, -1:].copy() for _ in range(2))
        collate["kind"], collate["detail"], collate["sample"] = Kind.COLLATE, 0, -1
        # As long as the first open of the next batch would have to wait: nothing.
        collate["start_ns"] = collate["end_ns"]
        counter["start_ns"], counter["flags"] = counter["end_ns"], Flag.IO
        table = np.concatenate((per_batch, collate, counter), axis=1).ravel()
        ready[batches] = per_batch["end_ns"][:, -1]
        files.append(_filled(span_file(101 + worker, [], worker=worker, anchors=anchors), table,
                             strings))  # fmt: skip
    asked = np.maximum.accumulate(ready) - 200_000
    waits = np.zeros(n_batches, SPAN_DTYPE)
    waits["end_ns"] = np.maximum.accumulate(ready) + 1000 * np.arange(1, n_batches + 1)
    waits["start_ns"] = np.maximum(asked, np.append(0, waits["end_ns"][:-1]))
    waits["kind"], waits["batch"] = Kind.WAIT, np.arange(n_batches)
    waits["nbytes"], waits["cpu_ns"], waits["sample"] = -1, -1, -1
    files.append(_filled(span_file(100, [], anchors=anchors), waits, strings))
    config = {"workers": 2, "prefetch": 2, "batch_size": SAMPLES}
    return joined(Path("run"), config, files)


def _filled(file: Any, spans: Any, strings: dict[int, str]) -> Any:
    spans = spans.copy()
    spans["pieces"] = 1
    spans["sequence"] = np.arange(1, len(spans) + 1)
    threads = np.zeros(len(spans), dtype=np.int32)
    return replace(file, spans=spans, threads=threads, strings=strings)


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
