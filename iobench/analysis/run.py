"""A recorded run opened for analysis: each thing that follows from its spans is made once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from iobench.analysis.attribution import attribute
from iobench.analysis.counters import counters_of
from iobench.analysis.deliveries import find_deliveries, roles_of_loaders
from iobench.analysis.exposure import exposure_of, refuse_what_has_no_sum
from iobench.analysis.loop import ONLY, find_loop
from iobench.analysis.span_sums import SpanSums, sums_of_spans, unknown_sums
from iobench.errors import ProfileError
from iobench.runs.folders import run_paths
from iobench.runs.reading import RankProfiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.analysis.attribution import Attribution
    from iobench.analysis.counters import Counters
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.ledger import Ledger
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.placement.placed_calls import Placement
    from iobench.recording.facts import ProcessFacts
    from iobench.runs.contents import Process, Profile
    from iobench.runs.run_facts import RunFacts
    from iobench.storage.storage_trace import StorageTrace

T = TypeVar("T")

FEW_RANKS: Final = 16
"""Up to so many training processes each is reported with all there is to say of it."""
KEPT_SPANS: Final = 1 << 21
"""Spans of the training processes of one run that are kept once analysed, but for a single one."""


class RankRun:
    """One training process of a run; what follows from its spans is made on first use, and kept.

    Parameters
    ----------
    profile : Profile
        Of this training process and its loading processes alone.
    rank : int
        Which one it is.
    whole : Profile, optional
        What it is a part of, which knows the other ranks; by default ``profile``.
    trace : StorageTrace, optional
        What a tracer of storage saw of the run.

    Raises
    ------
    ProfileError
        By each attribute but those above, if the waits of the training loop overlap, or the spans
        add up to more than there can be.
    """

    def __init__(
        self,
        profile: Profile,
        rank: int,
        *,
        whole: Profile | None = None,
        trace: StorageTrace | None = None,
    ) -> None:
        self.profile = profile
        self.rank = rank
        self.whole = profile if whole is None else whole
        self.trace = trace
        self._made: dict[Any, Any] = {}

    def once(self, make: Callable[[RankRun], T]) -> T:
        """Return what a function makes of it, made on first use and kept.

        So figures of one question can be read by another one.
        """
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    @property
    def facts(self) -> tuple[ProcessFacts, ...]:
        """What its processes told of themselves."""
        if self.is_alone:
            return self.whole.facts
        return tuple(told for told in self.whole.facts if told.rank == self.rank)

    @cached_property
    def about(self) -> RunFacts:
        """What ``run.json`` says; of a script, with what its loaders have in common."""
        told = self.whole.about
        return told.with_loaders(self.exposure.loaders) if told.is_script else told

    @property
    def job_size(self) -> int:
        """Training processes of its job, those that left nothing too; 1 of ``iobench profile``."""
        whole = self.whole
        if not whole.is_script:
            return 1
        sizes = [whole.about.world_size or 1, *(each.world_size for each in whole.facts)]
        return max([*sizes, *(rank + 1 for rank in whole.ranks)])

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that recorded for it."""
        return self.whole.processes if self.is_alone else self.profile.processes

    @property
    def is_alone(self) -> bool:
        """Whether no other training process left spans."""
        return self.whole.rank is None and len(self.whole.ranks) < 2

    @property
    def is_one_of_many(self) -> bool:
        """Whether there are so many training processes that little is said of each."""
        return len(self.whole.ranks) > FEW_RANKS

    @cached_property
    def loop(self) -> TrainingLoop:
        """The thread that waited for batches, and the loaders it asked."""
        refuse_what_has_no_sum(self.profile)
        return find_loop(self.profile, rank=self.rank)

    @cached_property
    def deliveries(self) -> Deliveries:
        """Its waits and what they brought, in order."""
        return find_deliveries(self.profile, self.loop)

    @cached_property
    def attribution(self) -> Attribution:
        """Of each delivery the busy and exposed time by stage: the ledger."""
        return attribute(self.profile, self.loop, self.deliveries)

    @cached_property
    def roles(self) -> dict[int, str]:
        """What its loaders are for, by their numbers, as far as that is known."""
        return roles_of_loaders(self.deliveries)

    @property
    def ledger(self) -> Ledger:
        """Its time by delivery and stage: what figures are sums of."""
        return self.attribution.ledger

    @cached_property
    def counters(self) -> Counters:
        """Bytes and chunks counted for each delivery, by whoever counted them."""
        return counters_of(self.profile, self.loop, self.deliveries)

    @cached_property
    def exposure(self) -> Exposure:
        """Who was waited for, of the whole run and its parts."""
        return exposure_of(self)

    def samples_in(self, chosen: NDArray[np.bool_]) -> int | None:
        """Return the samples of some batches: by their bytes, else by the batch size.

        ``chosen`` marks deliveries that brought a batch. None where neither is known.
        """
        nbytes = self.deliveries.nbytes[chosen]
        sample_nbytes = self.profile.about.sample_nbytes
        if sample_nbytes and (nbytes >= 0).all() and not (nbytes % sample_nbytes).any():
            return int(nbytes.sum()) // sample_nbytes
        samples = self.deliveries.n_samples[chosen]
        if (samples < 0).any() or not (len(samples) or self.loop.loaders[ONLY].batch_size):
            return None
        return int(samples.sum())

    @property
    def share(self) -> NDArray[np.float64]:
        """What share of each span's own time was waited for, by row of ``profile.spans``."""
        _ = self.attribution  # which says why it is not known, where it is not
        return self.sums.share

    @property
    def parts(self) -> Iterator[RankRun]:
        """Itself, as the only part; like `Run.parts`."""
        return iter((self,))

    @cached_property
    def is_sound(self) -> bool:
        """Whether it can be analysed: not where the waits of the training loop overlap."""
        try:
            return self.attribution is not None
        except ProfileError:
            return False

    @cached_property
    def sums(self) -> SpanSums:
        """What of each span is counted where, by row of ``profile.spans``; unknown if unsound."""
        if not self.is_sound:
            return unknown_sums(len(self.profile.spans))
        return sums_of_spans(self.profile, self.deliveries, self.attribution)

    @cached_property
    def placement(self) -> Placement | None:
        """What a tracer saw, on the clock of the spans and beside its stages; None without."""
        if self.trace is None:
            return None
        from iobench.analysis.placement.placing import place_segments

        return place_segments(self.profile, self.trace, self.share if self.is_sound else None)


