"""Counts of a run: what it did, in numbers that no machine changes, compared exactly.

Only what belongs to batches that the training loop got is counted: loading processes run ahead,
and how far they had come when the run ended is chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from iobench.errors import FileFormatError, MissingFileError, ProfileError
from iobench.findings.batch_digests import delivered_samples
from iobench.json_files import read_small_file
from iobench.recording.kinds import WHOLE, WORKER_KINDS, Kind, Trait, stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import halves, stage_keys
from iobench.report.written import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run

Value = int | str | None
Bound = Literal["asked_nbytes", "peak_nbytes"]
BOUNDS: Final[tuple[Bound, Bound]] = ("asked_nbytes", "peak_nbytes")
STAGES: Final = "stages/"
DIGESTS: Final = "digests/"
FIGURES: Final = (
    "samples", "used_nbytes", "opens", "reads", "read_nbytes", "handed_on_nbytes",
)  # fmt: skip
LESS_IS_BETTER: Final = ("opens", "reads", "read_nbytes", "handed_on_nbytes", STAGES)
"""Work done for what is delivered: less of it for the same samples is an improvement."""
CALLS: Final = {Kind.OPEN: "opens", Kind.READ: "reads"}
OWN_WORK: Final = "verify:digest"
"""What iobench does for digests, of no loader."""
SUMMED: Final = "samples too short to be timed individually were not all seen; use --detail sample"
STEP: Final = 1 << 20


class Counts(msgspec.Struct, frozen=True):
    """What was done for the batches that were delivered, over all training processes.

    ``exact`` by name, None where unknown: ``batches``; those of `FIGURES`, of which stages say how
    many files were opened, calls read, and bytes they brought, and ``handed_on_nbytes`` passed
    through stages between samples and the loop; ``stages/NAME/spans`` and ``stages/NAME/nbytes``
    of loading work; ``digests/LOADER/EPOCH``: of its samples in any order. ``at_most`` for bounds:
    ``asked_nbytes`` that loading processes requested from the system, by any code, and
    ``peak_nbytes``, the most memory of each process, summed. ``unknown`` says why.
    """

    exact: dict[str, Value]
    at_most: dict[Bound, int | None]
    unknown: dict[str, str] = {}


class CountDifference(msgspec.Struct, frozen=True):
    """One figure that is not as expected; None where there is no such stage or epoch."""

    name: str
    expected: int | str | None
    measured: int | str | None


class CountsComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Differences are other samples or more work, improvements less work for the same samples."""

    n_equal: int
    differences: tuple[CountDifference, ...]
    unknown: dict[str, str]
    not_expected: tuple[str, ...]
    improvements: tuple[CountDifference, ...]


def counts_of(run: Run) -> Counts:
    """Return what a run did.

    Raises
    ------
    ProfileError
        If no batch was delivered; or the run ended when its time was over, or is too long to be
        kept whole: it has other counts each time.
    """
    data = run.data
    if data.summed is not None:
        raise ProfileError(
            f"{data.path}: only sums are kept of {data.summed.n_batches} of its batches, "
            "so its counts are not reproducible; record fewer batches, or set a larger "
            "IOBENCH_KEEP"
        )
    tally = _Tally()
    for rank in run:
        tally.add(rank)
    if not tally.batches:
        raise ProfileError(
            f"{data.path}: no loader delivered a batch; expected a run with a training loop"
        )
    requested = data.run_facts.asked
    limit = requested.get("batches")
    if requested.get("steady_s") is not None and (limit is None or tally.batches < limit):
        raise ProfileError(
            f"{data.path}: was ended by its time limit after {tally.batches} batches, so its "
            "counts are not reproducible; profile with --batches N or --epochs E"
        )
    return tally.counts(run)


