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
from iobench.files.atomic import write_atomically
from iobench.findings.batch_digests import delivered_samples
from iobench.json_files import read_small_file
from iobench.recording.kinds import WHOLE, WORKER_KINDS, Kind, Trait, stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import halves, stage_keys

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
SEEN: Final = {"opens": Kind.OPEN, "reads": Kind.READ, "read_nbytes": Kind.READ}
STEP: Final = 1 << 20


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
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
    """One figure that is not as expected; None where there is no such stage or epoch.

    ``less_work`` for the same samples is an improvement.
    """

    name: str
    expected: Value
    measured: Value
    less_work: bool = False


class CountsComparison(msgspec.Struct, frozen=True):
    """How many counts are as expected, which are not, and why others are unknown."""

    n_equal: int
    differences: tuple[CountDifference, ...]
    unknown: dict[str, str]


def counts_of(run: Run) -> Counts:
    """Return what a run did; refuse one that has other counts each time."""
    data, why = run.data, None
    requested, tally = data.run_facts.asked, _Tally()
    if data.summed is not None:
        why = f"only sums are kept of {data.summed.n_batches} of its batches; set IOBENCH_KEEP"
    else:
        for rank in run:
            tally.add(rank)
        limit = requested.get("batches")
        if not tally.batches:
            why = "no loader delivered a batch"
        elif requested.get("steady_s") is not None and (limit is None or tally.batches < limit):
            why = (
                f"was ended by its time limit after {tally.batches} batches; profile with "
                "--batches N or --epochs E"
            )
    if why is not None:
        raise ProfileError(f"{data.path}: its counts are not reproducible: {why}")
    return tally.counts(run)


class _Tally:
    """Sums over training processes by name of a figure, and why one is not exact."""

    def __init__(self) -> None:
        self._unknown: dict[str, str] = {}
        self._sums = defaultdict[str, int](int)
        self.batches = 0

    def add(self, run: RankRun) -> None:
        """Add what one training process and its loading processes did."""
        loop, deliveries = run.loop, run.deliveries
        got = deliveries.batch >= 0
        self.batches += int(got.sum())
        self._sum("samples", deliveries.n_samples[got], "the batch size is not known")
        self._sum("used_nbytes", deliveries.nbytes[got], "the size of a batch was not recorded")
        spans = run.spans[loop.mine[run.spans["process"]]]
        is_call = (spans["flags"] & Flag.IO) == 0  # where there are any, none for a batch is 0
        for name, kind in SEEN.items():
            if (is_call & (spans["kind"] == kind)).any():
                self._sums[name] += 0
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
        not_all = bool((spans["flags"] & Flag.ESTIMATED).any())
        not_all |= run.is_script and run.run_facts.detail == "auto" and bool(summed.any())
        for what in ("handed_on_nbytes",) * some_whole + (*SEEN,) * not_all:
            self._lack(what, SUMMED)
        keys = stage_keys(spans)
        for key in np.unique(keys).tolist():
            number, label = halves(key)
            kind, rows = Kind(number), keys == key
            name, why = stage_name(kind, run.strings[label]), "the stage does not record its bytes"
            nbytes, n_calls = spans["nbytes"][rows].astype(np.int64), pieces[rows]
            if name == OWN_WORK:
                continue
            if Trait.COPIES in kind.traits:
                self._sum("handed_on_nbytes", nbytes, why)
            if kind == Kind.READ:
                self._sum("read_nbytes", nbytes, why)
            if kind not in WORKER_KINDS:
                continue
            for what, values in (("spans", n_calls), ("nbytes", nbytes)):
                if not_all and (some_whole or kind != Kind.COLLATE):
                    self._lack(f"{STAGES}{name}/{what}", SUMMED)
                self._sum(f"{STAGES}{name}/{what}", values, why)
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
        for what in SEEN:
            if what not in self._sums:
                self._lack(what, "no such call was seen")
        names = [*FIGURES, *sorted(each for each in self._sums if each.startswith(STAGES))]
        if data.lost_spans or data.missing_workers:
            n_missing = len(data.missing_workers)
            lost = f"{data.lost_spans} spans were lost, {n_missing} processes left none"
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
        if not samples.recorded or None in digests.values():
            self._lack("digests", "some batch has none; use --digests")
            return {}
        return {name: f"{each:032x}" for name, each in digests.items()}


def expected_counts(counts: Counts) -> Counts:
    """Return what a run like this one is to do; bounds have a quarter more, in whole MiB."""
    bounds = {
        name: None if value is None else -(-value * 5 // 4 // STEP) * STEP
        for name, value in counts.at_most.items()
    }
    return Counts(counts.exact, bounds)


def compare_counts(expected: Counts, counts: Counts) -> CountsComparison:
    """Return where a run differs from what is expected; bounds may be anything below.

    What the file does not know, a new stage excepted, is not compared.
    """
    before, now = expected.exact, counts.exact
    differences, unknown, n_equal = list[CountDifference](), dict[str, str](), 0
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        why = counts.unknown.get("digests" if name.startswith(DIGESTS) else name)
        is_new_stage = name not in before and name.endswith("/spans")
        if old is None and (new is None or not is_new_stage):
            continue
        if new is None and why is not None:
            unknown[name] = why
        elif old == new:
            n_equal += 1
        else:
            is_less = isinstance(old, int) and isinstance(new, int) and new < old
            less_work = is_less and name.startswith(LESS_IS_BETTER)
            differences.append(CountDifference(name, old, new, less_work))
    for bound, limit in expected.at_most.items():
        value = counts.at_most.get(bound)
        if limit is not None and value is None:
            unknown[bound] = counts.unknown.get(bound, "")
        elif limit is not None and value is not None and value > limit:
            differences.append(CountDifference(bound, limit, value))
        elif limit is not None:
            n_equal += 1
    return CountsComparison(n_equal, tuple(differences), unknown)


class _File(msgspec.Struct, frozen=True):
    iobench_counts: Literal[1]
    runs: dict[str, Counts]
    about: str = "what a run does, exactly; made by iobench check --update"

    def __post_init__(self) -> None:
        if not all(each.exact for each in self.runs.values()):
            raise ValueError("nothing is expected")


def read_counts(path: Path) -> dict[str, Counts]:
    """Return what is expected of each run, by its name."""
    try:
        return msgspec.json.decode(read_small_file(path), type=_File).runs
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: no such file; create it from a known good run with --update"
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path}: holds no counts of this iobench ({error}); create it again with --update"
        ) from error


def write_counts(path: Path, runs: Mapping[str, Counts]) -> None:
    """Write what is expected of each run; the file is whole at every instant."""
    text = msgspec.json.encode(_File(1, dict(runs))).decode()
    with suppress(OSError):  # writing the file says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(text, indent=1) + "\n")
