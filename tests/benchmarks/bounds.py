"""Whether what advice promises is obtained: ``python tests/benchmarks/bounds.py``.

Trainings with loaders of many sorts (workers that start anew or live on, forked or spawned, dear or
cheap to start; none at all; a NumPy store; a loop that computes where its workers do) are recorded
by ``iobench run``. Of each recording ``iobench advise``'s own function says what changes would
save, within what interval or at most; each of these changes is then made and run as well, in turns
with the training as it is. Obtained is the share of the time of a sample that is saved, over what
both are judged by: epochs after the first.

A row is printed for each change once its turns are over: what was told and what was obtained, as
medians, the latter with its range, and whether it held. ``--only PART...`` runs the shapes whose
name contains one of these; ``--list`` names them. Ends with 1 where a median exceeds its bound or
lies outside of its interval. With the defaults it takes about 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.proposals import AdvisedChange, Evidence, Lever, Reason, RuledOut
from iobench.runs.reading import open_profile

HERE = Path(__file__).parent
JOB = HERE / "bounds_job.py"
AS_IT_IS: dict[str, Any] = {
    "loader": "torch",
    "store": None,
    "workers": 2,
    "batch_size": 4,
    "context": "fork",
    "anew": False,
    "prefetch": 2,
    "persistent": False,
    "in_order": True,
    "step_ms": 10.0,
    "burns": False,
}
CHEAP = {"open_ms": 0, "read_ms": 2, "decode_ms": 2}
DEAR = {"open_ms": 400, "read_ms": 2, "decode_ms": 2}
STORED = "numpy"


@dataclass(frozen=True)
class Shape:
    """A training: its samples, and what is other than `AS_IT_IS`."""

    samples: Mapping[str, float]
    options: Mapping[str, Any] = field(default_factory=dict)


SHAPES = {
    "fork, restarting, cheap": Shape(CHEAP),
    "fork, restarting, dear": Shape(DEAR),
    "fork, made anew, dear": Shape(DEAR, {"anew": True}),
    "fork, kept, cheap": Shape(CHEAP, {"persistent": True}),
    "fork, kept, dear": Shape(DEAR, {"persistent": True}),
    "spawn, restarting": Shape(CHEAP, {"context": "spawn"}),
    "spawn, kept": Shape(CHEAP, {"context": "spawn", "persistent": True}),
    "no workers, cheap": Shape(CHEAP, {"workers": 0}),
    "no workers, dear": Shape(DEAR, {"workers": 0}),
    "one worker, reading": Shape({"open_ms": 0, "read_ms": 6, "decode_ms": 0}, {"workers": 1}),
    "numpy store, restarting": Shape(CHEAP, {"store": STORED}),
    "computing, kept": Shape(
        {"open_ms": 0, "read_ms": 0, "decode_ms": 5}, {"persistent": True, "burns": True}
    ),
    "computing, four restarting": Shape(
        {"open_ms": 0, "read_ms": 0, "decode_ms": 5}, {"workers": 4, "burns": True}
    ),
}


@dataclass(frozen=True)
class Told:
    """What is said of a change: within what its saving lies, as shares; ``low`` None of a bound."""

    low: float | None
    high: float | None
    saved: float | None

    def held(self, obtained: float) -> bool | None:
        """Tell whether a saving is as was told; None where no interval was."""
        if self.high is None:
            return None
        return (self.low is None or self.low <= obtained) and obtained <= self.high

    def __str__(self) -> str:
        if self.high is None:
            return f"{percent(self.saved)}, no interval"
        if self.low is None:
            return f"at most {percent(self.high)}"
        return f"{percent(self.saved)} ({percent(self.low)} to {percent(self.high)})"


def percent(share: float | None) -> str:
    """Return a share in per cent."""
    return "-" if share is None else f"{100 * share:.1f} %"


class Trainings:
    """Runs trainings and says what each took and what advice it gives."""

    def __init__(self, home: Path, arguments: argparse.Namespace) -> None:
        self.home, self.arguments, self.number = home, arguments, 0

    def run(self, shape: Shape, **changed: Any) -> Path:
        """Record a training; returns the run directory."""
        options = {**AS_IT_IS, **shape.options, **changed, "epochs": self.arguments.epochs}
        if options["store"] is not None:
            options["store"] = str(self.stored(shape))
        self.number += 1
        out, told = self.home / f"run-{self.number}", self.home / f"options-{self.number}.json"
        told.write_text(json.dumps(options))
        command = ["run", "--no-report", "--out", out]
        self._iobench(shape, *command, "--", sys.executable, JOB, told)
        return out

    def stored(self, shape: Shape) -> Path:
        """Return a store of finished samples, made when it is first asked for."""
        store = self.home / "-".join(str(each) for each in shape.samples.values())
        if not store.exists():
            self._iobench(shape, "convert", "bounds_job:samples", store, "--to", STORED)
        return store

    def _iobench(self, shape: Shape, *words: Any) -> None:
        n = self.arguments.batches * AS_IT_IS["batch_size"]
        environment = {
            **os.environ,
            "BOUNDS_SAMPLES": json.dumps({"n": n, **shape.samples}),
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "IOBENCH_ENERGY": "off",
            "IOBENCH_STORE_DIR": str(self.home / "stores"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "iobench", *map(str, words)],
            env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{words}: {done.stdout}{done.stderr}")


def sample_ns(run: Path) -> float:
    """Return what a sample takes, over the epochs after the first."""
    found = exposure(open_profile(run))
    if found.window != "recurring":
        raise SystemExit(f"{run}: no whole epoch after the first")
    return found.judged.wall_ns / (found.judged.n_samples or found.judged.n_batches)


def promises(run: Path) -> Iterator[tuple[str, dict[str, Any], Told]]:
    """Yield what advice on a run says of each change: its name, how to make it, what it saves."""
    measured = Run(open_profile(run)).of_rank()
    advice = advice_of([loading_of(measured, recorded_runs(measured))])
    if advice is None:
        return
    for change in (*advice.changes, *advice.to_measure, *advice.ruled_out):
        told = _told(change)
        if told is None:
            continue
        for how, options in _made(change):
            yield f"{change.title}{how}", options, told


def _told(change: AdvisedChange | RuledOut) -> Told | None:
    if isinstance(change, RuledOut):
        unneeded = change.reason is Reason.NOT_WAITED_FOR
        return Told(None, change.figures[0], None) if unneeded else None
    low = None if change.evidence is Evidence.BOUND else change.low_fraction
    return Told(low, change.high_fraction, change.saved_fraction)


def _made(change: AdvisedChange | RuledOut) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ways in which a change can be made here."""
    settings, levers = change.settings, change.levers
    options: dict[str, Any] = {}
    options |= {name: settings[name] for name in ("workers", "prefetch") if name in settings}
    if "persistent_workers" in settings:
        options |= {"persistent": True, "anew": False}
    if Lever.LOADER in levers:
        yield "", {"loader": "fast", **({"store": STORED} if Lever.FORMAT in levers else {})}
        if Lever.FORMAT not in levers:
            return
    if {Lever.FORMAT} & {*levers}:
        yield "", {**options, "store": STORED}
        yield ", workers kept", {**options, "store": STORED, "persistent": True, "anew": False}
    elif {Lever.WORKERS, Lever.PREFETCH, Lever.KEEP_WORKERS} & {*levers}:
        yield "", options


