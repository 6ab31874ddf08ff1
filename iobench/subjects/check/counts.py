"""What a run did, in numbers that no machine changes: for a gate that compares them exactly.

Only what belongs to batches that the training loop got is counted: loading processes run ahead,
and how far they had come when the run ended is chance.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.loop import ONLY
from iobench.errors import ProfileError
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import halves, stage_keys
from iobench.subjects.samples.figures import samples_seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run
    from iobench.profiles.contents import Profile

__all__ = ["Counts", "StageCount", "counts_of"]

"""Each of these has the bytes of a whole batch pass through it, and may copy them."""
FROM_SPANS: Final = (
    "samples", "used_nbytes", "opens", "reads", "read_nbytes", "handed_on_nbytes",
)  # fmt: skip
OWN_WORK: Final = "verify:digest"
"""What iobench does for digests, of no loader."""
SUMMED: Final = "samples too short to be timed each were not all seen; use --detail sample"


@dataclass(frozen=True, slots=True)
class StageCount:
    """How often a stage was done, and the bytes it handed on; None where that is not known."""

    spans: int | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done for the batches that were delivered, over all training processes.

    Every figure but the last two is exact, and the same wherever the run is repeated; None where it
    is not known, and ``unknown`` says why.

    Parameters
    ----------
    batches : int
    samples : int or None
    used_nbytes : int or None
        Of the batches.
    opens, reads : int or None
        Files opened and calls that read, as far as stages tell.
    read_nbytes : int or None
        What those reads brought.
    handed_on_nbytes : int or None
        What passed through the stages between samples and the training loop (collate, serialise,
        pin, h2d). Each may copy it: over ``used_nbytes``, the most copies that a byte had.
    stages : mapping of str to StageCount
        Loading work, as reports spell it.
    digests : mapping of str to str, or None
        By ``<loader>/<epoch>``, that of all its samples in any order, in hexadecimal digits; the
        loader of ``iobench profile`` is ``profile``.
    asked_nbytes : int or None
        What loading processes asked the system for, by any code; for a bound, since what Python
        itself reads is in it.
    peak_nbytes : int or None
        The most memory of each process, summed; for a bound.
    unknown : mapping of str to str
        By name of a figure, why it is None.
    """

    batches: int
    samples: int | None
    used_nbytes: int | None
    opens: int | None
    reads: int | None
    read_nbytes: int | None
    handed_on_nbytes: int | None
    stages: Mapping[str, StageCount]
    digests: Mapping[str, str] | None
    asked_nbytes: int | None
    peak_nbytes: int | None
    unknown: Mapping[str, str]

    @property
    def spans(self) -> int | None:
        """Of all stages; None where one is not known."""
        counts = [stage.spans for stage in self.stages.values()]
        return None if None in counts else sum(count for count in counts if count is not None)


def counts_of(run: Run) -> Counts:
    """Return what a run did.

    Raises
    ------
    ProfileError
        If no batch was delivered; or the run ended when its time was over, or is too long to be
        kept whole: it has other counts each time.
    """
    profile = run.profile
    if profile.folded is not None:
        raise ProfileError(
            f"{profile.path}: of its first {profile.folded.n_batches} batches there are sums only, "
            "so that its counts are chance; record fewer batches, or with a larger IOBENCH_KEEP"
        )
    tally = _Tally(run, profile)
    for each in run:
        tally.add(each)
    if not tally.batches:
        raise ProfileError(
            f"{profile.path}: no loader delivered a batch; expected a run with a training loop"
        )
    _check_end(profile, tally.batches)
    return tally.counts()


def _check_end(profile: Profile, batches: int) -> None:
    asked = profile.config.get("asked")
    if not isinstance(asked, dict) or asked.get("steady_s") is None:
        return
    limit = asked.get("batches")
    if limit is None or batches < limit:
        raise ProfileError(
            f"{profile.path}: ended by its time, after {batches} batches, so that its counts are "
            "chance; profile with --batches N or --epochs E"
        )