class Run:
    """A recorded run: a run directory, or a profile of it that was read before.

    Of several training processes as many are kept in memory as hold `KEPT_SPANS`, and others are
    read and analysed again when they are asked for again: so a job of any number can be gone
    through.

    Parameters
    ----------
    profiles : Profile or RankProfiles
        Of all training processes, or of one; or those of each, which are read one by one.
    trace : StorageTrace, optional
        What a tracer of storage saw of it.

    Attributes
    ----------
    path : Path
        The run directory.
    config : mapping
        What its ``run.json`` says.
    about : RunFacts
        The same, typed.
    ranks : tuple of int
        Training processes that left spans, those that were read; at least one.
    """

    def __init__(self, profiles: Profile | RankProfiles, trace: StorageTrace | None = None) -> None:
        self._profiles = profiles
        self.path = profiles.path
        self.config, self.about = profiles.config, profiles.about
        self.trace = trace
        self.ranks = _ranks(profiles)
        self._kept: dict[int, RankRun] = {}

    @classmethod
    def open(cls, path: Path | str, logs: Sequence[Path] | None = None) -> Run:
        """Open one run directory, also of a run that died or still goes on.

        Parameters
        ----------
        logs : sequence of Path, optional
            Logs of a tracer beside those that the run has itself; by default no log is read.

        Raises
        ------
        ProfileError
            As `iobench.open_profile`.
        StorageError, OptionError
            If a log that was named cannot be read, or what reads it is not installed.
        """
        found, trace = RankProfiles(path), None
        if logs is not None:
            from iobench.storage.run_traces import read_run_traces

            trace = read_run_traces(found.path, found.config, logs)
        return cls(found if len(found) > 1 else found.whole(), trace)

    def __iter__(self) -> Iterator[RankRun]:
        """Go through its training processes."""
        return (self.of_rank(rank) for rank in self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def profile(self) -> Profile:
        """Of all training processes that were read; of a run of several, read again each time."""
        found = self._profiles
        return found.whole() if isinstance(found, RankProfiles) else found

    @property
    def parts(self) -> Iterator[RankRun]:
        """All that was recorded, also of training processes that left nothing themselves."""
        found = self._profiles
        ranks = found.ranks if isinstance(found, RankProfiles) else found.ranks_read
        return (self.of_rank(rank) for rank in ranks)

    @property
    def sums(self) -> SpanSums:
        """What of each span is counted where, by row of ``profile.spans`` of them all."""
        profile = self.profile
        ranks = profile.ranks_read
        if len(ranks) == 1:
            return self.of_rank(ranks[0]).sums
        found = unknown_sums(len(profile.spans))
        for rank in ranks:
            mine = np.array([each.rank == rank for each in profile.processes], dtype=bool)
            rows, sums = mine[profile.spans["process"]], self.of_rank(rank).sums
            for name in ("self_ns", "busy_ns", "exposed_ns", "share"):
                getattr(found, name)[rows] = getattr(sums, name)
        return found

    def has_spans(self, rank: int) -> bool:
        """Tell whether a training process left any; of a job not read yet it is taken to have."""
        if isinstance(self._profiles, RankProfiles):
            return rank in self.ranks
        return bool(len(self._profiles.spans))

    def of_rank(self, rank: int | None = None) -> RankRun:
        """Return one training process; which may be left out where only one recorded.

        Raises
        ------
        ProfileError
            If several training processes recorded and none is named.
        """
        if rank is None:
            if len(self.ranks) > 1:
                raise ProfileError(
                    f"{self.path}: training processes {[*self.ranks]} recorded, expected one; "
                    "name one of them as rank"
                )
            rank = self.ranks[0]
        if rank in self._kept:
            return self._kept[rank]
        found = self._made(rank)
        n_spans = sum(len(each.profile.spans) for each in self._kept.values())
        if len(self.ranks) < 2 or n_spans + len(found.profile.spans) <= KEPT_SPANS:
            self._kept[rank] = found
        return found

    def _made(self, rank: int) -> RankRun:
        whole = self._profiles
        if isinstance(whole, RankProfiles):
            return RankRun(whole[whole.ranks.index(rank)], rank, trace=self.trace)
        part = whole
        if any(process.rank != rank for process in whole.processes):
            part = whole.of_rank(rank)
        return RankRun(part, rank, whole=whole, trace=self.trace)


def _ranks(profiles: Profile | RankProfiles) -> tuple[int, ...]:
    if isinstance(profiles, RankProfiles):
        return profiles.ranks
    if profiles.rank is not None:
        return (profiles.rank,)
    seen = {process.rank for process in profiles.processes if process.role == "consumer"}
    return tuple(sorted(seen)) or (0,)


def open_runs(path: Path | str, logs: Sequence[Path] | None = None) -> tuple[Run, ...]:
    """Open a run directory, or all run directories inside one that holds one per format.

    Formats come in the order they were asked for.

    Parameters
    ----------
    logs : sequence of Path, optional
        Logs of a tracer beside those that a run has itself; by default no log is read.

    Raises
    ------
    ProfileError
        As `Run.open`; or if there is no run at all, or several that are not one profile's.
    StorageError, OptionError
        If a log that was named cannot be read, or what reads it is not installed.
    """
    runs = [Run.open(each, logs) for each in run_paths(path)]
    return tuple(sorted(runs, key=lambda run: run.about.position or 0))


def exposure(profile: Profile, *, rank: int | None = None) -> Exposure:
    """Return who a training process waited for; as `iobench.exposure`."""
    return Run(profile).of_rank(rank).exposure