def told_in_turns(name: str, shape: Shape, trainings: Trainings) -> list[bool]:
    """Print what was told of each change and what was obtained; returns what held."""
    found: dict[str, list[tuple[Told, float]]] = {}
    made: dict[str, dict[str, Any]] = {}
    began, spent = time.monotonic(), []
    for _ in range(trainings.arguments.turns):
        base = trainings.run(shape)
        before = sample_ns(base)
        spent.append(before)
        told = {}
        for title, options, each in promises(base):
            told[title] = each
            made.setdefault(title, options)
        for title, options in made.items():
            if title in told:
                saved = 1 - sample_ns(trainings.run(shape, **options)) / before
                found.setdefault(title, []).append((told[title], saved))
    print(
        f"{name}: a sample takes {statistics.median(spent) / 1e6:.2f} ms "
        f"({min(spent) / 1e6:.2f} to {max(spent) / 1e6:.2f}); {time.monotonic() - began:.0f} s"
    )
    held = []
    for title, pairs in found.items():
        told_of = [each for each, _ in pairs]
        obtained = sorted(saved for _, saved in pairs)
        middle = Told(
            *(_median([getattr(each, end) for each in told_of]) for end in ("low", "high", "saved"))
        )
        verdict = middle.held(statistics.median(obtained))
        held += [] if verdict is None else [verdict]
        word = {True: "held", False: "EXCEEDED" if middle.low is None else "MISSED", None: "-"}
        print(
            f"  {word[verdict]:8} {title}: told {middle}; obtained "
            f"{percent(statistics.median(obtained))} ({percent(obtained[0])} to "
            f"{percent(obtained[-1])})",
            flush=True,
        )
    return held


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=[""], metavar="PART")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [name for name in SHAPES if any(part in name for part in arguments.only)]
    if arguments.list:
        print("\n".join(chosen))
        return 0
    held = []
    with tempfile.TemporaryDirectory() as home:
        for number, name in enumerate(chosen):
            folder = Path(home) / str(number)
            folder.mkdir()
            held += told_in_turns(name, SHAPES[name], Trainings(folder, arguments))
    print(f"{sum(held)} of {len(held)} held")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