class _Tally:
    """Sums over training processes, and what stands against an exact one."""

    def __init__(self, run: Run, profile: Profile) -> None:
        self._run, self._profile = run, profile
        self._unknown: dict[str, str] = {}
        self.batches = 0
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._stages: dict[str, list[int]] = {}
        self._inexact: set[str] = set()
        self._kinds: set[int] = set()

    def add(self, run: RankRun) -> None:
        """Add what one training process and its loading processes did."""
        profile, loop, deliveries = run.profile, run.loop, run.deliveries
        got = deliveries.batch >= 0
        self.batches += int(got.sum())
        samples = deliveries.n_samples[got]
        self._sum("samples", samples, "the batch size is not known")
        self._sum("used_nbytes", deliveries.nbytes[got], "a batch does not tell its bytes")
        spans = profile.spans[loop.mine[profile.spans["process"]]]
        self._kinds |= {*np.unique(spans["kind"][(spans["flags"] & Flag.IO) == 0]).tolist()}
        spans = spans[np.isin(spans["batch"], deliveries.batch[got])]
        is_counter = (spans["flags"] & Flag.IO) != 0
        asked = spans["nbytes"][io_looks(spans)]
        if not len(asked):
            self._lack("asked_nbytes", "no process counted what it read")
        self._sum("asked_nbytes", asked, "a process could not count what it read")
        self._add_stages(profile, spans[~is_counter & ((spans["flags"] & Flag.DETAIL) == 0)])

    def _add_stages(self, profile: Profile, spans: NDArray[Any]) -> None:
        summed = (spans["flags"] & Flag.SUMMED) != 0
        pieces = np.where(summed, spans["pieces"], 1).astype(np.int64)
        fuzzy = bool((spans["flags"] & Flag.ESTIMATED).any())
        fuzzy |= profile.is_script and profile.config.get("detail") == "auto" and bool(summed.any())
        for kind, label, rows in _by_stage(spans):
            nbytes = spans["nbytes"][rows].astype(np.int64)
            name = stage_name(kind, profile.strings[label])
            if name == OWN_WORK:
                continue
            known = bool((nbytes >= 0).all())
            if Trait.COPIES in kind.traits:
                self._sum("handed_on_nbytes", nbytes, f"{name} does not tell its bytes")
            if kind == Kind.READ:
                self._sum("read_nbytes", nbytes, f"{name} does not tell its bytes")
            if kind not in WORKER_KINDS:
                continue
            exact = not fuzzy or kind == Kind.COLLATE
            if not exact:
                self._inexact.add(name)
            count = int(pieces[rows].sum())
            total = self._stages.setdefault(name, [0, 0, 1])
            total[0] += count
            total[1] += int(nbytes.sum()) if known else 0
            total[2] &= known
            for of_kind, what in ((Kind.OPEN, "opens"), (Kind.READ, "reads")):
                self._sums[what] += count if kind == of_kind else 0
        if fuzzy:
            for what in ("opens", "reads", "read_nbytes"):
                self._lack(what, SUMMED)

    def _sum(self, name: str, values: NDArray[Any], why: str) -> None:
        if (values < 0).any():
            self._lack(name, why)
        self._sums[name] += int(values.sum())

    def _lack(self, name: str, why: str) -> None:
        self._unknown.setdefault(name, why)

    def counts(self) -> Counts:
        """Return the sums, and None for each that something stands against."""
        for what, kind in (("opens", Kind.OPEN), ("reads", Kind.READ), ("read_nbytes", Kind.READ)):
            if kind not in self._kinds:
                self._lack(what, f"no {kind.spelled} was seen in the whole run")
        digests = self._digests()
        peak = self._peak()
        lost = self._losses()
        for name in FROM_SPANS if lost else ():
            self._unknown[name] = lost
        sums = {
            name: None if name in self._unknown else self._sums[name]
            for name in (*FROM_SPANS, "asked_nbytes")
        }
        return Counts(
            batches=self.batches,
            **sums,
            stages={name: self._stage(name, lost) for name in sorted(self._stages)},
            digests=digests,
            peak_nbytes=peak,
            unknown=self._unknown,
        )

    def _stage(self, name: str, lost: str) -> StageCount:
        count, nbytes, known = self._stages[name]
        why = lost or (SUMMED if name in self._inexact else "")
        if why:
            self._lack(f"stages/{name}", why)
            return StageCount(None, None)
        return StageCount(count, nbytes if known else None)

    def _losses(self) -> str:
        profile = self._profile
        if profile.lost_spans:
            return f"{profile.lost_spans} spans were lost"
        if profile.missing_workers:
            return f"{', '.join(profile.missing_workers)} left no spans"
        return ""

    def _digests(self) -> Mapping[str, str] | None:
        seen = samples_seen(self._run)
        if not seen.recorded:
            self._lack("digests", "none were asked for; use --digests")
            return None
        found = {
            f"{'profile' if loader == ONLY else loader}/{epoch}": each
            for (loader, epoch), each in seen.epoch_digests.items()
        }
        if None in found.values() or seen.n_damaged:
            self._lack("digests", "samples of some batch have none")
            return None
        return {name: f"{each:032x}" for name, each in found.items()}

    def _peak(self) -> int | None:
        asked = self._profile.config.get("asked")
        if isinstance(asked, dict) and asked.get("workers", 0) is None:
            self._lack("peak_nbytes", "how many processes load was left to this machine's CPUs")
            return None
        peaks = [process.peak_nbytes for process in self._profile.processes]
        if None in peaks:
            self._lack("peak_nbytes", "a process did not end its recording itself")
            return None
        return sum(peak for peak in peaks if peak is not None)


def _by_stage(spans: NDArray[Any]) -> Iterator[tuple[Kind, int, NDArray[np.int64]]]:
    """Yield kind, number of the label, and rows of each stage."""
    key = stage_keys(spans)
    for value in np.unique(key).tolist():
        kind, label = halves(value)
        yield Kind(kind), label, np.flatnonzero(key == value)
