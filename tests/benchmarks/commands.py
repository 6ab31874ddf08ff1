"""What each command takes from its start to its end, beside ``python -c pass``.

    python tests/benchmarks/commands.py [--turns 9] [--only list,report]

In the environment of this Python, with a small run and a small store made for it; each turn starts
every command once, with its modules compiled. CPU time is that of the command and of all that it
starts. On a quiet machine it is about what one waits; on a busy one the goals are held against it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

PLAIN: Final = "python -c pass"
GOALS_S: Final = {
    PLAIN: None,
    "iobench": None,
    "iobench --help": 0.15,
    "iobench list": 0.4,
    "iobench info store": 0.4,
    "iobench report run": 0.4,
    "iobench doctor": 1.5,
    "iobench cache": 0.7,
    "iobench advise run": 0.7,
    "iobench compare run run": 0.7,
    "iobench convert small:Small out --to numpy --dry-run": None,
    "iobench run --out recorded-{n} -- python -c pass": None,
}
"""By command: what it may take on a quiet machine."""
SOURCE: Final = """\
import numpy as np
class Small:
    def __len__(self): return 64
    def __getitem__(self, number): return {"x": np.full((16, 16), number, "f4")}
"""
COMPILED: Final = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
MADE: Final = (
    "iobench profile small:Small --batches 20 --compute 2ms --batch-size 2 --out run",
    "iobench convert small:Small store --to numpy",
)


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", help="the second words of commands, with commas")
    arguments = parser.parse_args()
    only = [each.split() for each in (arguments.only or "").split(",")]
    chosen = [each for each in GOALS_S if only == [[]] or each.split()[1:2] in only]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small.py").write_text(SOURCE)
        for command in MADE:
            taken_s(command, folder)
        found: dict[str, list[tuple[float, float]]] = {each: [] for each in [PLAIN, *chosen]}
        for command in chosen:  # which compiles what no command before has loaded
            taken_s(command.format(n="first"), folder)
        for turn in range(arguments.turns):
            for command, times in found.items():
                times.append(taken_s(command.format(n=turn), folder))
    print(f"{'':52} {'CPU, s':>20} {'wall, s':>20}  {'CPU of':>6}   goal")
    print(f"{'command':52} {'median (range)':>20} {'median (range)':>20}  {'plain':>6}   s")
    plain_s = statistics.median(cpu for cpu, _ in found[PLAIN])
    for command, times in found.items():
        cpu, wall = ([each[kind] for each in times] for kind in (0, 1))
        told = [f"{statistics.median(of):.3f} ({min(of):.3f}-{max(of):.3f})" for of in (cpu, wall)]
        goal_s = GOALS_S[command]
        held = "" if goal_s is None else "held" if statistics.median(cpu) < goal_s else "missed"
        goal = "" if goal_s is None else f"{goal_s:4} {held}"
        times_plain = statistics.median(cpu) / plain_s
        print(f"{command:52} {told[0]:>20} {told[1]:>20}  {times_plain:6.1f}   {goal}")


def taken_s(command: str, folder: Path) -> tuple[float, float]:
    """Return the CPU time of a command and of what it starts, and its wall time."""
    here = {each: str(Path(sys.executable).with_name(each)) for each in ("iobench", "python")}
    words = [here.get(word, word) for word in command.split()]
    with (folder / "said").open("w+b") as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env=COMPILED
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{command}: exit {process.returncode}: {said.read().decode()}")
    return used.ru_utime + used.ru_stime, wall_s


if __name__ == "__main__":
    main()
