"""What gates found, as a document: a section for each, with its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from iobench.findings.check.gates import (
    Checked,
    CountsGate,
    Doubt,
    Gate,
    GrowthGate,
    Outcome,
    ShareGate,
)
from iobench.report import units
from iobench.report.document import Document, Section, Sentence, sentences
from iobench.report.json_walk import to_plain
from iobench.report.sentences import PARTS, kept_words

if TYPE_CHECKING:
    from iobench.findings.check.counts import CountDifference, Counts
    from iobench.findings.check.exposed_share import ExposedShare
    from iobench.report.document import Sign, Style

NAMES: Final = {
    "used_nbytes": "bytes used",
    "read_nbytes": "bytes read",
    "handed_on_nbytes": "bytes delivered to the loop",
    "asked_nbytes": "bytes requested from the system",
    "peak_nbytes": "peak memory",
}
DOUBTS: Final = {
    Doubt.STRADDLES: "the interval contains the limit; measure longer",
    Doubt.SHORT: (
        "there is no interval for fewer than 48 steady-state steps, nor for too few complete "
        "epochs after the first (four are enough, or two with 48 steps together); run more "
        "batches or epochs"
    ),
    Doubt.LOST: "spans were lost, so waits may be missing",
    Doubt.UNKNOWN: "too much of it has no known cause",
}
SHOWN: Final[dict[Outcome, tuple[Style, Sign]]] = {
    Outcome.PASSED: ("good", "passed"),
    Outcome.REGRESSION: ("bad", "failed"),
    Outcome.INCONCLUSIVE: ("fair", "undecided"),
}
MOST_LINES: Final = 40
IF_MEANT: Final = "if this is intended, use --update"
RENEW: Final = "less work than the file expects passes; use --update to require it of later runs"


def check_document(found: Checked) -> Document:
    """Return the outcome, then what each gate found."""
    return Document(
        title=f"iobench check: {found.outcome}",
        sections=tuple(_gate_section(number, gate) for number, gate in enumerate(found.gates)),
        figures=lambda: to_plain(found),
        sign=SHOWN[found.judged][1],
    )


def _gate_section(number: int, gate: Gate) -> Section:
    outcome, doubt = gate.judged
    told = [Sentence(f"{outcome.word}: {_title(gate)}", *SHOWN[outcome])]
    told += sentences(_lines(gate))
    if doubt is not None and not isinstance(gate, CountsGate):
        told.append(Sentence(DOUBTS[doubt]))
    return Section(f"gate-{number}", "", tuple(told))


def _title(gate: Gate) -> str:
    """Return what a gate holds against what."""
    match gate:
        case CountsGate():
            return f"counts of {_run(gate.run)}"
        case ShareGate():
            return (
                f"exposed share of {_run(gate.run)}{_kept('of it', gate.found)}, at most "
                f"{units.fraction(gate.limit)}"
            )
        case GrowthGate():
            return (
                f"exposed time of {_run(gate.run)}{_kept('of it', gate.found)} against a stored "
                f"run{_kept('of that', gate.stored)}, at most "
                f"{units.fraction(gate.margin)} of its time per sample more"
            )
        case _:
            return gate.kind


def _lines(gate: Gate) -> Iterator[str]:
    """Yield what a gate measured, and what speaks against it."""
    match gate:
        case CountsGate():
            yield from _difference_lines(gate)
        case ShareGate():
            yield from _share_lines("exposed", gate.found)
        case GrowthGate():
            yield from _growth_lines(gate)


def _difference_lines(gate: CountsGate) -> Iterator[str]:
    """Yield the counts that differ, those that this run does not report, and how many are equal."""
    comparison = gate.comparison
    for differences, suffix in ((comparison.differences, ""), (comparison.improvements, ": less")):
        for difference in differences[:MOST_LINES]:
            yield f"{_difference(difference)}{suffix}"
        if len(differences) > MOST_LINES:
            yield f"and {len(differences) - MOST_LINES} more{suffix}"
    for name, why in comparison.unknown.items():
        yield f"{_name(name)}: expected, but unknown here: {why}"
    plural = "s" if comparison.n_equal != 1 else ""
    yield f"{units.count(comparison.n_equal)} figure{plural} as expected"
    if comparison.not_expected:
        yield f"not in the file: {', '.join(map(_name, comparison.not_expected))}"
    if comparison.differences:
        yield IF_MEANT
    elif comparison.improvements:
        yield RENEW


def kept_lines(kept: dict[str, Counts]) -> Iterator[str]:
    """Yield what was written of each run, and what of it nobody will compare."""
    for run, expected in kept.items():
        figures = {**expected.exact, **expected.at_most}
        unknown = [_name(name) for name, value in figures.items() if value is None]
        known = len(figures) - len(unknown)
        yield f"{_run(run)}: {known} figures" + (
            f"; unknown, so not compared: {', '.join(unknown)}" if unknown else ""
        )
        yield from _derived(expected)


def _derived(expected: Counts) -> Iterator[str]:
    exact = expected.exact
    spans = [value for name, value in exact.items() if name.endswith("/spans")]
    total = None if None in spans else sum(value for value in spans if isinstance(value, int))
    for what, above, below in (
        ("bytes read per byte used", exact.get("read_nbytes"), exact.get("used_nbytes")),
        ("copies per byte, at most", exact.get("handed_on_nbytes"), exact.get("used_nbytes")),
        ("spans per sample", total, exact.get("samples")),
    ):
        if isinstance(above, int) and isinstance(below, int) and below:
            yield f"{what}: {units.ratio(above / below)}"


def _difference(difference: CountDifference) -> str:
    name = _name(difference.name)
    if difference.how == "at_most":
        found, bound = difference.found, difference.expected
        assert isinstance(found, int)
        assert isinstance(bound, int)
        return f"{name}: {units.nbytes(found)}, expected at most {units.nbytes(bound)}"
    suffix = " per sample" if difference.how == "per_sample" else ""
    return f"{name}{suffix}: {_value(difference.found)}, expected {_value(difference.expected)}"


def _value(value: int | str | Fraction | None) -> str:
    match value:
        case None:
            return "none"
        case Fraction() if value.denominator != 1:
            return f"{units.number(float(value))} ({value})"
        case Fraction() | int():
            return units.count(int(value))
        case _:
            return value


def _name(name: str) -> str:
    """Return ``bytes of read`` for ``stages/read/nbytes``."""
    if name.startswith("stages/"):
        stage, _, what = name.removeprefix("stages/").rpartition("/")
        return f"{'spans' if what == 'spans' else 'bytes'} of {stage}"
    if name.startswith("digests/"):
        loader, _, epoch = name.removeprefix("digests/").partition("/")
        of = "" if loader == "profile" else f" of loader {loader}"
        return f"digest of the samples{of} in epoch {epoch}"
    return NAMES.get(name, name)


def _growth_lines(gate: GrowthGate) -> Iterator[str]:
    yield from _share_lines("exposed", gate.found)
    yield from _share_lines("stored run", gate.stored)
    if gate.growth is not None:
        grown, low, high = (units.signed_fraction(each) for each in gate.growth)
        yield f"exposed time per sample: {grown} ({low} to {high}) of the stored time per sample"
    yield "no interval includes what differs from one run to the next"


def _share_lines(what: str, found: ExposedShare) -> Iterator[str]:
    interval = "without an interval"
    if found.low is not None:
        interval = f"{units.fraction(found.low)} to {units.fraction(found.high)}"
    steps = f"{units.count(found.n_steps)} steps"
    part = f"{steps}, {PARTS[found.window]}" if found.window != "whole" else "no steady state"
    yield f"{what}: {units.fraction(found.share)} ({interval}) of {part}"
    if found.unknown_ns:
        unknown = units.fraction(found.unknown_ns / found.wall_ns)
        yield f"of this, without a known cause: {unknown}"


def _kept(whose: str, found: ExposedShare) -> str:
    kept = kept_words(found.n_batches, found.n_folded)
    return f" ({whose}, {kept})" if kept else ""


def _run(name: str) -> str:
    return "the run" if name == "run" else name
