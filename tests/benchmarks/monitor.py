"""What looking at the machine costs: python tests/benchmarks/monitor.py [--seconds 20].

CPU seconds of the process that looks (an idle one but for that), by rate, in a second of wall time,
wake-ups included; beside it what one reading took by its own thread's clock, and bytes an hour.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from iobench.profiles.machine_samples import read_machines
from iobench.recording.monitor import start_monitor


def cost(rate: str, seconds: float) -> dict[str, float]:
    """Return what a rate costs."""
    with tempfile.TemporaryDirectory() as folder:
        reader = start_monitor([Path(folder)], energy=False, monitor=rate)
        time.sleep(1)  # the first readings of all files
        (file,) = (Path(folder) / "machine").iterdir()
        cpu_s, begun_s, nbytes = time.process_time(), time.monotonic(), file.stat().st_size
        time.sleep(seconds)
        spent_s, wall_s = time.process_time() - cpu_s, time.monotonic() - begun_s
        hour = (file.stat().st_size - nbytes) / wall_s * 3600
        reader.close()
        (found,), _ = read_machines(Path(folder))
        own_ns, n_readings = found.cost() or (0, 1)
        return {
            "cpu_s_per_s": spent_s / wall_s,
            "readings_per_s": len(found.time_ns) / (seconds + 1),
            "reading_us": own_ns / n_readings / 1000,
            "nbytes_per_hour": hour,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rates", nargs="+", default=["auto", "1", "2", "10"])
    asked = parser.parse_args()
    for rate in asked.rates:
        print(rate, json.dumps(cost(rate, asked.seconds)))


if __name__ == "__main__":
    main()
