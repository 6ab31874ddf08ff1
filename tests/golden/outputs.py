#!/usr/bin/env python3
"""Compares what commands say of recorded runs with what is stored: see README.md beside it.

A key that is gone is a difference, a new one is none.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import re
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from iobench.cli import main as iobench
from iobench.report.timeline.page_payload import TimelinePayload
from tests.report.webpage.timeline_pages import unpacked

HERE = Path(__file__).parent
GONE = "gone"

LEFT_OUT = {
    "path", "next_steps", "command", "iobench_version", "schema_version", "storage_limit",
    "energy", "machine", "text", "sentences", "sentence", "about", "run", "verdict",
    "exit_why",
}  # fmt: skip
"""Differ by machine or moment, or are words: no figures of the run."""
BESIDE = {
    "script-validation-workers": "script-two-ranks/run",
    "prof-digests": "radiation-torch/run/source",
    "power-serial": "power-serial/run",
    "suite-formats": "suite-workers/results/cells/002-maelstrom-ens10-3/round-0",
}
"""What the first run of a case is compared with, in another one."""
LOOSE = ("replay", "saved", "changes", "fraction", "ranks")
"""Floats under these places are equal to 1e-6 of their size, others to 1e-9."""


def unpack(runs: Path, into: Path) -> list[str]:
    """Unpack the recorded runs of a folder (NAME.tar.xz, or NAME/run); return their names."""
    for packed in runs.glob("*.tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(into / packed.name.removesuffix(".tar.xz"), filter="data")
    for run in runs.glob("*/run"):
        (into / run.parent.name).mkdir()
        (into / run.parent.name / "run").symlink_to(run.resolve())
    return sorted(path.name for path in into.iterdir())


def outputs_of(case: Path) -> dict[str, Any]:
    """Return what each command says of an unpacked case: its exit code, and its figures."""
    with contextlib.chdir(case):
        is_suite = Path("recipe.toml").exists()
        found = sorted(path.parent.as_posix() for path in Path().glob("r*/**/run.json"))
        whole = found[-1:] if is_suite else ["run"]
        said = {
            "report": _said("report", *whole, "--json"),
            "advise": _said("advise", *whole, "--json"),
            "simulate": _said(
                "simulate", found[0], "--ranks", "1..64", "--storage-bandwidth", "10GB/s", "--json"
            ),
            "trace": _trace(whole[0]),
            "page": _page(whole[0]),
            "check": {run: _checks(run) for run in found[:4]},
        }
        if is_suite:
            said["suite"] = _said("suite", "recipe.toml", "--out", "results", "--json")
            said["quarterly"] = _said("compare", "--quarterly", "results", "--json")
            several = [run for run in found if run[-1] in "012"][:6]
            said["compare"] = _said("compare", several[0], several[-1], "--json")
        elif len(found) > 1:
            said["compare"] = _said("compare", "run", "--json")
        if (beside := BESIDE.get(case.name)) and Path("..", beside).exists():
            other = f"../{beside}"
            said["compare-beside"] = _said("compare", found[0], other, "--json")
            said["check-beside"] = _said(
                "check", found[0], "--against", other, "--any-machine", "--json"
            )
        if case.name == "power-serial":
            said["limits"] = _limits()
    # As JSON has it, and as it is stored.
    return {name: without(each) for name, each in json.loads(json.dumps(said)).items()}


def _said(*words: str) -> dict[str, Any]:
    out, why = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(why):
        code = iobench([*words])
    text = out.getvalue()
    if not text.lstrip().startswith("{"):
        return {"exit": code, "exit_why": why.getvalue().strip()[-300:]}
    return {"exit": code, **json.loads(text)}


def _checks(run: str) -> dict[str, Any]:
    counts = Path("counts.json").absolute()
    counts.unlink(missing_ok=True)
    written = _said("check", run, "--counts", str(counts), "--update", "--json")["exit"]
    return {
        "written": written,
        "counts": json.loads(counts.read_text()) if counts.exists() else None,
        "same": _said("check", run, "--counts", str(counts), "--json"),
        "exposed": _said("check", run, "--max-exposed", "5%", "--json"),
    }


def _limits() -> dict[str, Any]:
    """Return what is no measurement of a probe, and the names of what is."""
    said = _said("limits", "run", "--request", "24B", "--duration", "1", "--json")
    named = {name: said.get(name) for name in ("request_nbytes", "n_files", "files_nbytes")}
    reads = sorted({(each["way"], *each) for each in said["reads"]})
    return {"exit": said["exit"], **named, "keys": [*said], "reads": reads}


def _trace(run: str) -> dict[str, Any]:
    file = Path("trace.json.gz").absolute()
    code = _said("report", run, "--trace", str(file))["exit"]
    document = json.loads(gzip.decompress(file.read_bytes()), parse_float=Decimal)
    return {"exit": code, **trace_rows(document["traceEvents"])}


def trace_rows(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the names of a trace's processes and threads, and its rows by thread and name.

    Rows are name, ts, dur, pid and tid of spans, and of all else that has a time; of counters
    also their values.
    """
    names: dict[str, str] = {}
    rows = defaultdict(list)
    for entry in entries:
        thread = f"{entry['pid']}/{entry.get('tid', 0)}"
        if entry["ph"] == "M":
            if entry["name"] in ("process_name", "thread_name"):
                names[f"{entry['name']} {thread}"] = entry["args"]["name"]
            continue
        times = [int(Decimal(entry.get(name, 0)) * 1000) for name in ("ts", "dur")]
        values = entry["args"] if entry["ph"] == "C" else {}
        noted = [f"{key}={float(value):.9g}" for key, value in values.items()]
        rows[f"{thread} {entry['ph']} {entry['name']}"].append((*times, *noted))
    return {"names": names, "rows": {key: summed(each, 2) for key, each in rows.items()}}


