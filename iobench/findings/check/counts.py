"""Counts of a run: what it did, what it is to do, how the two differ, and the file to commit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.json_files import parse_json, read_small_file
from iobench.json_keys import HIDDEN, figure

if TYPE_CHECKING:
    from pathlib import Path

Figure = int | str | None
Quotient = Figure | Fraction
BOUNDS: Final = ("asked_nbytes", "peak_nbytes")
"""Names of `Counts.at_most`."""
LEAST_STEP: Final = 1 << 20
TOTALS_ONLY: Final = ("batches", "digests/")
"""What has no meaning per sample."""
LESS_IS_BETTER: Final = ("opens", "reads", "read_nbytes", "handed_on_nbytes", "stages/")
"""Work done for what is delivered: less of it for the same samples is an improvement."""
STAGES: Final = "stages/"
VERSION: Final = 1
ABOUT: Final = "what a run does, exactly; made by iobench check --update"


class Counts(msgspec.Struct, frozen=True):
    """What was done for the batches that were delivered, over all training processes.

    Parameters
    ----------
    exact : mapping of str to int or str
        By name, the same wherever the run is repeated; None is not known. ``batches``,
        ``samples``, ``used_nbytes`` (of the batches), ``opens``, ``reads``, ``read_nbytes`` (files
        opened, calls that read and what they brought, as far as stages tell);
        ``handed_on_nbytes``: what passed through the stages between samples and the training loop
        (collate, serialise, pin, h2d), each of which may copy it; ``stages/NAME/spans`` and
        ``stages/NAME/nbytes``: loading work, as reports spell it; ``digests/LOADER/EPOCH``: of all
        its samples in any order, in hexadecimal digits.
    at_most : mapping of str to int
        For bounds; None is not known. ``asked_nbytes``: what loading processes asked the system
        for, by any code, Python itself among it; ``peak_nbytes``: the most memory of each process,
        summed.
    unknown : mapping of str to str
        Why a figure is None, or ``digests`` are not there.
    """

    exact: Mapping[str, Figure]
    at_most: Mapping[str, int | None]
    unknown: Mapping[str, str] = msgspec.field(default_factory=dict)


class CountDifference(msgspec.Struct, frozen=True):
    """One figure that is not as expected.

    Parameters
    ----------
    expected, found : int, str, Fraction or None
        None: there is no such stage or epoch.
    how : str
        ``"exact"``; ``"at_most"`` of a bound; ``"per_sample"`` where the runs have other numbers of
        samples, so that both are quotients.
    """

    name: str
    expected: Quotient
    found: Quotient
    how: str = "exact"
    JSON_KEYS: ClassVar = {
        "expected": HIDDEN,
        "found": HIDDEN,
    }

    @figure.named("expected")
    def expected_number(self) -> int | str | float | None:
        """What was expected, a quotient as a number."""
        return float(self.expected) if isinstance(self.expected, Fraction) else self.expected

    @figure.named("found")
    def found_number(self) -> int | str | float | None:
        """What was found, a quotient as a number."""
        return float(self.found) if isinstance(self.found, Fraction) else self.found


class CountsComparison(msgspec.Struct, frozen=True):
    """Outcome of comparing the counts of one run.

    Parameters
    ----------
    n_equal : int
        Figures that are as expected, bounds that are kept.
    differences : tuple of CountDifference
        Other samples than expected, or more work for them.
    unknown : mapping of str to str
        Figures that are expected and that this run does not report, and why.
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


def expected_counts(counts: Counts) -> Counts:
    """Return what a run like this one is to do; bounds have a quarter more, rounded up."""
    return Counts(counts.exact, {name: _bound(value) for name, value in counts.at_most.items()})


def compare_counts(expected: Counts, found: Counts) -> CountsComparison:
    """Return where a run differs from what is expected.

    Fewer opens, reads, bytes and spans of stages are improvements. A stage that is gone is one only
    where digests show that the samples are the same: it may have been dropped by mistake. Where the
    number of samples differs, that is a difference, and all else is compared per sample.
    """
    now = found.exact
    rates = _sample_numbers(expected.exact.get("samples"), now.get("samples"))
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
        elif after is None and (why := _why(name, found.unknown)):
            unknown[name] = why
        elif _is_gone_with_stage(name, now) or (rates and name.startswith(TOTALS_ONLY)):
            pass
        elif (difference := _difference(name, before, after, rates)) is not None:
            less = _is_less(difference, same_samples=same_samples)
            (improvements if less else differences).append(difference)
        else:
            n_equal += 1
    for name in BOUNDS:
        bound, value = expected.at_most.get(name), found.at_most.get(name)
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


def _is_gone_with_stage(name: str, now: Mapping[str, Figure]) -> bool:
    """Tell the bytes of a stage that is not there: its spans have said so."""
    stage, _, what = name.rpartition("/")
    return name.startswith(STAGES) and what == "nbytes" and f"{stage}/spans" not in now


def _why(name: str, unknown: Mapping[str, str]) -> str:
    """Return why a run does not report a figure; ``""`` where it has no such stage or epoch."""
    return unknown.get("digests" if name.startswith("digests/") else name, "")


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
        data = read_small_file(path)
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: no such file; create it from a known good run with --update"
        ) from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); expected a JSON file") from error
    try:
        document = parse_json(data)
        if document["iobench_counts"] != VERSION:
            raise FileFormatError(
                f"{path}: counts of version {document['iobench_counts']}, expected {VERSION}; "
                "create it again with --update"
            )
        return {str(name): _expected(each) for name, each in document["runs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"{path}: holds no counts of iobench ({error}); create it again with --update"
        ) from error


def write_counts(path: Path, runs: Mapping[str, Counts]) -> None:
    """Write what is expected of each run; the file is whole at every instant.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    document = {
        "iobench_counts": VERSION,
        "about": ABOUT,
        "runs": {
            name: {"exact": dict(each.exact), "at_most": dict(each.at_most)}
            for name, each in runs.items()
        },
    }
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file"
        ) from error


def _expected(document: Mapping[str, Any]) -> Counts:
    exact, at_most = dict(document["exact"]), dict(document["at_most"])
    if all(value is None for value in exact.values()):
        raise ValueError("nothing is expected")
    if unheard := at_most.keys() - {*BOUNDS}:
        raise ValueError(f"no bound: {unheard}")
    for value in exact.values():
        if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
            raise ValueError(f"no count: {value!r}")
    for value in at_most.values():
        if isinstance(value, bool) or not isinstance(value, (int, type(None))):
            raise ValueError(f"no bound: {value!r}")
    return Counts(exact, at_most)
