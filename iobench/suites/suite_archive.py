"""A suite packed to be handed in, and checked by anybody: figures are made again, not believed.

An archive unpacked is a folder of results like any other::

    MANIFEST.json               what each file is (SHA-256), what was replaced, what is missing
    recipe.json  versions.json  what was asked for; what is installed where it was packed
    cells/000-1.result.json     what round 1 of the recipe's first cell found
    cells/000-1/                the run directory that this is of
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from iobench.bundling.archive import MANIFEST, packed, unpack
from iobench.bundling.bundle import json_bytes, notes_of_runs, scrub
from iobench.bundling.run_copy import KNOWN, read_run_files
from iobench.errors import IobenchError, ProfileError
from iobench.frozen import frozen
from iobench.json_files import read_json
from iobench.report.written import write_whole
from iobench.subjects.history.suite_facts import SAMPLES, values_of
from iobench.suites.dlio import dlio_figures
from iobench.suites.metrics import figures_of_run
from iobench.suites.recipe import SuiteRecipe
from iobench.suites.results import (
    MEASURED,
    RESULT_SUFFIX,
    Result,
    find_results,
    read_result,
)
from iobench.suites.suite_folder import RECIPE_FILE, SuiteFolder, read_folder_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.profiles.run_facts import RunFacts

FOLDER: Final = "iobench-suite"
KIND: Final = "iobench suite archive"
VERSION: Final = 1
SAME_SAMPLES: Final = frozenset(
    {"format", "framework", "workers", "prefetch", "cache", "compute", "machine", "energy",
     "monitor", "darshan", "device", "detail", "store-dir"}
)  # fmt: skip
"""Options whose cells deliver equal samples."""
OWN_FILES: Final = frozenset({RECIPE_FILE, "versions.json"})
OF_DLIO: Final = "*.json"
"""And a run's own ``run.json``."""
CLOSE: Final = 1e-9
"""Sums of the same numbers may differ by so much from one processor to another."""


@frozen
class PackedSuite:
    """What was packed.

    Parameters
    ----------
    nbytes, n_files, n_names : int
        Of the archive; files in it; names that were replaced.
    notes : tuple of str
        What whoever passes it on should know.
    """

    sha256: str
    nbytes: int
    n_files: int
    n_names: int
    notes: tuple[str, ...]


@frozen
class CheckedArchive:
    """Whether an archive holds what it says.

    Parameters
    ----------
    title : str
        Of the suite.
    sha256 : str
        Of the archive.
    n_results, n_figures, n_unproven : int
        Results in it; figures that were made again of their runs; runs whose figures were not.
    wrong : tuple of str
        Why it does not hold; none where it does.
    notes : tuple of str
        What else is to be known: cells that failed, several machines or versions.
    """

    title: str
    sha256: str
    n_results: int
    n_figures: int
    n_unproven: int
    wrong: tuple[str, ...]
    notes: tuple[str, ...]


