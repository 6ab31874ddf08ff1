"""What the meter takes of a CPU: python tests/benchmarks/meter.py [--seconds 60].

CPU seconds of its thread in a minute, wake-ups included, of a process that does nothing else; and
bytes an hour. Exits with 1 where it takes more than 0.2 % of a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from iobench.recording.meter import MOST_OF_A_CPU, start_meter
from iobench.runs.machine_samples import read_machines


def cost(seconds: float, *, energy: bool) -> dict[str, float]:
    """Return what the meter takes."""
    with tempfile.TemporaryDirectory() as folder:
        meter = start_meter([Path(folder)], energy=energy, machine=True)
        (thread,) = (each for each in threading.enumerate() if each.name == "iobench-machine")
        (file,) = (Path(folder) / "machine").iterdir()

        def cpu_s() -> float:
            threads = psutil.Process().threads()
            (own,) = (each for each in threads if each.id == thread.native_id)
            return own.user_time + own.system_time

        begun, before_s, nbytes = time.monotonic(), cpu_s(), file.stat().st_size
        time.sleep(seconds)
        spent_s, wall_s = cpu_s() - before_s, time.monotonic() - begun
        hour = (file.stat().st_size - nbytes) / wall_s * 3600
        meter.close()
        (found,), _ = read_machines(Path(folder))
        own_ns, n_readings = int(found.values["own_cpu_ns"][-1]), len(found.time_ns) - 1
        return {
            "cpu_s_per_minute": spent_s / wall_s * 60,
            "cpu_fraction": spent_s / wall_s,
            "own_cpu_fraction": own_ns / 1e9 / wall_s,
            "reading_us": own_ns / n_readings / 1000,
            "readings": n_readings,
            "nbytes_per_hour": hour,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    found = cost(asked.seconds, energy=True)
    print(json.dumps(found))
    return int(found["own_cpu_fraction"] > 1 / MOST_OF_A_CPU)


if __name__ == "__main__":
    sys.exit(main())
