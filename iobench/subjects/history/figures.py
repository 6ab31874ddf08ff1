"""Suites over time: what each figure was, how far it spreads, and what changed beside it.

A figure is a metric of one configuration: of all options that a profile was given, those that a
recipe fixes too, so that another recipe with the same options goes on with it. It is followed over
the suites that measured it. Of one suite it is the mean that the suite's own table has, of the
repeats that its recipe does not drop, with their interval.
How far suites differ without a reason is known from suites alone: repeats of one suite share a
day, a page cache and the neighbours on its file system.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter, defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from iobench.analysis.intervals import (
    LEAST_REPEATS,
    Interval,
    dropped,
    relative_spread,
    student,
    trimmed_mean,
    trimmed_ratio,
)
from iobench.errors import OptionError, ProfileError
from iobench.frozen import frozen
from iobench.report.suite_words import said_cell
from iobench.subjects.history.change_points import FEWEST, Series, find_changes
from iobench.subjects.history.suite_facts import (
    HARDWARE,
    HOST,
    By,
    ChangedFact,
    HistorySuite,
    SkippedFile,
    SuiteResults,
    about_suites,
    changed_facts,
    facts_of,
    in_order,
    machine_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.subjects.history.change_points import Finding
    from iobench.suites.results import Result

FIRST_SHOWN: Final = (
    "step_s", "wait_s", "exposed_share", "energy_j", "final_loss", "convert_s", "store_bytes",
)  # fmt: skip
"""Rates follow from times, and stages are many: they are judged where they are asked for."""
NOT_MEASURED: Final = "published_*"
LOWER_IS_BETTER: Final = ("_s", "_j", "_share", "_loss", "_error", "_bytes", "_bytes_per_byte")
HIGHER_IS_BETTER: Final = ("_per_s", "utilisation")

Judged = Literal["better", "worse", ""]
Options = tuple[tuple[str, str], ...]


@frozen
class HistoryPoint:
    """A figure in a period: of the newest suite in it that has one.

    Parameters
    ----------
    suites : tuple of str
        All in it that have one.
    value : float
        Mean of the repeats that the recipe does not drop.
    low, high : float or None
        Its interval of 95 % over the repeats of this suite; None of fewer than two.
    spread, spread_low, spread_high : float or None
        Standard deviation of the repeats over their mean, and its interval; None of too few.
    to_first, to_previous : Interval
        Ratio to the period shown first, and to the one before, by the repeats of both suites. What
        suites differ by without a reason is not in it.
    """

    period: str
    suite: str
    suites: tuple[str, ...]
    n_repeats: int
    value: float
    low: float | None
    high: float | None
    spread: float | None
    spread_low: float | None
    spread_high: float | None
    to_first: Interval
    to_previous: Interval


@frozen
class ChangePoint:
    """A suite from which on a figure is another one, or that stands alone, or a drift.

    Parameters
    ----------
    what : str
        ``"change"``; ``"outlier"``: this suite alone, as before after it; ``"newest"`` and
        ``"first"``: it alone, at an end, so that it may be either; ``"drift"``.
    of_spread : bool
        Whether it is how far repeats of one suite spread that changed, and not their mean.
    suite, before : str
        From which suite on, and the last one before it that has the figure; of a drift its last
        and its first suite.
    n_before, n_after : int
        Suites that it is told from.
    ratio, low, high : float or None
        To the mean of those before, and its interval of 95 %; None where a value is not above 0.
    difference : float or None
        In place of the ratio, where there is none.
    judged : str
        ``"better"``, ``"worse"``, or ``""`` where neither is known.
    chance : float
        That suites without any change show one as clear, for all places looked at in this figure.
    beside : tuple of ChangedFact
        What else was not the same.
    other_machine : bool
        Whether the machine is another one too, so that the figure alone tells nothing of the code.
    """

    what: str
    of_spread: bool
    suite: str
    before: str
    n_before: int
    n_after: int
    ratio: float | None
    low: float | None
    high: float | None
    difference: float | None
    judged: Judged
    chance: float
    beside: tuple[ChangedFact, ...]
    other_machine: bool


@frozen
class HistoryFigure:
    """One metric of one configuration.

    Parameters
    ----------
    options : mapping of str to str
        The configuration.
    name : str
        What of it is not the same in all figures.
    machine : str
        Where it was measured, where several machines take turns: each has figures of its own.
    points : tuple of HistoryPoint
        In order; at most one of each period.
    missing : mapping of str to str
        Suites that tried and have no figure, with the reason.
    n_suites : int
        That have it.
    suite_spread : float or None
        How far suites are from each other between changes: standard deviation over the mean. None
        of too few.
    """

    metric: str
    options: Mapping[str, str]
    name: str
    machine: str
    points: tuple[HistoryPoint, ...]
    missing: Mapping[str, str]
    n_suites: int
    suite_spread: float | None
    changes: tuple[ChangePoint, ...]


@frozen
class History:
    """Suites, and all figures of them that were asked for.

    Parameters
    ----------
    by : str
        What a period is.
    suites : tuple of HistorySuite
        In order of time.
    figures : tuple of HistoryFigure
        By metric and configuration.
    common : mapping of str to str
        Options that all configurations have alike.
    other_metrics : tuple of str
        That there are, but were not asked for.
    """

    by: By
    suites: tuple[HistorySuite, ...]
    figures: tuple[HistoryFigure, ...]
    common: Mapping[str, str]
    other_metrics: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


@frozen
class _Measured:
    """A metric of one configuration in one suite: the repeats, in order.

    ``drop`` lowest and highest of them are in no mean, ``error`` is the mean's standard error, 0
    where it is unknown.
    """

    suite: int
    values: tuple[float, ...]
    facts: Mapping[str, str]
    drop: int
    interval: Interval
    mean: float
    error: float

    @classmethod
    def of(
        cls, suite: int, values: Sequence[float], facts: Mapping[str, str], drop: int
    ) -> _Measured:
        drop = dropped(len(values), drop)
        found = trimmed_mean(values, drop)
        mean = math.fsum(values) / len(values) if found.value is None else found.value
        half = 0.0 if found.high is None else found.high - mean
        error = half / student(max(len(values) - 2 * drop - 1, 1))
        return cls(suite, tuple(values), facts, drop, found, mean, error)


def make_history(
    suites: Iterable[SuiteResults],
    skipped: Iterable[SkippedFile] = (),
    *,
    metrics: Sequence[str] = (),
    by: By = "quarter",
) -> History:
    """Follow the figures of suites over time.

    Parameters
    ----------
    suites : iterable of SuiteResults
        In any order.
    skipped : iterable of SkippedFile
        What could not be read.
    metrics : sequence of str
        Which to look at, with patterns (``stage_*``); by default those of the recipes, where they
        are known, else `FIRST_SHOWN`.
    by : {"quarter", "month", "suite"}

    Raises
    ------
    OptionError
        If there is no such metric.
    ProfileError
        If no suite has a figure.
    """
    left_out = list(skipped)
    ordered = in_order(suites, left_out)
    about = about_suites(ordered, by)
    every, missing = _measured(ordered)
    there = list(dict.fromkeys(metric for metric, _ in every))
    if not there:
        raise _nothing(about, missing, left_out)
    asked = [each for suite in ordered for each in suite.metrics]
    shown = _chosen(metrics, asked or FIRST_SHOWN, there)
    series = {
        (*key, machine): of
        for key in sorted(
            every, key=lambda key: (shown.index(key[0]) if key[0] in shown else 0, key[1])
        )
        if key[0] in shown
        for machine, of in _by_machine(every[key])
    }
    # How far repeats spread is a figure too, and judged together with the others.
    keys = [(key, of_spread) for key in series for of_spread in (False, True)]
    found = dict(
        zip(
            keys,
            find_changes([_values(key[0], series[key], of_spread) for key, of_spread in keys]),
            strict=True,
        )
    )
    common = _common([key[1] for key in series])
    figures = tuple(
        HistoryFigure(
            metric=key[0],
            options=dict(key[1]),
            name=said_cell({option: value for option, value in key[1] if option not in common}),
            machine=key[2],
            points=tuple(_points(of, about)),
            missing={
                about[at].name: why
                for at, why in missing[key[1]].items()
                if at not in {each.suite for each in of}
            },
            n_suites=len(of),
            suite_spread=_suite_spread(of, found[key, False]),
            changes=tuple(
                _change_point(each, key[0], of, about, of_spread=of_spread)
                for of_spread in (False, True)
                for each in found[key, of_spread]
            ),
        )
        for key, of in series.items()
    )
    others = tuple(sorted(each for each in there if each not in shown))
    return History(by, about, figures, common, others, tuple(left_out))


def _nothing(
    about: Sequence[HistorySuite],
    missing: Mapping[Options, Mapping[int, str]],
    skipped: Sequence[SkippedFile],
) -> ProfileError:
    if whys := [why for of in missing.values() for why in of.values()]:
        return ProfileError(
            f"no run of {len(about)} suite(s) has a figure; of the first: {whys[0]}"
        )
    if skipped:
        first = skipped[0]
        return ProfileError(
            f"none of {len(skipped)} file(s) can be used; of {first.file}: {first.why}"
        )
    return ProfileError(
        "no result of a suite in it; expected a folder of 'iobench suite --history'"
    )


def _measured(
    suites: Sequence[SuiteResults],
) -> tuple[
    dict[tuple[str, Options], list[_Measured]],
    dict[Options, dict[int, str]],
]:
    """Return all figures by metric and options, and why there are none, by options and suite."""
    found: dict[tuple[str, Options], list[_Measured]] = defaultdict(list)
    missing: dict[Options, dict[int, str]] = defaultdict(dict)
    for at, suite in enumerate(suites):
        cells: dict[Options, list[Result]] = defaultdict(list)
        for result in sorted(suite.results, key=lambda each: each.round):
            # Results without their options are told apart by recipe.
            options = result.options or {**result.cell, "recipe": result.recipe_digest}
            cells[tuple(sorted(options.items()))].append(result)
        for key, of in cells.items():
            values: dict[str, list[float]] = defaultdict(list)
            for result in of:
                for metric, value in result.figures.items():
                    if result.status == "measured" and math.isfinite(value):
                        values[metric].append(value)
            facts = facts_of(each for each in of if each.status == "measured")
            for metric, told in values.items():
                if not fnmatch.fnmatchcase(metric, NOT_MEASURED):
                    found[metric, key].append(_Measured.of(at, told, facts, suite.drop))
            if not values:
                whys = Counter(each.reason or each.status for each in of)
                missing[key][at] = whys.most_common(1)[0][0]
    return found, missing


def _chosen(metrics: Sequence[str], usual: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the metrics to show, in order."""
    if not metrics:
        return [each for each in dict.fromkeys(usual) if each in there] or sorted(there)
    chosen: list[str] = []
    for pattern in metrics:
        matching = sorted(fnmatch.filter(there, pattern))
        if not matching:
            known = ", ".join(sorted(there))
            raise OptionError(f"--metric {pattern}: no such figure; expected one of {known}")
        chosen += matching
    return list(dict.fromkeys(chosen))