def pack(
    folder: Path,
    archive: Path,
    *,
    versions: Mapping[str, Any],
    environment: Mapping[str, str],
    keep: Sequence[str] = (),
    spans: bool = True,
) -> PackedSuite:
    """Write one archive of a suite, without the names of people, machines and places.

    Parameters
    ----------
    folder : Path
        As ``iobench suite --out`` wrote it.
    archive : Path
        A ``.tar.gz``.
    versions, environment, keep
        As for `iobench.bundling.bundle.make_bundle`.
    spans : bool
        Take the spans of runs; without them nobody can make the figures again.

    Raises
    ------
    ProfileError
        If it is no suite, a result cannot be read, or a name was left that had to be replaced.
    StorageError
        If it cannot be written.
    """
    recipe = read_folder_recipe(folder)
    numbers = {cell.key: cell.number for cell in recipe.cells()}
    results: dict[str, Result] = {}
    documents: dict[str, Any] = {RECIPE_FILE: recipe.to_json(), "versions.json": dict(versions)}
    runs, folders = [], []
    for path in find_results(folder):
        result = read_result(path)
        if result.recipe_digest != recipe.digest:
            raise ProfileError(f"{path}: is of another recipe than {folder}; measure it again")
        number = numbers.setdefault(result.key, len(numbers))
        # No folder is called so by others: it would be taken for a name that was left.
        run_name = f"{number:03d}-{result.round}"
        name = f"cells/{run_name}"
        if name in results:
            raise ProfileError(f"{path}: is a second result of its cell and round; remove one")
        directory = None if result.run is None else path.parent / result.run
        if directory is None or not directory.is_dir():
            results[name] = replace(result, run=None)
            continue
        results[name] = replace(result, run=run_name)
        if result.is_of_dlio:
            documents |= {
                f"{name}/{each.name}": read_json(each) for each in directory.glob("*.json")
            }
            continue
        run = read_run_files(directory)
        if not spans:
            run.files = {key: each for key, each in run.files.items() if key[:6] != "spans/"}
        runs.append(run)
        folders.append(name)
    documents |= {name: asdict(result) for name, result in results.items()}
    scrubbed = scrub(runs, documents, environment=environment, keep=keep, folders=folders)
    told = SuiteRecipe.from_json(scrubbed.documents[RECIPE_FILE], where=f"{folder}: the recipe")
    cells = told.cells()
    if len(cells) != len(recipe.cells()):
        raise ProfileError(
            f"{folder}: a [[skip]] of its recipe matches names that are replaced; --keep them"
        )
    clean: list[Result] = []
    for name, result in results.items():
        document, number = scrubbed.documents.pop(name), numbers[result.key]
        if number < len(cells) and result.options == recipe.cells()[number].told:
            document["options"] = cells[number].told
        # Figures, times and digests are no names; cells are those of the scrubbed recipe.
        kept = replace(
            result,
            suite=told.name,
            recipe_digest=told.digest,
            cell=cells[number].values if number < len(cells) else document["cell"],
            **{key: document[key] for key in ("reason", "machine", "versions", "options")},
        )
        clean.append(kept)
        scrubbed.documents[f"{name}{RESULT_SUFFIX}"] = kept.document
    manifest = {
        "kind": KIND,
        "version": VERSION,
        "check_with": "iobench suite verify",
        "recipe_digest": told.digest,
        "has_spans": spans,
        "missing": list(_missing(told, clean)),
        **scrubbed.manifest(scrubbed.files, tuple(notes_of_runs(runs)) if spans else ()),
    }
    files = scrubbed.files | {MANIFEST: json_bytes(manifest)}
    scrubbed.look_through(files)
    data = packed(FOLDER, files)
    write_whole(archive, data)
    digest, n_names = sha256(data).hexdigest(), len(scrubbed.names.told())
    return PackedSuite(
        digest, len(data), len(files), n_names, (*manifest["missing"], *manifest["notes"])
    )


def verify(archive: Path) -> CheckedArchive:
    """Check all that an archive says by what is in it; nothing of it is run or kept.

    Raises
    ------
    ProfileError
        If it cannot be read, is no such archive, or is of a later version.
    """
    with tempfile.TemporaryDirectory(prefix="iobench-suite-") as place:
        manifest, changed = unpack(archive, FOLDER, Path(place))
        if manifest.get("kind") != KIND:
            raise ProfileError(f"{archive}: is no archive of a suite; expected one of 'suite pack'")
        if manifest.get("version") != VERSION:
            raise ProfileError(
                f"{archive}: is of version {manifest.get('version')}, expected {VERSION}; use a "
                "later iobench"
            )
        found = _verdict(Path(place), manifest, changed)
    with archive.open("rb") as file:
        return replace(found, sha256=file_digest(file, "sha256").hexdigest())


