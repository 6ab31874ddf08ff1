"""What is known of a suite beside its figures: when, where, of what code, and what is in doubt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from iobench.frozen import frozen
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.suites.results import Result


By = Literal["quarter", "month", "suite"]
BY: Final[tuple[By, ...]] = ("quarter", "month", "suite")
HOST: Final = "host"
HARDWARE: Final = ("cpu_model", "cores", "memory_bytes", "accelerator")
MACHINE: Final = (HOST, *HARDWARE, "kernel", "file_system")
RECIPE, SAMPLES, DATA = "recipe", "samples", "data"
FIRST_TOLD: Final = ("commit", "iobench", RECIPE, DATA, SAMPLES, *MACHINE, "python")
SHORT: Final = 12
"""Of digests and commits."""
GIB: Final = 1 << 30


@frozen(eq=False)
class SuiteResults:
    """The results of one suite.

    Parameters
    ----------
    name : str
        Its folder.
    drop : int
        Lowest and highest repeats that its recipe leaves out of each mean.
    metrics : tuple of str
        What its recipe shows.
    """

    name: str
    results: tuple[Result, ...]
    drop: int = 0
    metrics: tuple[str, ...] = ()


@frozen
class SkippedFile:
    """A file, or folder of them, that is in no figure, and why."""

    file: str
    why: str


@frozen
class ChangedFact:
    """Something beside the figures that was not the same in two suites."""

    what: str
    before: str
    after: str


@frozen
class HistorySuite:
    """One suite.

    Parameters
    ----------
    recipe : str
        The name of its recipe.
    started : str
        When its first run did, in UTC.
    period : str
        In which quarter or month that is; by suite the minute.
    n_runs, n_failed, n_not_available : int
        Its runs, and those of them without figures.
    facts : mapping of str to str
        Machine, versions and recipe; where not all runs have one value, all of them.
    doubts : tuple of str
        Why its figures may not be of one machine, one code or one time.
    """

    name: str
    recipe: str
    started: str
    period: str
    n_runs: int
    n_failed: int
    n_not_available: int
    facts: Mapping[str, str]
    doubts: tuple[str, ...]


def in_order(
    suites: Iterable[SuiteResults], skipped: list[SkippedFile]
) -> tuple[SuiteResults, ...]:
    """Return suites by when they started, each once, without results of an unknown date."""
    runs: dict[SuiteResults, frozenset[tuple[Any, ...]]] = {}
    for suite in suites:
        dated = tuple(each for each in suite.results if moment_of(each) is not None)
        if undated := len(suite.results) - len(dated):
            why = f"{undated} of its results have no readable date"
            skipped.append(SkippedFile(suite.name, why))
        if dated:
            told = (
                (
                    (each.started, each.round, str(each.machine.get(HOST))),
                    *(tuple(sorted(of.items())) for of in (each.options, each.cell, each.figures)),
                )
                for each in dated
            )
            runs[replace(suite, results=dated)] = frozenset(told)
    found: list[SuiteResults] = []
    for suite in sorted(runs, key=lambda each: (-len(runs[each]), each.name)):
        # One that went on was perhaps kept before as well.
        whole = next((each for each in found if runs[suite] <= runs[each]), None)
        if whole is None:
            found.append(suite)
        else:
            skipped.append(SkippedFile(suite.name, f"all its runs are those of {whole.name}"))
    return tuple(sorted(found, key=lambda each: (_span(each)[0], each.name)))


def about_suites(suites: Sequence[SuiteResults], by: By) -> tuple[HistorySuite, ...]:
    """Return what is known of each suite; they are in order."""
    doubts: list[list[str]] = [list(_doubts(each)) for each in suites]
    for at, each in enumerate(suites):
        for before in range(at):
            if told := _at_once(suites[before], each):
                doubts[at].append(told)
    moments = [_span(each)[0] for each in suites]
    return tuple(
        HistorySuite(
            name=each.name,
            recipe=" and ".join(sorted({of.suite for of in each.results})),
            started=moment.isoformat(timespec="seconds"),
            period=_period(moment, by, each.name, moments),
            n_runs=len(each.results),
            n_failed=sum(of.status == "failed" for of in each.results),
            n_not_available=sum(of.status == "not available" for of in each.results),
            facts=facts_of(each.results),
            doubts=tuple(told),
        )
        for each, told, moment in zip(suites, doubts, moments, strict=True)
    )


def moment_of(result: Result) -> datetime | None:
    """Return when a run started; None where that cannot be read."""
    try:
        moment = datetime.fromisoformat(result.started)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment


def _span(suite: SuiteResults) -> tuple[datetime, datetime]:
    moments = [moment for each in suite.results if (moment := moment_of(each)) is not None]
    return min(moments), max(moments)


def _period(moment: datetime, by: By, name: str, moments: Sequence[datetime]) -> str:
    if by == "quarter":
        return f"{moment.year:04d}-Q{(moment.month + 2) // 3}"
    if by == "month":
        return f"{moment.year:04d}-{moment.month:02d}"
    minute = f"{moment:%Y-%m-%d %H:%M}"
    twins = [each for each in moments if f"{each:%Y-%m-%d %H:%M}" == minute]
    return f"{minute} {name}" if len(twins) > 1 else minute


def _doubts(suite: SuiteResults) -> Iterator[str]:
    """Yield what was not one thing within a suite."""
    there = values_of(suite.results)
    for what in (HOST, *HARDWARE, "kernel", "commit", "iobench"):
        if len(values := there.get(what, [])) > 1:
            told = ", ".join(values[:3]) + (", ..." if len(values) > 3 else "")
            yield f"its runs are of {units.count(len(values))} values of {_named(what)} ({told})"
    by_host: dict[str, list[Result]] = defaultdict(list)
    for each in suite.results:
        by_host[str(each.machine.get(HOST))].append(each)
    for of in by_host.values():
        rounds: dict[int, list[datetime]] = defaultdict(list)
        for each in of:
            if (moment := moment_of(each)) is not None:
                rounds[each.round].append(moment)
        if any(min(rounds[b]) < min(rounds[a]) for a, b in pairwise(sorted(rounds))):
            yield (
                "a later round claims to have begun before an earlier one: the clock was set back "
                "or runs were repeated, so its position among the suites is uncertain"
            )
            break


def _at_once(earlier: SuiteResults, later: SuiteResults) -> str:
    """Return that two suites ran at the same time on one host, and disturbed each other."""
    (first, last), (start, end) = _span(earlier), _span(later)
    shared = {str(each.machine.get(HOST)) for each in earlier.results if each.machine.get(HOST)}
    shared &= {str(each.machine.get(HOST)) for each in later.results}
    if not shared or start > last or first > end:
        return ""
    return f"ran while {earlier.name} did, on the same host: they may have disturbed each other"


def _facts(result: Result) -> dict[str, str]:
    """Return what one result tells of machine and versions, as text."""
    found = {
        name: str(value)
        for name, value in (*result.machine.items(), *result.versions.items())
        if value not in (None, "")
    }
    memory = result.machine.get("memory_bytes")
    if isinstance(memory, int | float):
        # What a kernel keeps for itself makes no other machine.
        found["memory_bytes"] = f"{(memory + GIB / 2) // GIB:.0f} GiB"
    found[RECIPE] = f"{result.suite} {result.recipe_digest[:SHORT]}"
    if result.stand_in is not None:
        found[DATA] = "a stand-in" if result.stand_in else "real files"
    if result.samples_digest:
        found[SAMPLES] = result.samples_digest[:SHORT]
    if "commit" in found:
        found["commit"] = found["commit"][:SHORT]
    return found


def values_of(results: Iterable[Result]) -> dict[str, list[str]]:
    """Return all that results tell of machine, versions, recipe and samples."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in results:
        for name, value in _facts(each).items():
            found[name].add(value)
    return {name: sorted(values) for name, values in sorted(found.items())}


def facts_of(results: Iterable[Result]) -> dict[str, str]:
    """Return the same as one text each."""
    return {name: " and ".join(values) for name, values in values_of(results).items()}


def machine_of(facts: Mapping[str, str]) -> str:
    """Return which machine that is, but for its name: nodes of a cluster are alike."""
    return ", ".join(facts[name] for name in HARDWARE if name in facts)


def changed_facts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedFact, ...]:
    """Return what is not the same; what only one of both tells is unknown in the other."""
    names = [*FIRST_TOLD, *sorted({*before, *after}.difference(FIRST_TOLD))]
    return tuple(
        ChangedFact(_named(name), *values)
        for name in names
        if (values := (before.get(name, units.UNKNOWN), after.get(name, units.UNKNOWN)))[0]
        != values[1]
    )


def _named(fact: str) -> str:
    return {"cpu_model": "CPU", "memory_bytes": "memory"}.get(fact, fact.replace("_", " "))
