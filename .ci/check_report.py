"""Checks the main job's report: ``check_report.py IOBENCH RUNS`` reads the newest run as JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def faults(runs: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the runs of a report."""
    found = [] if runs else ["the report has no runs"]
    for run in runs:
        for name, part in (("whole run", run), ("steady state", run["steady"])):
            if part is None:
                found.append(f"there is no {name}")
                continue
            exposed_ns = sum(part["exposed_ns"].values())
            if exposed_ns != part["wait_ns"]:
                found.append(f"{name}: {exposed_ns} ns exposed, {part['wait_ns']} ns waited")
        if run["stand_in"] is not True:
            found.append("the report does not say that the files are a stand-in")
        if run["batches"] < 1 or not run["verdict"]:
            found.append("no batch was measured, or there is no verdict")
        if run["lost_spans"] or run["missing_workers"]:
            found.append(f"{run['lost_spans']} spans lost, missing {run['missing_workers']}")
    return found


def main(iobench: str, runs_folder: str) -> int:
    """Print what was checked; return 1 if something is wrong."""
    newest = max(Path(runs_folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    command = [iobench, "report", str(newest), "--json"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    runs = json.loads(text)["runs"]
    found = faults(runs)
    for run in runs:
        print(
            f"report of {run['dataset']} ({run['format']}): {run['batches']} batches, "
            f"{run['wall_ns'] / 1e9:.1f} s, waited {run['wait_ns'] / 1e9:.3f} s; {run['verdict']}"
        )
    print("\n".join(found) or "the report adds up")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