def _verdict(folder: Path, manifest: Mapping[str, Any], changed: Sequence[str]) -> CheckedArchive:
    wrong = list(changed)
    try:
        recipe = read_folder_recipe(folder)
    except ProfileError as error:
        return CheckedArchive("", "", 0, 0, 0, (*wrong, str(error).replace(f"{folder}/", "")), ())
    if manifest.get("recipe_digest") != recipe.digest:
        wrong.append(f"{RECIPE_FILE}: its digest is {recipe.digest}, and its manifest says another")
    results: dict[str, Result] = {}
    for path in find_results(folder):
        name = path.relative_to(folder).as_posix().removesuffix(RESULT_SUFFIX)
        try:
            results[name] = read_result(path)
        except ProfileError as error:
            wrong.append(str(error).replace(f"{folder}/", ""))
    wrong += _wrong_cells(recipe, results)
    missing = list(_missing(recipe, results.values()))
    told = manifest.get("missing")
    wrong += [
        f"{line}, and its manifest does not say so" for line in missing if line not in (told or [])
    ]
    wrong += _strange_files(results, manifest["files"])
    wrong += _same_runs(manifest["files"])
    again = {name: _Again(folder / name, each) for name, each in results.items()}
    for name, each in again.items():
        wrong += [f"{name}: {line}" for line in each.wrong]
    wrong += _wrong_samples(results, again)
    failed = [
        f"{name}: {result.status}: {result.reason}"
        for name, result in results.items()
        if result.status != MEASURED
    ]
    n_measured = len(results) - len(failed)
    n_unproven = n_measured - sum(each.n_figures > 0 for each in again.values())
    notes = [*missing, *failed, *_several(results.values()), *_not_compared(results, again)]
    if n_unproven:
        notes.insert(
            0,
            f"The figures of {n_unproven} of {n_measured} runs are not proven: it has no spans of "
            "them.",
        )
    if manifest.get("iobench") != version("iobench"):
        notes.append(f"Packed by iobench {manifest.get('iobench')}; this is {version('iobench')}.")
    n_figures = sum(each.n_figures for each in again.values())
    return CheckedArchive(
        recipe.title, "", len(results), n_figures, n_unproven, tuple(wrong), tuple(notes)
    )


class _Again:
    """The figures of one result, made again of the run that is beside it."""

    def __init__(self, place: Path, result: Result) -> None:
        self.wrong: list[str] = []
        self.n_figures = 0
        self.facts: RunFacts | None = None
        if result.status != MEASURED or result.run is None:
            return
        directory = place.parent / result.run
        if directory != place:
            self.wrong.append(f"says that its run is {result.run!r}, expected the folder beside it")
            return
        digest = None
        try:
            if result.is_of_dlio:
                figures = dlio_figures(directory)
            elif not (directory / "spans").is_dir():
                return
            elif (read_json(directory / "run.json").get("spool")) is not None:
                # Opening it would take span files from there.
                self.wrong.append("its run.json names a spool, and no run that was packed has one")
                return
            else:
                made = figures_of_run(directory)
                figures, digest, self.facts = dict(made.figures), made.samples_digest, made.facts
        except (AttributeError, IobenchError, OSError, ValueError) as error:
            self.wrong.append(str(error).replace(f"{place.parent}/", ""))
            return
        self.n_figures = len(figures)
        for name in sorted(figures.keys() | result.figures.keys()):
            stated, found = result.figures.get(name), figures.get(name)
            if stated is None or found is None or not math.isclose(stated, found, rel_tol=CLOSE):
                self.wrong.append(f"{name} is stated as {stated}, and its run gives {found}")
        if digest != result.samples_digest:
            self.wrong.append(
                f"samples_digest is stated as {result.samples_digest}, and its run gives {digest}"
            )
        self.wrong += self._of_another(result)

    def _of_another(self, result: Result) -> Iterator[str]:
        """Yield what a run says of itself that is not what its cell is."""
        facts = self.facts
        if facts is None:
            return
        # What loads as applications do is of their own framework, whatever is asked for.
        is_own = result.options.get("pipeline", "own") == "own"
        told = {
            "format": facts.format,
            "framework": facts.framework if is_own else None,
            "batch-size": facts.batch_size,
            "workers": facts.asked.get("workers"),
            "batches": None if "epochs" in result.options else facts.asked.get("batches"),
            "cache": facts.cache.asked,
        }
        for key, said in told.items():
            wanted = result.cell.get(key, result.options.get(key))
            if None not in (said, wanted) and str(wanted).partition(":")[0] != str(said):
                yield f"is a cell of {key} {wanted}, and its run is of {said}"
        wanted, said = result.machine.get("cpu_model"), facts.machine.get("cpu_model")
        if None not in (said, wanted) and said != wanted:
            yield f"is of a machine with {wanted}, and its run of one with {said}"


def _strange_files(results: Mapping[str, Result], files: Iterable[str]) -> Iterator[str]:
    """Yield files that are no part of a suite, though the manifest has them."""
    for file in sorted(set(files) - OWN_FILES):
        place = PurePosixPath(file)
        inside = PurePosixPath(*place.parts[2:]) if len(place.parts) > 2 else place
        known = OF_DLIO if len(inside.parts) == 1 else KNOWN.get(inside.parts[0], "no")
        of_run = "/".join(place.parts[:2])
        if file.removesuffix(RESULT_SUFFIX) not in results and not (
            of_run in results and results[of_run].run and inside.match(known)
        ):
            yield f"{file}: is no file of a suite"


