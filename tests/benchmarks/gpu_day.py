"""Everything that never ran on a GPU, in one go: python tests/benchmarks/gpu_day.py --minutes 30.

On a machine with a GPU and a torch for it, in a clone of this repository, beside what is installed:
``pip install -e . --group test-all`` (``'.[dali]'`` and ``kvikio-cu12`` for the peers). Each row of
the table is a process of its own with a time limit, so that what goes wrong in one takes no other
along, and says

* ``measured``, with figures, where it ran, and whether its own check held;
* ``not available``: what is not here, in words (no driver, a package, no time left);
* ``failed``: what is wrong, in a line; the whole story is in ``FOLDER/ROW.log``.

All goes into ``--folder``: a file for each row, ``table.md``, and data that are used again. The
same command goes on where it was stopped: rows that were measured on this machine, device, commit
and torch stay; the others are tried (again). Exits with 1 if a row failed, 75 if it was
interrupted.

``--fake`` lets rows that can run over the stand-in that tests have for a device
(`tests/support/fake_accelerator.py`): it shows that they work, and says nothing of any GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.files.atomic import write_atomically
from iobench.recording.clocks import now_ns
from iobench.suites.suite_run import run_limited

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("gpu_day_rows.py")
MEASURED, STAND_IN, NOT_AVAILABLE, FAILED = "measured", "stand-in", "not available", "failed"
INTERRUPTED = 75
LONGEST_WHY = 200


@dataclass(frozen=True)
class Row:
    """A function of gpu_day_rows.py, the seconds that it may take, its argument."""

    name: str
    what: str
    seconds: float
    function: str = ""
    argument: str = ""


# The order is that in which they are tried: what others are understood by first.
ROWS = (
    Row("device", "what the driver and torch tell of it", 30),
    Row("events", "their resolution, and their clock beside the host's", 40),
    Row("exposure", "idle for want of input, beside what kernels and sleeps make it", 50),
    Row("parts", "DeviceTimer: forward, backward, step, beside marks of its own", 40),
    Row("copies", "bytes a second to the device by size, pinned and not, beside plain copies", 50),
    Row("loader", "StoreLoader(device=): the same bytes", 60),
    Row("memory", "no memory for a batch: one line, and the next epoch runs", 40),
    Row("missing", "a device that is not there: one line, and what auto does", 50),
    Row("data", "the stand-in of ENS-10 and its stores, loaded without a device", 190),
    *(
        Row(f"profile {name}", "iobench profile --device: its copies", 50, "profile", name)
        for name in ("native", "torch", "tensorflow", "dali")
    ),
    Row("script", "iobench run: .to() of a plain script", 50, "script", "plain"),
    Row("lightning", "iobench run: Lightning's mover", 60, "script", "lightning"),
    Row("accelerate", "iobench run: accelerate's mover", 60, "script", "accelerate"),
    Row("jax", "iobench run: jax.device_put", 60, "script", "jax"),
    Row("energy", "the driver's counter, and joules of waits and of computing", 60),
    Row("loaders", "loaders.py --device: StoreLoader, torch's pin_memory, DALI, kvikio", 180),
)  # fmt: skip
WHOLE_S = 30 * 60
"""Of more time than that all have more; with less, what does not fit is left for the next time."""


def identity(fake: bool) -> dict[str, Any]:
    """Return what rows that were measured before must have been measured with."""
    told: dict[str, Any] = {"host": platform.node(), "commit": commit(), "fake": fake}
    script = (
        "import json, torch; d = torch.accelerator.current_accelerator(check_available=True);"
        "m = None if d is None else torch.get_device_module(d);"
        "print(json.dumps([torch.__version__, None if d is None else m.get_device_name()]))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    lines = asked.stdout.strip().splitlines()
    told["torch"], told["device"] = json.loads(lines[-1]) if lines else (None, None)
    return told


def commit() -> str:
    """Return the commit of this clone, and a digest of what was changed since."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    changed = git("diff", "HEAD")
    mark = f"+{hashlib.sha256(changed.encode()).hexdigest()[:8]}" if changed else ""
    return git("rev-parse", "--short=12", "HEAD").strip() + mark


