"""How well tf.data is replayed: ``python tests/benchmarks/tf_pipelines.py``.

Pipelines whose functions sleep are recorded as they are. Their replay predicts what a changed
script takes for a batch, as a share of what it takes now: reading or parsing in half the time, more
``num_parallel_calls``, a wider ``private_threadpool_size``, a ``prefetch``. Then the script runs as
it is and changed, in processes of its own without iobench; what a batch in the middle takes is what
was obtained. Shapes differ in times, sizes of batches, threads, interleaved files and steps; none
made the replay. Predictions count where the replay of the unmodified run misses its time by 10 % or
less, as in reports. ``A/A`` is the script as it is once more: the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SCRIPT = """
import json, sys, time
import tensorflow as tf
told = json.loads(sys.argv[1])
def asleep(seconds):
    def sleep(number):
        time.sleep(seconds)
        return number
    return sleep
def read(number):
    return tf.numpy_function(asleep(told["read_s"]), [number], tf.int64)
def parse(number):
    return tf.numpy_function(asleep(told["parse_s"]), [number], tf.int64)
n_items = told["batch"] * told["batches"]
if told["files"]:
    rows = lambda file: tf.data.Dataset.range(n_items // told["files"]).map(read)
    data = tf.data.Dataset.range(told["files"]).interleave(
        rows, cycle_length=told["cycle"], num_parallel_calls=told["read_calls"] or 1)
else:
    data = tf.data.Dataset.range(n_items).map(read, num_parallel_calls=told["read_calls"] or None)
if told["parse_after"]:
    data = data.batch(told["batch"]).map(parse, num_parallel_calls=told["calls"] or None)
else:
    data = data.map(parse, num_parallel_calls=told["calls"] or None).batch(told["batch"])
if told["ahead"]:
    data = data.prefetch(told["ahead"])
options = tf.data.Options()
options.threading.private_threadpool_size = told["pool"]
options.experimental_optimization.inject_prefetch = False
asked = []
for batch in data.with_options(options):
    asked.append(time.perf_counter())
    time.sleep(told["step_s"])
middle = asked[len(asked) // 4 : -len(asked) // 8]
print(json.dumps((middle[-1] - middle[0]) / (len(middle) - 1)))
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline of the script."""

    name: str
    read_s: float = 0.02
    parse_s: float = 0.03
    step_s: float = 0.01
    read_calls: int = 0
    calls: int = 2
    batch: int = 4
    batches: int = 32
    pool: int = 4
    ahead: int = 2
    files: int = 0
    cycle: int = 0
    parse_after: bool = False


SHAPES = (
    Shape("two maps"),
    Shape("both parallel", read_calls=3, calls=2, pool=8, batch=6),
    Shape("no prefetch", ahead=0, step_s=0.08),
    Shape("default pool", pool=0, calls=4),
    Shape("files", files=3, cycle=3, read_calls=2, calls=2, pool=8),
    Shape("long parse", parse_s=0.09, calls=3, batch=2),
    Shape("parse of batches", parse_after=True, parse_s=0.09, read_s=0.012),
    Shape("slow step", step_s=0.15),
    Shape("sequential", calls=0, step_s=0.03),
    Shape("large batches", batch=16, batches=24, read_s=0.008, parse_s=0.02, calls=4, pool=6),
)


def changes_of(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield what is done otherwise, and the script that does so."""
    yield "read in half the time", replace(shape, read_s=shape.read_s / 2)
    yield "parse in half the time", replace(shape, parse_s=shape.parse_s / 2)
    yield "parse by twice the calls", replace(shape, calls=max(2, 2 * shape.calls))
    if not shape.files:
        yield "read by two calls", replace(shape, read_calls=max(2, 2 * shape.read_calls))
    yield (
        "twice the calls and the pool",
        replace(shape, calls=max(2, 2 * shape.calls), pool=2 * (shape.pool or 2)),
    )
    yield "a prefetch of 4", replace(shape, ahead=4)


def script_of(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def obtained_s(script: Path, shape: Shape) -> float:
    """Return what a batch takes in a run without iobench."""
    told = json.dumps(asdict(shape))
    done = subprocess.run(
        [sys.executable, str(script), told], check=True, capture_output=True, text=True
    )
    return float(done.stdout.splitlines()[-1])


def predictions(shape: Shape, script: Path, run: Path) -> tuple[float, dict[str, float]]:
    """Return the error of the replay, and how much of its time a batch takes with each change."""
    from iobench.analysis.replay.changes import Change
    from iobench.analysis.replay.replay import replay, replay_error
    from iobench.analysis.replay.runs import recorded_runs
    from iobench.analysis.run import Run
    from iobench.profiles.reading import open_profile

    command = [sys.executable, "-m", "iobench", "run", "--out", str(run), "--no-report"]
    subprocess.run(
        [*command, "--", sys.executable, str(script), json.dumps(asdict(shape))],
        check=False,
        capture_output=True,
    )
    (recorded,) = recorded_runs(Run(open_profile(run)).of_rank())
    pipeline = recorded.pipeline
    if pipeline is None:
        return float("inf"), {}

    def place(function: str) -> int:
        return next(
            at
            for at, group in enumerate(pipeline.groups)
            if function in (group.function, *(each.function for each in group.inside))
        )

    def half(function: str) -> Change:
        chosen = [stage for stage in recorded.stages if stage.startswith(f"opaque:{function}/")]
        return Change(stage_factors=dict.fromkeys(chosen, 0.5))

    more, wider = max(2, 2 * shape.calls), 2 * (shape.pool or 2)
    parallel = pipeline.with_calls(place("parse"), "parse", more)
    changed = {
        "read in half the time": (half("rows" if shape.files else "read"), recorded),
        "parse in half the time": (half("parse"), recorded),
        "parse by twice the calls": (Change(), replace(recorded, pipeline=parallel)),
        "twice the calls and the pool": (
            Change(), replace(recorded, pipeline=replace(parallel, pool=wider)),
        ),
        "a prefetch of 4": (Change(prefetch=4), recorded),
    }  # fmt: skip
    if not shape.files:
        reading = pipeline.with_calls(place("read"), "read", max(2, 2 * shape.read_calls))
        changed["read by two calls"] = Change(), replace(recorded, pipeline=reading)
    now_ns = replay(recorded).judged_ns.mean()
    return replay_error(recorded), {
        name: float(replay(instead, change).judged_ns.mean() / now_ns)
        for name, (change, instead) in changed.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many, of the first")
    parser.add_argument("--keep", type=Path, help="where to leave the runs")
    given = parser.parse_args()
    misses, refused = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        script = script_of(folder)
        for shape in SHAPES[: given.shapes]:
            error, predicted = predictions(shape, script, folder / shape.name.replace(" ", "-"))
            now_s = obtained_s(script, shape)
            print(f"{shape.name}: {1e3 * now_s:.1f} ms a batch, replay error {100 * error:+.1f} %")
            if abs(error) > 0.1:
                refused += 1
                continue
            again = obtained_s(script, shape) / now_s
            print(f"  {'A/A':30} obtained {100 * again:5.0f} %")
            for name, changed in changes_of(shape):
                obtained = obtained_s(script, changed) / now_s
                miss = predicted[name] - obtained
                misses.append(abs(miss))
                print(
                    f"  {name:30} predicted {100 * predicted[name]:5.0f} % of its time, "
                    f"obtained {100 * obtained:5.0f} %, {100 * miss:+6.1f} points",
                    flush=True,
                )
    if misses:
        misses.sort()
        nine_in_ten = misses[int(0.9 * (len(misses) - 1))]
        print(
            f"{len(misses)} predictions: median error {100 * statistics.median(misses):.1f} "
            f"points, nine in ten below {100 * nine_in_ten:.1f}, shapes refused: {refused}"
        )


if __name__ == "__main__":
    main()