def _wrong_cells(recipe: SuiteRecipe, results: Mapping[str, Result]) -> Iterator[str]:
    """Yield what is of another recipe, cell or round."""
    cells = {cell.key: cell for cell in recipe.cells()}
    seen: dict[Any, str] = {}
    for name, result in results.items():
        first = seen.setdefault((result.key, result.round), name)
        if first != name:
            yield f"{name}: is of the same cell and round as {first}"
        if result.recipe_digest != recipe.digest:
            yield f"{name}: is of recipe {result.recipe_digest}, expected {recipe.digest}"
        if result.is_of_dlio:
            continue
        cell = cells.get(result.key)
        if cell is None:
            yield f"{name}: is of a cell that the recipe does not have"
        elif result.options != cell.told:
            yield f"{name}: has other options than its cell of the recipe"
        if not 0 <= result.round < recipe.repeats:
            yield f"{name}: is of round {result.round}, and the recipe has {recipe.repeats}"
        if result.status != MEASURED and not result.reason:
            yield f"{name}: is {result.status} without a reason"


def _same_runs(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield runs that are handed in twice: no two processes write the same spans."""
    runs: dict[str, set[str]] = defaultdict(set)
    for file, told in files.items():
        of_run, _, name = file.partition("/spans/")
        if name:
            runs[str(told["sha256"])].add(of_run)
    for names in sorted({tuple(sorted(each)) for each in runs.values() if len(each) > 1}):
        yield f"{' and '.join(names)}: are one run, its spans are the same"


def _missing(recipe: SuiteRecipe, results: Iterable[Result]) -> Iterator[str]:
    """Yield the cells that do not have all their rounds, but for those that failed."""
    left = SuiteFolder.of(Path(), recipe).open_jobs(results)
    counts = Counter(job.cell.number for job in left)
    for cell in recipe.cells():
        if n_missing := counts[cell.number]:
            yield f"{cell.name}: {n_missing} of {recipe.repeats} rounds were not measured"


def _wrong_samples(results: Mapping[str, Result], again: Mapping[str, _Again]) -> Iterator[str]:
    """Yield cells that should have delivered the same samples and did not."""
    groups: dict[Any, dict[str | None, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, result in results.items():
        if result.status != MEASURED or _why_not_compared(result, again[name].facts):
            continue
        same = {key: each for key, each in result.options.items() if key not in SAME_SAMPLES}
        groups[tuple(sorted(same.items()))][result.samples_digest].append(name)
    for group in groups.values():
        if len(group) > 1 or None in group:
            told = "; ".join(f"{digest} in {', '.join(names)}" for digest, names in group.items())
            yield f"samples are not shown to be equal: {told}"


def _why_not_compared(result: Result, facts: RunFacts | None) -> str:
    """Return why nobody can say whether a run had the samples of others; ``""`` where one can."""
    if result.options.get("digests") != "true":
        return "no digests were asked for"
    if facts is None:
        return "it has no spans of them"
    if facts.store is not None and facts.store.lossy:
        return "their encoding is lossy"
    if facts.own_order or "duration" in result.options:
        return "they take an order or a length of their own"
    return ""


def _not_compared(results: Mapping[str, Result], again: Mapping[str, _Again]) -> Iterator[str]:
    """Yield of how many runs samples are not shown to be equal, and why."""
    runs = {
        name: result
        for name, result in results.items()
        if result.status == MEASURED and not result.is_of_dlio
    }
    why = Counter(_why_not_compared(each, again[name].facts) for name, each in runs.items())
    for reason, number in sorted(why.items()):
        if reason:
            yield f"Samples of {number} of {len(runs)} runs are not shown to be equal: {reason}."


def _several(results: Iterable[Result]) -> Iterator[str]:
    """Yield machines and versions of which there are several."""
    for what, values in values_of(results).items():
        if len(values) > 1 and what != SAMPLES:
            yield f"Several in it, {what.replace('_', ' ')}: {', '.join(values)}"
