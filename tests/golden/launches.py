#!/usr/bin/env python3
"""Starts trainings in every form, plainly and under ``iobench run``: see README.md beside it.

``--renew`` records each form several times and stores what is always the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COUNTS = HERE / "launch_counts.json"
PYTHON = sys.executable
IOBENCH = (PYTHON, "-c", "import sys; from iobench.cli import main; sys.exit(main())")
# Of every sample: what --detail auto leaves out depends on how busy the machine is.
RECORDED = (*IOBENCH, "run", "--no-report", "--detail", "sample")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2")
VARIES = "varies"
"""In place of a count that was not the same each time."""
TIMEOUT_S = 100


@dataclass(frozen=True)
class Form:
    """A way to start a training.

    Parameters
    ----------
    script : str
        The script on stdin, ``""`` for none.
    folder : str
        Where it is started, from the folder that holds the scripts.
    by_moment : tuple of str
        Kinds of spans whose number depends on the moment, and is not counted.
    """

    command: tuple[str, ...]
    code: int = 0
    script: str = ""
    folder: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    by_moment: tuple[str, ...] = ("head_of_line", "lock")

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Return `by_moment` and what is looked at only so often as time allows."""
        return (*self.by_moment, "cpu_wait")


IN_TENSORFLOW = ("forward", "backward", "step", "collate", "preprocess", "opaque")
"""What TensorFlow's threads did, as its profiler saw it of a part of the steps."""
TWICE = f"{PYTHON} train.py first && {PYTHON} -O train.py second; echo $?"
FORMS = {
    "file": Form((PYTHON, "train.py", "--lr", "1")),
    "module": Form((PYTHON, "-m", "train", "a")),
    "command": Form((PYTHON, "-c", "import train; train.main()", "a", "b")),
    "torchrun": Form((*TORCHRUN, "ranks.py")),
    "fork": Form((PYTHON, "processes.py", "fork")),
    "spawn": Form((PYTHON, "processes.py", "spawn")),
    "shell": Form(("sh", "-c", TWICE)),
    "console-script": Form(("train-all", "x"), environment={"PATH": f"bin{os.pathsep}"}),
    "unbuffered": Form((PYTHON, "-u", "-X", "utf8", "train.py")),
    "variable": Form((PYTHON, "train.py"), environment={"TRAIN_NOTE": "wet = 1"}),
    "elsewhere": Form(
        (PYTHON, "../train.py"), folder="else where", environment={"TRAIN_DATA": "../data"}
    ),
    "stdin": Form((PYTHON, "-", "a"), script="train.py"),
    "nested": Form((*RECORDED, "--out", "inner", "--", PYTHON, "train.py")),
    "fails": Form((PYTHON, "train.py", "fail"), code=3),
    "signal": Form((PYTHON, "train.py", "signal"), code=-15),
    "initial_load": Form((PYTHON, "initial_load.py")),
    "validation": Form((PYTHON, "validation.py")),
    "dask_dataset": Form((PYTHON, "dask_dataset.py")),
    "several_batches_a_step": Form((PYTHON, "several_batches_a_step.py")),
    "keras_fit": Form((PYTHON, "keras_fit.py"), by_moment=IN_TENSORFLOW),
}
"""What is started; the last ones are scripts of their own."""
NEEDS = {"keras_fit": "keras", "dask_dataset": "dask"}
"""Modules that a form needs beside torch."""


@dataclass(frozen=True)
class Outcome:
    """What a command did: all that its user sees of it but stderr."""

    code: int
    out: str
    results: dict[str, str]


def make_folder(place: Path) -> None:
    """Make a folder with all scripts and what they read."""
    import numpy as np

    shutil.copytree(HERE / "scripts", place)
    (place / "data").mkdir()
    (place / "else where").mkdir()
    for number in range(12):
        values = np.random.default_rng(number).random((4 + number, 16), dtype="f4")
        np.save(place / "data" / f"{number:02d}.npy", values)
    (place / "bin").mkdir()
    console = place / "bin" / "train-all"
    # As pip writes it, for an interpreter of any path.
    console.write_text(f"#!/bin/sh\n'''exec' {PYTHON} \"$0\" \"$@\"\n' '''\n{CONSOLE}")
    console.chmod(0o755)


