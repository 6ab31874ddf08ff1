"""What a run did, in numbers that no machine changes: for a gate that compares them exactly.

Only what belongs to batches that the training loop got is counted: loading processes run ahead,
and how far they had come when the run ended is chance.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.loop import ONLY
from iobench.errors import ProfileError
from iobench.findings.batch_digests import delivered_samples
from iobench.findings.check.counts import STAGES, Counts
from iobench.recording.kinds import WHOLE, WORKER_KINDS, Kind, Trait, stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import halves, stage_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run
    from iobench.runs.contents import RunData

FROM_SPANS: Final = (
    "samples", "used_nbytes", "opens", "reads", "read_nbytes", "handed_on_nbytes",
)  # fmt: skip
CALLS: Final = {Kind.OPEN: "opens", Kind.READ: "reads"}
OWN_WORK: Final = "verify:digest"
"""What iobench does for digests, of no loader."""
SUMMED: Final = "samples too short to be timed individually were not all seen; use --detail sample"


def counts_of(run: Run) -> Counts:
    """Return what a run did.

    Raises
    ------
    ProfileError
        If no batch was delivered; or the run ended when its time was over, or is too long to be
        kept whole: it has other counts each time.
    """
    profile = run.data
    if profile.folded is not None:
        raise ProfileError(
            f"{profile.path}: only sums are kept of its first {profile.folded.n_batches} batches, "
            "so its counts are not reproducible; record fewer batches, or set a larger "
            "IOBENCH_KEEP"
        )
    tally = _Tally(profile)
    for each in run:
        tally.add(each)
    if not tally.batches:
        raise ProfileError(
            f"{profile.path}: no loader delivered a batch; expected a run with a training loop"
        )
    _check_end(profile, tally.batches)
    return tally.counts(run)


def _check_end(profile: RunData, batches: int) -> None:
    asked = profile.run_facts.asked
    if asked.get("steady_s") is None:
        return
    limit = asked.get("batches")
    if limit is None or batches < limit:
        raise ProfileError(
            f"{profile.path}: was ended by its time limit after {batches} batches, so its counts "
            "are not reproducible; profile with --batches N or --epochs E"
        )


class _Tally:
    """Sums over training processes by name of a figure, and what stands against an exact one."""

    def __init__(self, profile: RunData) -> None:
        self._profile = profile
        self._unknown: dict[str, str] = {}
        self._sums = defaultdict[str, int](int)
        self._kinds: set[int] = set()
        self.batches = 0

    def add(self, run: RankRun) -> None:
        """Add what one training process and its loading processes did."""
        profile, loop, deliveries = run, run.loop, run.deliveries
        got = deliveries.batch >= 0
        self.batches += int(got.sum())
        samples = deliveries.n_samples[got]
        self._sum("samples", samples, "the batch size is not known")
        self._sum("used_nbytes", deliveries.nbytes[got], "the size of a batch was not recorded")
        spans = profile.spans[loop.mine[profile.spans["process"]]]
        self._kinds |= {*np.unique(spans["kind"][(spans["flags"] & Flag.IO) == 0]).tolist()}
        spans = spans[np.isin(spans["batch"], deliveries.batch[got])]
        is_counter = (spans["flags"] & Flag.IO) != 0
        asked = spans["nbytes"][io_looks(spans)]
        if not len(asked):
            self._lack("asked_nbytes", "no process counted what it read")
        self._sum("asked_nbytes", asked, "a process could not count what it read")
        self._add_stages(profile, spans[~is_counter & ((spans["flags"] & Flag.DETAIL) == 0)])

    def _add_stages(self, profile: RunData, spans: NDArray[Any]) -> None:
        summed = (spans["flags"] & Flag.SUMMED) != 0
        pieces = np.where(summed, spans["pieces"], 1).astype(np.int64)
        is_whole = (spans["kind"] == Kind.FUSED) & (spans["label"] == profile.string_number(WHOLE))
        some_whole = bool(is_whole.any())
        if some_whole:
            self._lack("handed_on_nbytes", SUMMED)
        fuzzy = bool((spans["flags"] & Flag.ESTIMATED).any())
        fuzzy |= profile.is_script and profile.run_facts.detail == "auto" and bool(summed.any())
        for what in ("opens", "reads", "read_nbytes") if fuzzy else ():
            self._lack(what, SUMMED)
        for kind, label, rows in _by_stage(spans):
            nbytes = spans["nbytes"][rows].astype(np.int64)
            name = stage_name(kind, profile.strings[label])
            if name == OWN_WORK:
                continue
            if Trait.COPIES in kind.traits:
                self._sum("handed_on_nbytes", nbytes, f"{name} does not record its bytes")
            if kind == Kind.READ:
                self._sum("read_nbytes", nbytes, f"{name} does not record its bytes")
            if kind not in WORKER_KINDS:
                continue
            untold = fuzzy and (some_whole or kind != Kind.COLLATE)
            for what in ("spans", "nbytes") if untold else ():
                self._lack(f"{STAGES}{name}/{what}", SUMMED)
            count = pieces[rows]
            self._sum(f"{STAGES}{name}/spans", count)
            self._sum(f"{STAGES}{name}/nbytes", nbytes, "the stage does not record its bytes")
            if kind in CALLS:
                self._sum(CALLS[kind], count)

    def _sum(self, name: str, values: NDArray[Any], why: str = "") -> None:
        if (values < 0).any():
            self._lack(name, why)
        self._sums[name] += int(values.sum())

    def _lack(self, name: str, why: str) -> None:
        self._unknown.setdefault(name, why)

    def counts(self, run: Run) -> Counts:
        """Return the sums, and None for each that something stands against."""
        for what, kind in (("opens", Kind.OPEN), ("reads", Kind.READ), ("read_nbytes", Kind.READ)):
            if kind not in self._kinds:
                self._lack(what, f"no {kind.spelled} was seen in the whole run")
        names = [*FROM_SPANS, *sorted(each for each in self._sums if each.startswith(STAGES))]
        if lost := self._losses():
            self._unknown |= dict.fromkeys(names, lost)
        peak, digests = self._peak(), self._digests(run)
        return Counts(
            {"batches": self.batches, **{name: self._known(name) for name in names}, **digests},
            {"asked_nbytes": self._known("asked_nbytes"), "peak_nbytes": peak},
            self._unknown,
        )

    def _known(self, name: str) -> int | None:
        return None if name in self._unknown else self._sums[name]

    def _losses(self) -> str:
        profile = self._profile
        if profile.lost_spans:
            return f"{profile.lost_spans} spans were lost"
        if profile.missing_workers:
            return f"{', '.join(profile.missing_workers)} left no spans"
        return ""

    def _digests(self, run: Run) -> dict[str, str]:
        seen = delivered_samples(run)
        if not seen.recorded:
            self._lack("digests", "digests were not requested; use --digests")
            return {}
        found = {
            f"digests/{'profile' if loader == ONLY else loader}/{epoch}": each
            for (loader, epoch), each in seen.epoch_digests.items()
        }
        if None in found.values() or seen.n_damaged:
            self._lack("digests", "some batch has none")
            return {}
        return {name: f"{each:032x}" for name, each in found.items()}

    def _peak(self) -> int | None:
        if self._profile.run_facts.asked.get("workers", 0) is None:
            self._lack(
                "peak_nbytes",
                "the number of loading processes was left to this machine's CPU count",
            )
            return None
        peaks = [process.peak_nbytes for process in self._profile.processes]
        if None in peaks:
            self._lack("peak_nbytes", "a process did not close its recording")
            return None
        return sum(peak for peak in peaks if peak is not None)


def _by_stage(spans: NDArray[Any]) -> Iterator[tuple[Kind, int, NDArray[np.int64]]]:
    """Yield kind, number of the label, and rows of each stage."""
    key = stage_keys(spans)
    for value in np.unique(key).tolist():
        kind, label = halves(value)
        yield Kind(kind), label, np.flatnonzero(key == value)