def _by_machine(of: Sequence[_Measured]) -> Iterator[tuple[str, list[_Measured]]]:
    """Yield a figure as one, or machine by machine where these take turns.

    A machine that follows another for good is a change; one that comes back is beside the other.
    """
    machines = [machine_of(each.facts) for each in of]
    n_turns = 1 + sum(a != b for a, b in pairwise(machines))
    if n_turns == len(set(machines)):
        yield "", list(of)
        return
    for machine in dict.fromkeys(machines):
        yield machine, [each for each, its in zip(of, machines, strict=True) if its == machine]


def _values(metric: str, of: Sequence[_Measured], of_spread: bool) -> Series:
    """Return what is looked through for changes: logarithms, where all are above 0."""
    if of_spread:
        spreads = [relative_spread(each.values).value for each in of]
        known = [
            (math.log(each), 1 / math.sqrt(2 * (len(its.values) - 1)))
            for each, its in zip(spreads, of, strict=True)
            if each and len(its.values) >= LEAST_REPEATS
        ]
        # Where some have none, what is left are not the suites of the figure.
        known = known if len(known) == len(of) else []
        return Series(*(np.array(each) for each in zip(*known, strict=True))) if known else NONE
    means, errors = (np.array(each) for each in zip(*((o.mean, o.error) for o in of), strict=True))
    if is_relative(metric, means):
        return Series(np.log(means), errors / means)
    return Series(means, errors)