def run_row(row: Row, folder: Path, limit_s: float, fake: bool) -> dict[str, Any]:
    """Run a row in a process of its own; return its state, figures and why."""
    answer, log = folder / f"{row.name}.answer", folder / f"{row.name}.log"
    answer.unlink(missing_ok=True)
    asked = {"answer": str(answer), "data": str(folder / "data"), "seconds": limit_s, "fake": fake}
    command = [
        sys.executable, str(SCRIPT), row.function or row.name, row.argument, json.dumps(asked),
    ]  # fmt: skip
    begun_ns = now_ns()
    ended = run_limited(command, log, limit_s)
    found: dict[str, Any] = {"state": FAILED, "why": "", "figures": {}}
    if answer.exists():
        found |= json.loads(answer.read_text())
        answer.unlink()
    elif ended.code is not None:
        found["why"] = ended.how[:LONGEST_WHY]
    if ended.code is None:
        found |= {"state": FAILED, "why": f"{ended.how} of {limit_s:.0f} s"}
    return found | {"seconds": round((now_ns() - begun_ns) / 1e9, 1)}


def kept(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """Return a row that was measured with the same before."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    same = found.get("key") == key and found.get("state") in (MEASURED, STAND_IN)
    return found if same else None


def figure(value: Any) -> str:
    """Return a figure in four digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {figure(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "/".join(map(figure, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[tuple[Row, dict[str, Any]]], key: dict[str, Any], skipped: float) -> str:
    """Return the table as Markdown."""
    where = "a stand-in in this process's threads" if key["fake"] else key["device"] or "no device"
    lines = [
        f"iobench {key['commit']}, torch {key['torch']}, {where}, {key['host']}",
        "", "| row | what | state | on | figures, or why not | s |", "| --- " * 6 + "|",
    ]  # fmt: skip
    for row, found in rows:
        told = ", ".join(f"{name} {figure(each)}" for name, each in found["figures"].items())
        why = "; ".join(filter(None, [found["why"], told])).replace("|", "\\|")
        again = "kept" if found.get("kept") else f"{found['seconds']:.0f}"
        on = found.get("on", "")
        lines.append(f"| {row.name} | {row.what} | {found['state']} | {on} | {why} | {again} |")
    states = [found["state"] for _, found in rows]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    lines += ["", ", ".join(f"{count} {state}" for state, count in counts.items()) + "."]
    if skipped:
        lines.append(f"The same command goes on; what is left needs {skipped / 60:.0f} min.")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="for all rows together")
    parser.add_argument("--folder", type=Path, default=Path("gpu-day"))
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="ROW")
    parser.add_argument("--fake", action="store_true", help="over the tests' stand-in")
    asked = parser.parse_args(given)
    if asked.minutes <= 0:
        parser.error("--minutes: expected more than 0")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job's time is up
    asked.folder.mkdir(parents=True, exist_ok=True)
    key = identity(asked.fake)
    end_ns, skipped = now_ns() + round(asked.minutes * 60e9), 0.0
    rows: list[tuple[Row, dict[str, Any]]] = []
    try:
        for row in ROWS:
            if asked.only and row.name not in asked.only:
                continue
            path = asked.folder / f"{row.name}.json"
            found = kept(path, key)
            if found is not None:
                found["kept"] = True
            else:
                left_s = (end_ns - now_ns()) / 1e9
                limit_s = row.seconds * max(1, asked.minutes * 60 / WHOLE_S)
                if left_s < limit_s:
                    why = (
                        f"no time left: {limit_s:.0f} s are needed, {max(left_s, 0):.0f} s are left"
                    )
                    found = {"state": NOT_AVAILABLE, "why": why, "figures": {}, "seconds": 0}
                    skipped += row.seconds
                else:
                    print(f"{row.name} ...", file=sys.stderr, flush=True)
                    found = run_row(row, asked.folder, limit_s, asked.fake) | {"key": key}
                    write_atomically(path, json.dumps(found, indent=1).encode())
            rows.append((row, found))
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    finally:
        told = table(rows, key, skipped)
        (asked.folder / "table.md").write_text(told + "\n")
        print(told)
    return any(found["state"] == FAILED for _, found in rows)


if __name__ == "__main__":
    sys.exit(main())
