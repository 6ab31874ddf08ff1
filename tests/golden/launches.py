#!/usr/bin/env python3
"""Starts trainings in every form, plainly and under ``iobench run``: see README.md beside it.

``--renew`` records each form several times and stores what is always the same.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench import open_profile, to_arrow
from iobench.cli import main as iobench

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
    file, said = run.parent / f"{run.name}-counts.json", io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = iobench(["check", str(run), "--counts", str(file), "--update"])
    checked = {} if code else next(iter(json.loads(file.read_text())["runs"].values()))
    found: Counter[str] = Counter()
    for name, value in checked.get("exact", {}).items():
        if not name.removeprefix("stages/").startswith(uncounted):
            found[f"{run.name} {name}"] = value
    for row in to_arrow(open_profile(run)).to_pylist():
        if row["kind"] in uncounted or row["stage"] == "other:stuck":
            continue
        read = Path(row["detail"] or "")
        if row["batch"] is None and read.is_absolute() and not read.is_relative_to(run.parent):
            continue
        # Bytes that the kernel counted are those of the process, by whatever it read.
        counter = " (counter)" if row["counter"] else ""
        stage = f"{run.name} rank {row['rank']} {row['role']}: {row['stage']}{counter}"
        found[f"{stage}: spans"] += 1
        found[f"{stage}: bytes"] += 0 if counter else row["nbytes"] or 0
    return dict(found)


def recorded(form: Form, place: Path) -> tuple[Outcome, dict[str, Any]]:
    """Start a form under ``iobench run``; return what it did and what all its runs counted."""
    outcome = start(form, place / "recorded", place / "run")
    runs = [place / "run", *(place / "recorded").rglob("inner")]
    return outcome, {k: v for run in runs for k, v in counts_of(run, form.uncounted).items()}


def wrong_counts(stored: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return what differs from stored counts, where it was always the same."""
    return [
        f"{name}: was {stored.get(name)}, is {found.get(name)}"
        for name in sorted(stored.keys() | found.keys())
        if stored.get(name) not in (VARIES, found.get(name))
    ]


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
        found = []
        for _ in range(given.times if given.renew else 1):
            with tempfile.TemporaryDirectory() as place:
                found.append(recorded(FORMS[name], Path(place))[1])
        if given.renew:
            names = {key for counts in found for key in counts}
            values = {key: [counts.get(key) for counts in found] for key in names}
            same = {key: all(each == of[0] for each in of) for key, of in values.items()}
            stored[name] = {key: of[0] if same[key] else VARIES for key, of in values.items()}
            COUNTS.write_text(f"{json.dumps(stored, indent=1, sort_keys=True)}\n")
        else:
            lines = wrong_counts(stored.get(name, {}), found[0])
            n_wrong += len(lines)
            print(*(f"{name}: {line}\n" for line in lines), sep="", end="")
    print(f"{len(given.forms or FORMS)} forms, {n_wrong} counts differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
