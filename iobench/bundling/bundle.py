"""A run as a help desk wants it: its directory, its report, versions, and no names."""

from __future__ import annotations

import io
import json
import re
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.run import open_runs
from iobench.bundling.archive import packed
from iobench.bundling.leftovers import find_leftovers
from iobench.bundling.path_scrubber import as_written
from iobench.bundling.pseudonyms import Pseudonyms
from iobench.bundling.run_copy import read_run_files, scrubbed_run, texts_of_run
from iobench.bundling.scrubbing import Scrubber
from iobench.bundling.vocabulary import vocabulary
from iobench.bundling.whoami import who_runs_this
from iobench.errors import IobenchError, MissingExtraError, OptionError, ProfileError
from iobench.frozen import frozen
from iobench.profiles.folders import run_paths
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.bundling.run_copy import RunFiles

FOLDER: Final = "iobench-bundle"
VERSION: Final = 1
KINDS: Final = {
    "p": "folder",
    "file": "file",
    "arg": "argument or value",
    "ip": "IP address",
    "mail": "e-mail address",
    "secret": "password, token or query",
    "id": "unique number",
    "boot": "boot of a machine",
    "uid": "number of a user",
}
HOW: Final = (
    "The same name has the same pseudonym everywhere, in texts and in span files; two names never "
    "share one.",
    "Paths keep their depth, the suffixes of files, folders that every machine has and what is "
    "below site-packages; a home directory is ~.",
    "Of commands the options stay, and values that are figures or words of iobench.",
    "Times, bytes and counts are untouched. The names of stages stay, but for names in them.",
    "What could not be read in damaged files is blanked.",
)
LOOKED_THROUGH: Final = (
    "No file here holds any name that was replaced; names that are also words of reports are in no "
    "path."
)


@frozen
class Replacement:
    """A name, what it is, what stands for it, and whether it is replaced in all texts.

    ``everywhere`` is False of a name that is also a word of reports: it is replaced where a path, a
    user or a host is told.
    """

    kind: str
    name: str
    pseudonym: str
    everywhere: bool


@frozen
class Bundle:
    """What is to be passed on.

    Parameters
    ----------
    files : mapping of str to bytes
        By name, the manifest among them.
    manifest : mapping
        What is in ``MANIFEST.json``.
    notes : tuple of str
        What whoever passes it on should know.
    """

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    replacements: tuple[Replacement, ...]
    notes: tuple[str, ...]

    def packed(self) -> bytes:
        """Return it as a ``.tar.gz``; the same run makes the same bytes."""
        return packed(FOLDER, self.files)


def make_bundle(
    run: Path,
    *,
    versions: Mapping[str, Any],
    environment: Mapping[str, str],
    keep: Sequence[str] = (),
) -> Bundle:
    """Read a run directory, replace all names in it, and make its report anew.

    Parameters
    ----------
    run : Path
        A run directory, or one that holds one per format. Span files that its processes left in a
        spool on this machine are brought into it first, as every reader of a run does; nothing
        else in it is changed.
    versions : mapping
        What is installed, as ``iobench doctor --json`` has it.
    environment : mapping of str to str
        Whose variables tell user, host and job.
    keep : sequence of str
        Names that stay.

    Raises
    ------
    ProfileError
        If it is no run directory, or of a version that this iobench cannot read; or if a name was
        left that had to be replaced.
    OptionError
        If a name to keep is in no text.
    """
    runs = [read_run_files(path) for path in run_paths(run)]
    with tempfile.TemporaryDirectory(prefix="iobench-bundle-") as stage:
        scrubbed = scrub(
            runs, {"versions.json": dict(versions)}, environment=environment, keep=keep
        )
        # What a report calls its run is the name of the folder: the same each time.
        reports, why = _reports(Path(stage) / FOLDER, scrubbed.of_runs)
        files = scrubbed.files | reports
    notes = tuple(notes_of_runs(runs))
    manifest = {
        "version": VERSION,
        "open_with": f"iobench report {FOLDER}",
        **scrubbed.manifest(files, (*notes, *why)),
    }
    files["MANIFEST.json"] = json_bytes(manifest)
    scrubbed.look_through(files, stage)
    replacements = tuple(
        Replacement(KINDS.get(kind, kind), name, pseudonym, everywhere)
        for kind, name, pseudonym, everywhere in scrubbed.names.told()
    )
    return Bundle(files, manifest, replacements, notes)


@frozen
class Scrubbed:
    """Runs and documents without the names in them.

    Parameters
    ----------
    of_runs : dict of str to bytes
        The files of the runs.
    documents : dict of str to object
        Values of JSON, by the names of their files.
    names : Pseudonyms
        What was replaced, to be looked for again.
    """

    of_runs: dict[str, bytes]
    documents: dict[str, Any]
    names: Pseudonyms

    @property
    def files(self) -> dict[str, bytes]:
        """All files, the documents among them."""
        return self.of_runs | {name: json_bytes(each) for name, each in self.documents.items()}

    def manifest(self, files: Mapping[str, bytes], notes: Sequence[str]) -> dict[str, Any]:
        """Return what a manifest says: what was replaced and how, and what each file is."""
        return _manifest(files, self.names, notes)

    def look_through(self, files: Mapping[str, bytes], *more: str) -> None:
        """Refuse files that still hold a name that had to be replaced, or one of ``more``.

        Raises
        ------
        ProfileError
            If one does.
        """
        left = find_leftovers(files, self.names, more)
        if left:
            name, file = left[0]
            others = f", and {len(left) - 1} more" if len(left) > 1 else ""
            raise ProfileError(
                f"{file}: still holds {name!r}{others}, so nothing was written; --keep it if it "
                "is no secret"
            )