def summed(rows: Sequence[Sequence[Any]], n_summed: int) -> str:
    """Return the number of rows, the sums of their first columns, and a digest of all of them."""
    sums = [str(sum(row[place] for row in rows)) for place in range(n_summed)]
    lines = "\n".join(sorted(" ".join(map(str, row)) for row in rows))
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    return f"{len(rows)} rows, sums {' '.join(sums)}, digest {digest}"


def _page(run: str) -> dict[str, Any]:
    file = Path("page.html").absolute()
    code = _said("report", run, "--html", str(file))["exit"]
    text = file.read_text()
    pattern = r'<script [^>]*id="iobench-timeline-{}-\d+">(.*?)</script>'
    metas = re.findall(pattern.format("meta"), text, re.DOTALL)
    datas = re.findall(pattern.format("data"), text, re.DOTALL)
    payloads = [
        TimelinePayload(json.loads(meta), data) for meta, data in zip(metas, datas, strict=True)
    ]
    return {"exit": code, "runs": [_page_rows(each) for each in payloads]}


def _page_rows(payload: TimelinePayload) -> dict[str, Any]:
    """Return the spans of a page's timeline, by lane and stage."""
    meta, columns = payload.meta, unpacked(payload)
    names = columns.pop("names")
    columns["name"] = [names[number] for number in columns["name"]]
    order = ("start", "length", "exposed", "sample", "nbytes", "batch", "epoch", "name", "marks",
             "pieces")  # fmt: skip
    rows = defaultdict(list)
    for number, (lane, stage) in enumerate(zip(columns["lane"], columns["stage"], strict=True)):
        lane_name = f"rank {meta['lanes'][lane]['rank']} {meta['lanes'][lane]['name']}"
        row = [columns[name][number] for name in order]
        rows[f"{lane_name}: {meta['stages'][stage]}"].append(row)
    facts = {name: meta[name] for name in ("n_spans", "n_shown", "length_ns", "missing", "steps")}
    return {**facts, "rows": {key: summed(each, 3) for key, each in rows.items()}}


def without(value: Any) -> Any:
    """Return a document without what is left out."""
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in LEFT_OUT}
    return [without(each) for each in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, old and new value of what differs; a new key is nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from differences(value, new.get(key, GONE), f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = list(zip(old, new, strict=True))
        if all(isinstance(each, dict) and "stage" in each for each in (*old, *new)):
            # The order of a table may change.
            stages = [{each["stage"]: each for each in rows} for rows in (old, new)]
            if stages[0].keys() == stages[1].keys() and len(stages[0]) == len(old):
                pairs = [(each, stages[1][stage]) for stage, each in stages[0].items()]
        for number, (before, after) in enumerate(pairs):
            yield from differences(before, after, f"{at}[{number}]")
    elif not _is_same(old, new, at):
        yield at, old, new


def _is_same(old: Any, new: Any, at: str) -> bool:
    kinds = {type(old), type(new)}
    if float in kinds and kinds <= {int, float}:
        close = 1e-6 if any(word in at for word in LOOSE) else 1e-9
        return math.isclose(old, new, rel_tol=close, abs_tol=close)
    return len(kinds) == 1 and old == new


def changed(stored: Path, said: dict[str, Any]) -> list[str]:
    """Return what differs of a case from what its folder stores, a line each."""
    return [
        f"{stored.name} {place}: was {before}, is {after}"
        for file in sorted(stored.glob("*.json"))
        for place, before, after in differences(
            json.loads(file.read_text()), said.get(file.stem), file.stem
        )
    ]


def store(folder: Path, said: dict[str, Any]) -> None:
    """Store what commands said of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.json"):
        file.unlink()
    for name, each in said.items():
        text = json.dumps(each, indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(f"{text}\n")


def main() -> int:
    """Compare, or store anew; return 1 where something differs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", metavar="CASE", help="only these")
    options.add_argument("--renew", action="store_true", help="store what is said now")
    options.add_argument("--runs", type=Path, default=HERE / "runs")
    options.add_argument("--stored", type=Path, default=HERE / "outputs")
    given = options.parse_args()
    os.environ["IOBENCH_LIMITS"] = "0.01"
    found, n_compared = [], 0
    with tempfile.TemporaryDirectory() as place:
        for name in unpack(given.runs, Path(place)):
            if given.cases and name not in given.cases:
                continue
            said = outputs_of(Path(place, name))
            if given.renew:
                store(given.stored / name, said)
            elif not (given.stored / name).is_dir():
                found.append(f"{name}: nothing is stored of it in {given.stored}")
            else:
                found += changed(given.stored / name, said)
            n_compared += 1
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{n_compared} cases, {len(found)} differences")
    return 1 if found or not n_compared else 0


if __name__ == "__main__":
    sys.exit(main())
