"""What benchmarks share: turns, medians with ranges, tables, processes that answer in JSON."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


class Failed(Exception):
    """A process ended too early, with its last words."""


def rotated(names: Sequence[Any], number: int) -> list[Any]:
    """Return the order of a round: another one first each time."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its interval of at least 95 %, by order statistics."""
    ordered, n = sorted(values), len(values)
    below = 0  # the largest k of which P(fewer than k of n lie below the median) is 2.5 % at most
    while sum(math.comb(n, i) for i in range(below + 1)) <= 0.025 * 2**n:
        below += 1
    return statistics.median(ordered), ordered[max(below - 1, 0)], ordered[n - max(below, 1)]


def spread(values: Iterable[float], digits: str = ".2f") -> str:
    """Return the median, and in parentheses the lowest and the highest."""
    ordered = sorted(values)
    middle = statistics.median(ordered)
    return f"{middle:{digits}} ({ordered[0]:{digits}} to {ordered[-1]:{digits}})"


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; the first column is aligned to the left."""
    lines = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (f"{c:>{width}}" for c, width in zip(others, widths[1:], strict=True))
        print("  ".join([f"{first:{widths[0]}}", *cells]).rstrip(), flush=True)


def print_goal(what: str, reached: float, goal: float, *, at_most: bool = False) -> bool:
    """Print what is to be reached and what was; return whether it was."""
    fine = reached <= goal if at_most else reached >= goal
    bound, said = "at most" if at_most else "at least", "" if fine else "   MISSED"
    print(f"  {what:60}{reached:8.2f}   goal: {bound} {goal:g}{said}", flush=True)
    return fine


class Served:
    """A script in a process of its own that answers each line of JSON by another one.

    A line ``ready`` stands for an empty answer; what libraries print between is left out.
    """

    def __init__(self, command: Sequence[Any], environment: Mapping[str, str]) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], env=os.environ | environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises
        ------
        Failed
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return {}
            if line.startswith('{"'):
                found: dict[str, Any] = json.loads(line)
                return found
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        raise Failed(lines[-1] if lines else f"ended with {self.process.wait()}")

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order and return the answer."""
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return self.answer()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def tell(answer: Mapping[str, Any]) -> None:
    """Answer, in a process that is served."""
    print(json.dumps(answer), flush=True)


def orders() -> Iterator[dict[str, Any]]:
    """Yield the orders of whoever serves this process."""
    return map(json.loads, sys.stdin)


def last_line(command: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Run a script to its end; return the JSON in its last line.

    Raises
    ------
    Failed
    """
    words = [sys.executable, *map(str, command)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        raise Failed(lines[-1][:100] if lines else f"ended with {ran.returncode}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found