NONE: Final = Series(np.zeros(0), np.zeros(0))


def is_relative(metric: str, means: np.ndarray) -> bool:
    """Whether a figure's changes are ratios; shares are near their ends too often."""
    return bool((means > 0).all()) and not metric.endswith("_share")


def _common(configurations: Sequence[Options]) -> dict[str, str]:
    """Return the options that all have alike; of one configuration all but what it is of."""
    shared = set(configurations[0]).intersection(*configurations)
    if len(set(configurations)) == 1:
        shared = {each for each in shared if each[0] not in ("dataset", "format", "framework")}
    return dict(sorted(shared))


def _points(of: Sequence[_Measured], about: Sequence[HistorySuite]) -> Iterator[HistoryPoint]:
    shown = [
        (period, list(group))
        for period, group in groupby(of, lambda each: about[each.suite].period)
    ]
    for at, (period, several) in enumerate(shown):
        each = several[-1]
        spread = relative_spread(each.values)
        yield HistoryPoint(
            period=period,
            suite=about[each.suite].name,
            suites=tuple(about[one.suite].name for one in several),
            n_repeats=len(each.values),
            value=each.mean,
            low=each.interval.low,
            high=each.interval.high,
            spread=spread.value,
            spread_low=spread.low,
            spread_high=spread.high,
            to_first=_ratio(shown[0][1][-1], each) if at else Interval(None),
            to_previous=_ratio(shown[at - 1][1][-1], each) if at else Interval(None),
        )