class _Tally:
    """Sums over training processes by name of a figure, and why one is not exact."""

    def __init__(self) -> None:
        self._unknown: dict[str, str] = {}
        self._sums = defaultdict[str, int](int)
        self._kinds: set[int] = set()
        self.batches = 0

    def add(self, run: RankRun) -> None:
        """Add what one training process and its loading processes did."""
        loop, deliveries = run.loop, run.deliveries
        got = deliveries.batch >= 0
        self.batches += int(got.sum())
        self._sum("samples", deliveries.n_samples[got], "the batch size is not known")
        self._sum("used_nbytes", deliveries.nbytes[got], "the size of a batch was not recorded")
        spans = run.spans[loop.mine[run.spans["process"]]]
        self._kinds |= {*np.unique(spans["kind"][(spans["flags"] & Flag.IO) == 0]).tolist()}
        spans = spans[np.isin(spans["batch"], deliveries.batch[got])]
        requested = spans["nbytes"][io_looks(spans)]
        if not len(requested):
            self._lack("asked_nbytes", "no process counted what it read")
        self._sum("asked_nbytes", requested, "a process could not count what it read")
        self._add_stages(run, spans[(spans["flags"] & (Flag.IO | Flag.DETAIL)) == 0])

    def _add_stages(self, run: RankRun, spans: NDArray[Any]) -> None:
        summed = (spans["flags"] & Flag.SUMMED) != 0
        pieces = np.where(summed, spans["pieces"], 1).astype(np.int64)
        is_whole = (spans["kind"] == Kind.FUSED) & (spans["label"] == run.string_number(WHOLE))
        some_whole = bool(is_whole.any())
        if some_whole:
            self._lack("handed_on_nbytes", SUMMED)
        not_all = bool((spans["flags"] & Flag.ESTIMATED).any())
        not_all |= run.is_script and run.run_facts.detail == "auto" and bool(summed.any())
        for what in ("opens", "reads", "read_nbytes") if not_all else ():
            self._lack(what, SUMMED)
        keys = stage_keys(spans)
        for key in np.unique(keys).tolist():
            number, label = halves(key)
            kind, rows = Kind(number), keys == key
            name, why = stage_name(kind, run.strings[label]), "the stage does not record its bytes"
            if name == OWN_WORK:
                continue
            nbytes, n_calls = spans["nbytes"][rows].astype(np.int64), pieces[rows]
            if Trait.COPIES in kind.traits:
                self._sum("handed_on_nbytes", nbytes, why)
            if kind == Kind.READ:
                self._sum("read_nbytes", nbytes, why)
            if kind not in WORKER_KINDS:
                continue
            if not_all and (some_whole or kind != Kind.COLLATE):
                self._lack(f"{STAGES}{name}/spans", SUMMED)
                self._lack(f"{STAGES}{name}/nbytes", SUMMED)
            self._sum(f"{STAGES}{name}/spans", n_calls)
            self._sum(f"{STAGES}{name}/nbytes", nbytes, why)
            if kind in CALLS:
                self._sum(CALLS[kind], n_calls)

    def _sum(self, name: str, values: NDArray[Any], why: str = "") -> None:
        if (values < 0).any():
            self._lack(name, why)
        self._sums[name] += int(values.sum())

    def _lack(self, name: str, why: str) -> None:
        self._unknown.setdefault(name, why)

    def counts(self, run: Run) -> Counts:
        """Return the sums, and None for each that is not exact."""
        data = run.data
        for what, kind in (("opens", Kind.OPEN), ("reads", Kind.READ), ("read_nbytes", Kind.READ)):
            if kind not in self._kinds:
                self._lack(what, f"no {kind.spelled} was seen in the whole run")
        names = [*FIGURES, *sorted(each for each in self._sums if each.startswith(STAGES))]
        if data.lost_spans or data.missing_workers:
            lost = f"{', '.join(data.missing_workers)} left no spans"
            lost = f"{data.lost_spans} spans were lost" if data.lost_spans else lost
            self._unknown |= dict.fromkeys(names, lost)
        peaks = [process.peak_nbytes for process in data.processes]
        if data.run_facts.asked.get("workers", 0) is None:
            self._lack("peak_nbytes", "the number of loading processes was left to this machine")
        elif None in peaks:
            self._lack("peak_nbytes", "a process did not close its recording")
        self._sums["peak_nbytes"] = sum(peak or 0 for peak in peaks)
        exact: dict[str, Value] = {"batches": self.batches}
        exact |= {name: self._known(name) for name in names}
        exact |= self._digests(run)
        return Counts(exact, {name: self._known(name) for name in BOUNDS}, self._unknown)

    def _known(self, name: str) -> int | None:
        return None if name in self._unknown else self._sums[name]

    def _digests(self, run: Run) -> dict[str, str]:
        samples = delivered_samples(run)
        digests = {f"{DIGESTS}{name}": each.digest for name, each in samples.by_epoch.items()}
        if not samples.recorded:
            self._lack("digests", "digests were not requested; use --digests")
        elif None in digests.values() or samples.n_damaged:
            self._lack("digests", "some batch has none")
        else:
            return {name: f"{each:032x}" for name, each in digests.items()}
        return {}