CONSOLE = "import sys\nfrom train import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def start(form: Form, place: Path, run: Path | None = None) -> Outcome:
    """Start a form in a folder of its own, under ``iobench run`` where ``run`` is given."""
    make_folder(place)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **form.environment}
    if "PATH" in form.environment:
        environment["PATH"] = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment["PYTHONPATH"] = str(place)
    under = () if run is None else (*RECORDED, "--out", str(run), "--")
    done = subprocess.run(
        [*under, *form.command], cwd=place / form.folder, env=environment,
        input=(place / form.script).read_text() if form.script else "",
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == form.code, done.stderr
    made = sorted(place.rglob("results.txt"))
    results = {path.relative_to(place).as_posix(): path.read_text() for path in made}
    return Outcome(done.returncode, done.stdout, results)


def counts_of(run: Path, uncounted: tuple[str, ...]) -> dict[str, Any]:
    """Return what a run counted: of `iobench check`, and spans and bytes by role and stage.

    Files beside the training, that Python reads as it imports, depend on the installation.
    """
    import pyarrow.parquet as parquet

    place = run.parent / f"{run.name}-counts"
    place.mkdir()
    words = [str(run), "--counts", str(place / "counts.json"), "--update"]
    done = subprocess.run([*IOBENCH, "check", *words], capture_output=True, check=False)
    checked = {}
    if done.returncode == 0:
        (checked,) = json.loads((place / "counts.json").read_text())["runs"].values()
    exact = {
        key: value
        for key, value in checked.get("exact", {}).items()
        if not key.removeprefix("stages/").startswith(uncounted)
    }
    words = [str(run), "--parquet", str(place / "spans.parquet")]
    subprocess.run([*IOBENCH, "report", *words], capture_output=True, check=True)
    table = parquet.read_table(place / "spans.parquet").to_pylist()
    spans: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in table:
        if row["kind"] in uncounted or row["stage"] == "other:stuck":
            continue
        file = Path(row["detail"] or "")
        if row["batch"] is None and file.is_absolute() and not file.is_relative_to(run.parent):
            continue
        # Bytes that the kernel counted are those of the process, by whatever it read.
        counter = " (counter)" if row["counter"] else ""
        each = spans[f"rank {row['rank']} {row['role']}: {row['stage']}{counter}"]
        each[0] += 1
        each[1] += 0 if counter else row["nbytes"] or 0
    return {"exact": exact, "spans": dict(sorted(spans.items()))}


def recorded(form: Form, place: Path) -> tuple[Outcome, dict[str, Any]]:
    """Start a form under ``iobench run``; return what it did and what all its runs counted."""
    outcome = start(form, place / "recorded", place / "run")
    runs = [place / "run", *(place / "recorded").rglob("inner")]
    return outcome, {run.name: counts_of(run, form.uncounted) for run in runs}


def same(before: Any, after: Any) -> Any:
    """Return what two counts have in common, and `VARIES` for what they have not."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        return {key: same(before.get(key), after.get(key)) for key in keys}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [same(*each) for each in zip(before, after, strict=True)]
    return before if before == after else VARIES


def wrong_counts(stored: Any, found: Any, at: str = "") -> list[str]:
    """Return what differs from stored counts, where it was always the same."""
    if stored == VARIES:
        return []
    if isinstance(stored, dict) and isinstance(found, dict):
        keys = sorted({*stored, *found})
        each = (wrong_counts(stored.get(key), found.get(key), f"{at}.{key}") for key in keys)
        return [line for lines in each for line in lines]
    if isinstance(stored, list) and isinstance(found, list) and VARIES in stored:
        pairs = zip(stored, found, strict=True)
        return [line for a, b in pairs for line in wrong_counts(a, b, at)]
    return [] if stored == found else [f"{at}: was {stored}, is {found}"]


def main() -> int:
    """Count each form anew."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("forms", nargs="*", metavar="FORM", help="only these")
    options.add_argument("--renew", action="store_true", help="store what is counted now")
    options.add_argument("--times", type=int, default=3, help="how often each form is recorded")
    given = options.parse_args()
    stored = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    n_wrong = 0
    for name in given.forms or FORMS:
        found: Any = None
        for _ in range(given.times if given.renew else 1):
            with tempfile.TemporaryDirectory() as place:
                _, counts = recorded(FORMS[name], Path(place))
            found = counts if found is None else same(found, counts)
        if given.renew:
            stored[name] = found
            COUNTS.write_text(f"{json.dumps(stored, indent=1, sort_keys=True)}\n")
        else:
            lines = wrong_counts(stored.get(name), found, name)
            n_wrong += len(lines)
            print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{len(given.forms or FORMS)} forms, {n_wrong} counts differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
