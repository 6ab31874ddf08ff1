"""Counts of a run against those that were kept: equal, different, or not to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from iobench.json_keys import HIDDEN, figure

if TYPE_CHECKING:
    from iobench.subjects.check.counts import Counts

__all__ = [
    "BOUNDS",
    "CountDifference",
    "CountsComparison",
    "ExpectedCounts",
    "compare_counts",
    "expected_counts",
]

Figure = int | str | None
Quotient = Figure | Fraction
BOUNDS: Final = ("asked_nbytes", "peak_nbytes")
LEAST_STEP: Final = 1 << 20
TOTALS_ONLY: Final = ("batches", "digests/")
"""What has no meaning per sample."""
LESS_IS_BETTER: Final = ("opens", "reads", "read_nbytes", "handed_on_nbytes", "stages/")
"""Work done for what is delivered: less of it for the same samples is an improvement."""
NESTED: Final = ("stages", "digests", "unknown")


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """What a run is to do.

    Parameters
    ----------
    exact : mapping of str to int or str
        By name: ``batches``, ``stages/read/spans``, ``digests/profile/0``; None is not compared.
    at_most : mapping of str to int
        By name; None is not compared.
    """

    exact: Mapping[str, Figure]
    at_most: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class CountDifference:
    """One figure that is not as expected.

    Parameters
    ----------
    name : str
    expected, found : int, str, Fraction or None
        None: there is no such stage or epoch.
    how : str
        ``"exact"``; ``"at_most"`` of a bound; ``"per_sample"`` where the runs have other numbers of
        samples, so that both are quotients.
    """

    name: str
    expected: Quotient = field(metadata=HIDDEN)
    found: Quotient = field(metadata=HIDDEN)
    how: str = "exact"

    @figure.named("expected")
    def expected_number(self) -> int | str | float | None:
        """What was expected, a quotient as a number."""
        return float(self.expected) if isinstance(self.expected, Fraction) else self.expected

    @figure.named("found")
    def found_number(self) -> int | str | float | None:
        """What was found, a quotient as a number."""
        return float(self.found) if isinstance(self.found, Fraction) else self.found


@dataclass(frozen=True, slots=True)
class CountsComparison:
    """Outcome of comparing the counts of one run.

    Parameters
    ----------
    n_equal : int
        Figures that are as expected, bounds that are kept.
    differences : tuple of CountDifference
        Other samples than expected, or more work for them.
    unknown : mapping of str to str
        Figures that are expected and that this run does not tell, and why.
    not_expected : tuple of str
        Figures that this run tells and nobody wrote down.
    improvements : tuple of CountDifference
        Less work than expected for what was delivered.
    """

    n_equal: int
    differences: tuple[CountDifference, ...]
    unknown: Mapping[str, str]
    not_expected: tuple[str, ...]
    improvements: tuple[CountDifference, ...] = ()


def expected_counts(counts: Counts) -> ExpectedCounts:
    """Return what a run like this one is to do; bounds have a quarter more, rounded up."""
    return ExpectedCounts(
        exact=_figures(counts),
        at_most={name: _bound(getattr(counts, name)) for name in BOUNDS},
    )


def compare_counts(expected: ExpectedCounts, found: Counts) -> CountsComparison:
    """Return where a run differs from what is expected.

    Fewer opens, reads, bytes and spans of stages are improvements. A stage that is gone is one only
    where digests show that the samples are the same: it may have been dropped by mistake. Where the
    number of samples differs, that is a difference, and all else is compared per sample.
    """
    now = _figures(found)
    rates = _sample_numbers(expected.exact.get("samples"), now["samples"])
    differences: list[CountDifference] = []
    improvements: list[CountDifference] = []
    same_samples = _same_samples(expected.exact, now)
    unknown: dict[str, str] = {}
    not_expected: list[str] = []
    n_equal = 0
    for name in sorted({*expected.exact, *now}, key=_place):
        before, after = expected.exact.get(name), now.get(name)
        if before is None and not _is_new_stage(name, expected.exact, after):
            if after is not None:
                not_expected.append(name)
        elif after is None and (why := _why(name, found)):
            unknown[name] = why
        elif _is_gone_with_stage(name, found) or (rates and name.startswith(TOTALS_ONLY)):
            pass
        elif (difference := _difference(name, before, after, rates)) is not None:
            less = _is_less(difference, same_samples=same_samples)
            (improvements if less else differences).append(difference)
        else:
            n_equal += 1
    for name in BOUNDS:
        bound, value = expected.at_most.get(name), getattr(found, name)
        if bound is None or (rates is not None and name == "asked_nbytes"):
            continue
        if value is None:
            unknown[name] = found.unknown.get(name, "")
        elif value > bound:
            differences.append(CountDifference(name, bound, value, "at_most"))
        else:
            n_equal += 1
    return CountsComparison(
        n_equal, tuple(differences), unknown, tuple(not_expected), tuple(improvements)
    )


def _figures(counts: Counts) -> dict[str, Figure]:
    """Return all that is exact, by name."""
    plain = [each.name for each in fields(counts) if each.name not in (*BOUNDS, *NESTED)]
    found: dict[str, Figure] = {name: getattr(counts, name) for name in plain}
    for name, stage in counts.stages.items():
        found[f"stages/{name}/spans"] = stage.spans
        found[f"stages/{name}/nbytes"] = stage.nbytes
    for name, digest in (counts.digests or {}).items():
        found[f"digests/{name}"] = digest
    return found


def _place(name: str) -> tuple[int, str]:
    """Sort by the order of `Counts`, then by name."""
    order = ("batches", "samples", "used", "opens", "reads", "read_", "handed", "stages", "digests")
    return next((at for at, first in enumerate(order) if name.startswith(first)), 99), name


def _bound(value: int | None) -> int | None:
    """Return a quarter more, rounded up to two digits and at least to a MiB."""
    if value is None:
        return None
    more = value * 5 // 4
    step = max(LEAST_STEP, int(f"1{'0' * (len(str(more)) - 2)}"))
    return -(-more // step) * step


def _sample_numbers(before: Figure, after: Figure) -> tuple[int, int] | None:
    """Return both numbers of samples where they differ, and totals cannot be compared."""
    if not isinstance(before, int) or not isinstance(after, int) or before == after:
        return None
    return (before, after) if before > 0 and after > 0 else None


def _is_new_stage(name: str, expected: Mapping[str, Figure], after: Figure) -> bool:
    """Tell a stage that the file does not have at all from a figure of it that nobody knew."""
    return (
        name.startswith("stages/")
        and name.endswith("/spans")
        and name not in expected
        and after is not None
    )


def _is_gone_with_stage(name: str, found: Counts) -> bool:
    """Tell the bytes of a stage that is not there: its spans have said so."""
    stage = name.removeprefix("stages/").removesuffix("/nbytes")
    return name.startswith("stages/") and name.endswith("/nbytes") and stage not in found.stages


def _why(name: str, found: Counts) -> str:
    """Return why a run does not tell a figure; ``""`` where it has no such stage or epoch."""
    if name in found.unknown:
        return found.unknown[name]
    if name.startswith("digests/"):
        return found.unknown.get("digests", "") if found.digests is None else ""
    stage = name.removeprefix("stages/").rpartition("/")[0]
    if stage in found.stages:
        return found.unknown.get(f"stages/{stage}", "the stage does not tell its bytes")
    return ""


def _difference(
    name: str, before: Figure, after: Figure, rates: tuple[int, int] | None
) -> CountDifference | None:
    """Return how two figures differ; None if they do not."""
    if rates is None or name == "samples" or not _are_numbers(before, after):
        return None if before == after else CountDifference(name, before, after)
    assert isinstance(before, int)
    assert isinstance(after, int)
    was, now = Fraction(before, rates[0]), Fraction(after, rates[1])
    return None if was == now else CountDifference(name, was, now, "per_sample")


def _same_samples(expected: Mapping[str, Figure], now: Mapping[str, Figure]) -> bool:
    """Return whether digests show that the samples of every epoch are those expected."""
    names = {name for name in {*expected, *now} if name.startswith("digests/")}
    return bool(names) and all(
        expected.get(name) is not None and expected.get(name) == now.get(name) for name in names
    )


def _is_less(difference: CountDifference, *, same_samples: bool) -> bool:
    """Return whether a figure tells of less work than expected."""
    expected, found = difference.expected, difference.found
    if not difference.name.startswith(LESS_IS_BETTER) or expected is None:
        return False
    if found is None:  # the stage is gone
        return same_samples
    return not isinstance(expected, str) and not isinstance(found, str) and found < expected


def _are_numbers(*values: Figure) -> bool:
    return all(isinstance(value, int) for value in values)