def _ratio(a: _Measured, b: _Measured) -> Interval:
    return trimmed_ratio(a.values, b.values, (a.drop, b.drop))


def _suite_spread(of: Sequence[_Measured], found: Sequence[Finding]) -> float | None:
    """Return how far suites are from each other where nothing changed."""
    if any(each.what == "drift" for each in found):
        return None
    means = np.array([each.mean for each in of])
    edges = [0, *(each.at for each in found if each.what != "outlier"), len(of)]
    alone = {each.at for each in found if each.what == "outlier"}
    parts = [
        means[[at for at in range(first, last) if at not in alone]]
        for first, last in pairwise(edges)
    ]
    free = sum(max(len(part) - 1, 0) for part in parts)
    if free < FEWEST - 2 or not (means > 0).all():
        return None
    squares = sum(float(((part / part.mean() - 1) ** 2).sum()) for part in parts if len(part))
    return math.sqrt(squares / free)


def _change_point(
    found: Finding,
    metric: str,
    of: Sequence[_Measured],
    about: Sequence[HistorySuite],
    *,
    of_spread: bool,
) -> ChangePoint:
    means = np.array([each.mean for each in of])
    relative = of_spread or is_relative(metric, means)
    is_drift, is_alone = found.what == "drift", found.what == "outlier"
    at = found.stop - 1 if is_drift else found.at
    before = found.start if is_drift else found.at - 1
    others = range(found.start, found.stop)
    earlier = [at_ for at_ in others if at_ < found.at or (is_alone and at_ > found.at)]
    later = [found.at] if is_alone else [at_ for at_ in others if at_ >= found.at]
    facts = of[before].facts, of[at].facts
    hosts = [{of[each].facts.get(HOST, "") for each in side} for side in (earlier, later)]
    hardware = any(facts[0].get(name) != facts[1].get(name) for name in HARDWARE)
    low, middle, high = (found.difference + sign * found.half for sign in (-1, 0, 1))
    return ChangePoint(
        what=found.what,
        of_spread=of_spread,
        suite=about[of[at].suite].name,
        before=about[of[before].suite].name,
        n_before=len(others) if is_drift else len(earlier),
        n_after=0 if is_drift else len(later),
        ratio=_exp(middle) if relative else None,
        low=_exp(low) if relative else None,
        high=_exp(high) if relative else None,
        difference=None if relative else found.difference,
        judged=_judged(metric, found.difference, of_spread),
        chance=found.chance,
        beside=changed_facts(*facts),
        # Where suites before and after are of several hosts anyway, these are in the spread.
        other_machine=hardware
        or (not is_drift and hosts[0].isdisjoint(hosts[1]) and min(map(len, hosts)) < 2),
    )


def _exp(value: float) -> float:
    return math.exp(min(max(value, -690.0), 690.0))


def _judged(metric: str, difference: float, of_spread: bool) -> Judged:
    if not of_spread and metric.endswith(HIGHER_IS_BETTER):
        return "better" if difference > 0 else "worse"
    if of_spread or metric.endswith(LOWER_IS_BETTER):
        return "worse" if difference > 0 else "better"
    return ""
