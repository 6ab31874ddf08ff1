"""The five MAELSTROM applications: a plain loop, the real plugin's loading, iobench's.

    python tests/benchmarks/applications.py --store-dir DIR [--only ens10,yr] [--repeats 3]

For each application one stand-in of at least 200 MB and one command, `iobench profile NAME
--pipeline own,upstream,climetlab`, in which the pipelines take turns: once without a compute
stage, for the samples a second each can load, and once with the published step, for what of the
loading stays exposed (one run). The page cache is left as it is, warm after the first turn, so
nothing here is a disk's speed. Steady state where a run has one. Medians over the repeats, least
and most in brackets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Application:
    """One profile: what to load, and for how many batches a turn is worth waiting for."""

    key: str
    dataset: str
    batches: int
    options: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ("own", "upstream", "climetlab")

    def part(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a run that is compared."""
        return run if run["steady"] is None else run["steady"]


# Few batches where a sample of upstream's or the plugin's takes a tenth of a second or more.
APPLICATIONS = (
    Application("yr", "maelstrom-yr", 30),
    Application("radiation", "maelstrom-radiation", 1),
    Application("radiation-tf", "maelstrom-radiation-tf", 40, pipelines=("own", "upstream")),
    Application("ens10", "maelstrom-ens10", 16),
    Application("downscaling", "maelstrom-downscaling-tier2", 12),
    Application("power", "maelstrom-power", 2, ("--batch-size", "8")),
)
COLUMNS = ("pipeline", "samples/s", "to upstream", "read/used", "exposed, published step")


def main() -> int:
    """Run what was asked for and print a table an application."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store-dir", type=Path, required=True, help="stand-ins are kept there")
    parser.add_argument("--only", default="", help="applications, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of iobench's own reader")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    unknown = only - {each.key for each in APPLICATIONS}
    if unknown:
        parser.error(f"no application {', '.join(sorted(unknown))}")
    for application in APPLICATIONS:
        if not only or application.key in only:
            measure(application, arguments)
    return 0


def measure(application: Application, arguments: argparse.Namespace) -> None:
    """Print the table of one application."""
    # Unmeasured: makes the stand-in and whatever a pipeline prepares once.
    list(runs(application, arguments, compute="none", batches=1))
    rates: dict[str, list[float]] = {}
    read: dict[str, list[float]] = {}
    exposed: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        for run in runs(application, arguments, compute="none", batches=application.batches):
            part = application.part(run)
            rates.setdefault(run["pipeline"], []).append(part["samples_per_s"])
            if run["read_nbytes"] is not None and run["nbytes"]:
                per_byte = run["read_nbytes"] / run["nbytes"]
                read.setdefault(run["pipeline"], []).append(per_byte)
    for run in runs(application, arguments, compute="published", batches=application.batches):
        exposed.setdefault(run["pipeline"], []).append(100 * application.part(run)["wait_fraction"])
    print(f"\n{application.dataset}, {application.batches} batches a turn")
    rows = [COLUMNS]
    for name in application.pipelines:
        pairs = zip(rates[name], rates["upstream"], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        rows.append(
            (
                name,
                spread(rates[name]),
                spread(ratios),
                spread(read.get(name, [])),
                f"{exposed[name][0]:.3g} %",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        print(f"  {line}", flush=True)


def runs(
    application: Application, arguments: argparse.Namespace, *, compute: str, batches: int
) -> Iterator[dict[str, Any]]:
    """Yield the result of each pipeline of one interleaved profile, whole runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("iobench")), "profile", application.dataset,
            "--pipeline", ",".join(application.pipelines),
            "--workers", str(arguments.workers),
            "--store-dir", str(arguments.store_dir),
            "--batches", str(batches),
            "--compute", compute,
            "--out", str(Path(folder, "run")),
            "--json", *application.options,
        ]  # fmt: skip
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    yield from json.loads(done.stdout)["runs"]


def spread(values: Sequence[float]) -> str:
    """Return the median of values with their range."""
    if not values:
        return "unknown"
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    raise SystemExit(main())
