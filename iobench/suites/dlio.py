"""Cells of a suite as workloads of DLIO, and what DLIO found as results beside ours.

DLIO (argonne-lcf/dlio_benchmark) is what MLPerf Storage runs: it makes files of a sample's size and
reads them beside an emulated step. Keys are those of MLPerf Storage 2.0 and of DLIO 2.0.0, which
calls the size ``record_length``; each leaves alone what it does not know.
"""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.run import Run
from iobench.errors import ProfileError
from iobench.files.atomic import storage_errors
from iobench.frozen import frozen
from iobench.json_files import read_json
from iobench.report.written import write_whole
from iobench.subjects.utilisation.figures import utilisation
from iobench.suites.results import (
    DLIO,
    MEASURED,
    Result,
    find_results,
    measured_runs,
    read_result,
    write_result,
)
from iobench.suites.suite_folder import CELLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.run import RankRun

FORMATS: Final = {
    "numpy": "npy", "tfrecord": "tfrecord", "NetCDF": "hdf5", "hdf5": "hdf5",
}  # fmt: skip
"""What of ours DLIO has; a NetCDF-4 file is HDF5."""
STANDS_FOR_OTHERS: Final = "npy"
AU_ASKED: Final = {"cosmoflow": 0.7}
"""What MLPerf Storage asks of workloads that are ours too; of others DLIO takes 0.9."""
OF_SUMMARY: Final = {
    "samples_per_s": ("train_throughput_mean_samples_per_second", 1),
    "bytes_per_s": ("train_io_mean_MB_per_second", 1 << 20),
    "utilisation": ("train_au_mean_percentage", 0.01),
}
"""Figures by our names: DLIO's, and what one of its units is in ours."""
GIB: Final = 1 << 30
LARGEST: Final = 1e100
FOLDER: Final = "workload"
SUMMARY, OF_RANKS, CONFIG = "summary.json", "*_output.json", ".hydra/config.yaml"
MODEL_NAME: Final = re.compile(
    r"^( *)model:(?: +|(?:\n\1 +.*)*?\n\1 +name: +)['\"]?([\w.+-]+)", re.MULTILINE
)


@frozen
class Workload:
    """A cell as DLIO runs it.

    Parameters
    ----------
    name : str
        What DLIO is given as ``workload=``.
    text : str
        Its YAML.
    utilisation : float or None
        The accelerator utilisation that was measured of the cell, by DLIO's formula.
    """

    name: str
    text: str
    utilisation: float | None


def write_workloads(folder: Path, out: Path) -> tuple[Workload, ...]:
    """Write a workload for each cell of a suite that was measured, of all its runs.

    Raises
    ------
    ProfileError
        If no cell can be said: none was measured, or sizes or steps are unknown.
    StorageError
        If a file cannot be written.
    """
    made: list[Workload] = []
    for parent, found in groupby(measured_runs(folder), key=lambda each: each[0].parent):
        runs = [Run.open(run).of_rank() for *_, run in found]
        made += filter(None, [_workload(_plain(parent.name), runs)])
    if not made:
        raise ProfileError(
            f"{folder}: no cell has runs whose samples and steps are known; expected a suite that "
            "was measured"
        )
    for each in made:
        path = out / FOLDER / f"{each.name}.yaml"
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, each.text)
    return tuple(made)


def _workload(name: str, runs: Sequence[RankRun]) -> Workload | None:
    facts = runs[0].about
    used = [each for each in (run.once(utilisation) for run in runs) if each is not None]
    stretches = [stretch for each in used for stretch in each.stretches]
    n_steps = sum(stretch.n_steps - 1 for stretch in stretches)
    store = facts.store
    n_samples = facts.n_samples_all if store is None else store.n_samples
    nbytes = facts.files_nbytes if store is None else store.nbytes
    n_files = runs[0].whole.config.get("n_files")
    if not (n_steps and n_samples and nbytes and n_files and facts.batch_size):
        return None
    n_files = min(n_files, n_samples)
    per_file = round(n_samples / n_files)
    kind = facts.source_kind if facts.format == "source" else facts.format
    dlio_format = FORMATS.get(str(kind), STANDS_FOR_OTHERS)
    framework = "tensorflow" if dlio_format == "tfrecord" else "pytorch"
    compute_s = sum(stretch.compute_ns for stretch in stretches) / n_steps / 1e9
    sample_nbytes = round(nbytes / n_samples)
    told: dict[str, Any] = {
        "model": {"name": name},
        "framework": framework,
        "workflow": {"generate_data": False, "train": True},
        "dataset": {
            "data_folder": f"data/{name}",
            "format": dlio_format,
            "num_files_train": n_files,
            "num_samples_per_file": per_file,
            "record_length_bytes": sample_nbytes,
            "record_length": sample_nbytes,
        },
        "reader": {
            "data_loader": framework,
            "batch_size": facts.batch_size,
            "read_threads": facts.workers or facts.threads or 1,
            "file_shuffle": "seed",
            "sample_shuffle": "seed",
        },
        "train": {
            "epochs": len(used[0].epochs),
            "computation_time": compute_s,
        },
    }
    asked = next((au for what, au in AU_ASKED.items() if what in str(facts.dataset)), None)
    if asked is not None:
        told["metric"] = {"au": asked}
    shares = [each.fraction for each in used if each.fraction is not None]
    measured = fmean(shares) if shares else None
    lines = [f"Of {len(runs)} runs of {facts.dataset}, as iobench measured them on its machine."]
    if str(kind) not in FORMATS:
        lines.append(
            f"DLIO has no {kind or 'such files'}: {dlio_format} stands for it, as many bytes in as "
            "many files."
        )
    if n_files * per_file != n_samples:
        lines.append(
            f"Of {n_samples} samples: DLIO's files hold equally many, {n_files * per_file} in all."
        )
    if measured is not None:
        lines.append(f"Accelerator utilisation by the same formula there: {measured:.4f}")
    text = "".join(f"# {line}\n" for line in lines) + "\n".join(_yaml(told)) + "\n"
    return Workload(name, text, measured)