def scrub(
    runs: Sequence[RunFiles],
    documents: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    keep: Sequence[str] = (),
    folders: Sequence[str] | None = None,
) -> Scrubbed:
    """Replace all names in runs and in documents that are told of them, the same by the same.

    Parameters
    ----------
    documents : mapping of str to object
        Values of JSON, by the names of their files.
    environment, keep
        As for `make_bundle`.
    folders : sequence of str, optional
        Where the files of each run go; by default one run's to the top, and several in a folder
        each that is called as theirs was.

    Raises
    ------
    OptionError
        If a name to keep is in no text.
    """
    texts = [text for each in runs for text in texts_of_run(each)]
    texts += [json.dumps(each, ensure_ascii=False) for each in documents.values()]
    who = who_runs_this(texts, environment)
    taken = _words([*texts, *who.users, *who.hosts, *who.jobs])
    names = Pseudonyms(vocabulary(), keep, taken)
    scrubber = Scrubber(names, who)
    for each in runs:
        scrubber.paths.path(as_written(str(each.path)))
    # Twice: names that the first pass found in one file may stand in the texts of another.
    for _ in range(2):
        scrubber.forget()
        of_runs = dict(_run_files(runs, scrubber, folders))
        told = {name: scrubber.document(each) for name, each in documents.items()}
    _check_kept(names, texts)
    return Scrubbed(of_runs, told, names)


def _words(texts: Sequence[str]) -> set[str]:
    """Return every word, with and without the strokes in it."""
    return {
        word for text in texts for form in (r"\w+", r"[\w-]+") for word in re.findall(form, text)
    }


def _run_files(
    runs: Sequence[RunFiles], scrubber: Scrubber, folders: Sequence[str] | None
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of each run."""
    for number, each in enumerate(runs):
        if folders is not None:
            folder = f"{folders[number]}/"
        else:
            folder = "" if len(runs) == 1 else f"{scrubber.text(as_written(each.path.name))}/"
        for name, data in scrubbed_run(each, scrubber).items():
            yield folder + name, data


def _check_kept(names: Pseudonyms, texts: Sequence[str]) -> None:
    for name in sorted(names.keep - names.kept):
        if not any(name in text for text in texts):
            raise OptionError(f"--keep {name}: is nowhere in the run; expected a name as it has it")


def _reports(stage: Path, files: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return the report as text, JSON and a page, made of the scrubbed files; and what is not."""
    for name, data in files.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    here = re.compile(re.escape(str(stage)))
    try:
        runs = open_runs(stage)
        document = report_document(runs)
        text = TerminalRenderer(io.StringIO()).render(document)
        figures = document.figures() if document.figures is not None else {}
    except IobenchError as error:
        why = here.sub(".", str(error))
        return {"report.txt": f"No report: {why}\n".encode()}, [f"There is no report: {why}"]
    found = {
        "report.txt": here.sub(".", text).encode("utf-8", "backslashreplace"),
        "report.json": here.sub(".", json_bytes(figures).decode()).encode(),
    }
    try:
        page = HtmlRenderer().render(document)
        found["report.html"] = here.sub(".", page).encode("utf-8", "backslashreplace")
    except MissingExtraError as error:
        return found, [f"There is no report.html: {error}"]
    return found, []


def notes_of_runs(runs: Sequence[RunFiles]) -> Iterator[str]:
    """Yield what whoever passes runs on should know: what is left out, and what is not whole."""
    unclosed = sum(len(run.unclosed) for run in runs)
    if unclosed:
        yield (
            f"{unclosed} of the run's span files were not closed: it was still being written, or "
            "was killed. This is what there was."
        )
    unreadable = [name for run in runs for name in run.unreadable]
    if unreadable:
        yield (
            f"{len(unreadable)} span files are left out: without an intact header, their content "
            "is unknown."
        )
    n_unknown = sum(run.n_unknown for run in runs)
    if n_unknown:
        yield f"{n_unknown} files of the run directory are left out: no report reads them."
    if any(run.spool for run in runs):
        yield "Span files may be left in the run's spool on another machine."
    if any(run.has_logs for run in runs):
        yield "Logs of a tracer are left out: they cannot be scrubbed."


def _manifest(
    files: Mapping[str, bytes], names: Pseudonyms, notes: Sequence[str]
) -> dict[str, Any]:
    from importlib.metadata import version

    counts: dict[str, dict[str, int]] = {}
    for kind, _, _, everywhere in names.told():
        row = counts.setdefault(KINDS.get(kind, kind), {"names": 0, "also_words_of_reports": 0})
        row["names"] += 1
        row["also_words_of_reports"] += not everywhere
    return {
        "iobench": version("iobench"),
        "replaced": counts,
        "ambiguous": [pseudonym for _, _, pseudonym, everywhere in names.told() if not everywhere],
        "how": [*HOW, LOOKED_THROUGH],
        "kept": sorted(names.keep),
        "notes": list(notes),
        "files": {
            name: {"nbytes": len(data), "sha256": sha256(data).hexdigest()}
            for name, data in sorted(files.items())
        },
    }


def json_bytes(document: Any) -> bytes:
    """Return a document as the bytes of a file, for people to read as well."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")