def expected_counts(counts: Counts) -> Counts:
    """Return what a run like this one is to do; bounds have a quarter more, in whole MiB."""
    return Counts(counts.exact, {name: _bound(value) for name, value in counts.at_most.items()})


def _bound(value: int | None) -> int | None:
    return None if value is None else -(-value * 5 // 4 // STEP) * STEP


def compare_counts(expected: Counts, counts: Counts) -> CountsComparison:
    """Return where a run differs from what is expected; bounds may be anything below."""
    before, now = expected.exact, counts.exact
    differences, improvements = list[CountDifference](), list[CountDifference]()
    unknown, not_expected, n_equal = dict[str, str](), list[str](), 0
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        why = counts.unknown.get("digests" if name.startswith(DIGESTS) else name)
        if old is None and new is None:
            continue
        if old is None and (name in before or not name.endswith("/spans")):
            not_expected.append(name)  # but a new stage is a difference
        elif new is None and why is not None:
            unknown[name] = why
        elif old == new:
            n_equal += 1
        else:
            is_less = isinstance(old, int) and isinstance(new, int) and new < old
            less = is_less and name.startswith(LESS_IS_BETTER)
            (improvements if less else differences).append(CountDifference(name, old, new))
    for bound, limit in expected.at_most.items():
        value = counts.at_most.get(bound)
        if limit is None:
            continue
        if value is None:
            unknown[bound] = counts.unknown.get(bound, "")
        elif value > limit:
            differences.append(CountDifference(bound, limit, value))
        else:
            n_equal += 1
    return CountsComparison(
        n_equal=n_equal,
        differences=tuple(differences),
        unknown=unknown,
        not_expected=tuple(not_expected),
        improvements=tuple(improvements),
    )


class _Expected(msgspec.Struct, frozen=True):
    exact: dict[str, Value]
    at_most: dict[Bound, int | None]

    def __post_init__(self) -> None:
        if all(value is None for value in self.exact.values()):
            raise ValueError("nothing is expected")


class _File(msgspec.Struct, frozen=True):
    iobench_counts: Literal[1]
    runs: dict[str, _Expected]
    about: str = "what a run does, exactly; made by iobench check --update"


def read_counts(path: Path) -> dict[str, Counts]:
    """Return what is expected of each run, by its name.

    Raises
    ------
    MissingFileError
        If there is no such file.
    FileFormatError
        If it is no file of counts, or one of another version.
    """
    try:
        runs = msgspec.json.decode(read_small_file(path), type=_File).runs
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: no such file; create it from a known good run with --update"
        ) from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); expected a JSON file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path}: holds no counts of this iobench ({error}); create it again with --update"
        ) from error
    return {name: Counts(each.exact, each.at_most) for name, each in runs.items()}


def write_counts(path: Path, runs: Mapping[str, Counts]) -> None:
    """Write what is expected of each run; the file is whole at every instant.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    expected = {name: _Expected(each.exact, each.at_most) for name, each in runs.items()}
    text = msgspec.json.encode(_File(1, expected)).decode()
    with suppress(OSError):  # writing the file says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(text, indent=1) + "\n")