def _yaml(told: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    for key, value in told.items():
        if isinstance(value, dict):
            yield f"{'  ' * depth}{key}:"
            yield from _yaml(value, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {json.dumps(value)}"


def read_dlio(output: Path, folder: Path) -> Result:
    """Keep what DLIO found beside the results of a suite.

    Parameters
    ----------
    output : Path
        Where DLIO wrote ``summary.json``.
    folder : Path
        Of the suite. Of a workload that was written of one of its cells the result is of that cell
        with ``framework = "dlio"``; of another one its dataset is the workload's name.

    Raises
    ------
    ProfileError
        If it holds no results of DLIO, or of an MLPerf Storage run that did not end.
    StorageError
        If they cannot be copied.
    """
    figures = dlio_figures(output)
    summary = _json(output / SUMMARY)
    name = _model_of(output)
    cells = {_plain(path.parent.name): read_result(path) for path in find_results(folder)}
    ours = cells.get(name)
    like = ours or next(iter(cells.values()), None)
    if like is None:
        raise ProfileError(f"{folder}: holds no result; expected a folder of 'iobench suite --out'")
    place = folder / CELLS / f"{DLIO}-{name}"
    number = len(list(find_results(place))) if place.is_dir() else 0
    copied = place / f"round-{number}"
    with storage_errors(copied):
        copied.mkdir(parents=True)
        for file in [output / SUMMARY, *sorted(output.glob(OF_RANKS))]:
            shutil.copyfile(file, copied / file.name)
    result = Result(
        suite=like.suite,
        recipe_digest=like.recipe_digest,
        cell={**(ours.cell if ours else {"dataset": name}), "framework": DLIO},
        round=number,
        status=MEASURED,
        started=_utc(summary.get("start")),
        figures=figures,
        machine=_machine(summary),
        versions={},
        run=copied.name,
    )
    write_result(place, result)
    return result


def dlio_figures(output: Path) -> dict[str, float]:
    """Return the figures of a folder that DLIO wrote, by the names of a suite's.

    Raises
    ------
    ProfileError
        If they are not there.
    """
    summary = _json(output / SUMMARY)
    metric = summary.get("metric")
    found = metric if isinstance(metric, dict) else {}
    told = {name: found.get(key) for name, (key, _) in OF_SUMMARY.items()}
    if not all(map(_is_number, told.values())):
        raise ProfileError(
            f"{output / SUMMARY}: has no throughput and no utilisation of a training; expected "
            "what DLIO writes at the end of a run"
        )
    figures = {name: float(told[name] or 0) * unit for name, (_, unit) in OF_SUMMARY.items()}
    steps: list[Any] = []
    waits: list[Any] = []
    for file in sorted(output.glob(OF_RANKS)):
        for epoch, inside in _json(file).items():
            if not (epoch.isdecimal() and isinstance(inside, dict)):
                continue
            # As in the utilisation, the first step of a block is left out.
            for into, key in ((steps, "proc"), (waits, "load")):
                stretches = inside.get(key)
                for part, times in stretches.items() if isinstance(stretches, dict) else ():
                    if part.startswith("block") and isinstance(times, list):
                        into += times[1:]
    for name, times in (("step_s", steps), ("wait_s", waits)):
        if times and all(map(_is_number, times)):
            figures[name] = fmean(times)
    return figures


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < LARGEST


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path, finite=True)
    except OSError as error:
        raise ProfileError(
            f"{path}: {error.strerror or error}; expected the folder that DLIO wrote, with "
            f"{SUMMARY}"
        ) from error
    except ValueError as error:
        raise ProfileError(f"{path}: is damaged ({error}); expected what DLIO wrote") from error
    if not isinstance(found, dict):
        raise ProfileError(f"{path}: is no object; expected what DLIO wrote")
    return found


def _model_of(output: Path) -> str:
    """Return the name of the workload, else that of the folder."""
    try:
        found = MODEL_NAME.search((output / CONFIG).read_text("utf-8", "replace"))
    except OSError:
        found = None
    return _plain(output.resolve().name) if found is None else found[2]


def _plain(name: str) -> str:
    """Return a name that DLIO's command line takes as one word."""
    return re.sub(r"[^\w.+-]+", "-", name)


def _utc(told: Any) -> str:
    """Return a time of DLIO's, which is that of its machine's zone, taken to be this one's."""
    try:
        return datetime.fromisoformat(str(told)).astimezone(UTC).isoformat()
    except ValueError:
        return ""


def _machine(summary: Mapping[str, Any]) -> dict[str, Any]:
    cpu, memory = summary.get("host_cpuinfo"), summary.get("host_memory_GB")
    cores = summary.get("host_cpu_count")
    found = {
        "host": summary.get("hostname"),
        "cpu_model": cpu.get("model name") if isinstance(cpu, dict) else None,
        "cores": cores[0] if isinstance(cores, list) and cores else None,
    }
    if isinstance(memory, list) and memory and isinstance(memory[0], float):
        found["memory_bytes"] = round(memory[0] * GIB)
    return {key: value for key, value in found.items() if isinstance(value, str | int)}
