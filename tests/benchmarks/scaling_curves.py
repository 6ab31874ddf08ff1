"""Scaling curves beside those of an event simulation: python scaling_curves.py RUNS.

``tests/golden/scaling_curves.json`` has the steps of recorded runs (RUNS/NAME/run) on 1 to 128
ranks, as simulated from event to event with storage shared at each moment, for several bandwidths.
Printed are the points that differ by more than 3 %. It fails where storage is not slower than a
rank's own reads and more than 1 point in 20 differs so, or any by more than 20 %; and where a step
without a bound differs at all. Takes 10 s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from iobench.analysis.run import Run
from iobench.findings.scaling import SharedStorage, rank_demand, scaling_curve

CURVES = Path(__file__).parents[1] / "golden" / "scaling_curves.json"
MOST, OFTEN, FARTHEST = 0.03, 0.05, 0.2


def main(runs: Path) -> int:
    """Print what differs; return 1 if that is more than may."""
    errors = []
    free_equal = True
    for name, stored in json.loads(CURVES.read_text()).items():
        case, _, run = name.partition("/")
        path = runs / case / "run"
        demand = rank_demand(Run(path / run if (path / run).is_dir() else path))
        for curve in stored["curves"]:
            bytes_per_s, points = curve["bytes_per_s"], curve["points"]
            storage = SharedStorage(bytes_per_s=bytes_per_s)
            is_slower = bytes_per_s is not None and bytes_per_s < stored["own_bytes_per_s"]
            simulated = scaling_curve(demand, storage, [point[0] for point in points]).points
            for point, (ranks, step_ns, free_ns) in zip(simulated, points, strict=True):
                free_equal &= abs(point.free_step_ns - free_ns) <= 1
                error = point.step_ns / step_ns - 1
                if not is_slower:
                    errors.append(abs(error))
                if abs(error) > MOST:
                    print(f"{name:36} {(bytes_per_s or 0) / 1e6:8.0f} MB/s {ranks:4} ranks "
                          f"{100 * error:+6.1f} %{' (slower)' * is_slower}")  # fmt: skip
    n_beyond = sum(error > MOST for error in errors)
    print(f"{n_beyond} of {len(errors)} points where storage is not slower than a rank's reads "
          f"differ by more than {100 * MOST:.0f} %, at most by {100 * max(errors):.0f} %; steps "
          f"without a bound are {'equal' if free_equal else 'NOT equal'}")  # fmt: skip
    return int(n_beyond > OFTEN * len(errors) or max(errors) > FARTHEST or not free_equal)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
