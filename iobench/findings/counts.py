"""Counts of a run: what it did, in numbers that no machine changes, compared exactly.

Only what belongs to batches that the training loop got is counted: loading processes run ahead,
and how far they had come when the run ended is chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from iobench.analysis.loop import OWN_PASS
from iobench.errors import FileFormatError, MissingFileError, ProfileError
from iobench.files.atomic import write_atomically
from iobench.findings.batch_digests import delivered_samples
from iobench.json_files import read_small_file
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run

Value = int | str | None
DIGESTS: Final = "digests/"
CALLS: Final = {"opens": Kind.OPEN, "reads": Kind.READ, "read_nbytes": Kind.READ}
"""Work done for what is delivered: less of it for the same samples is an improvement."""
SUMMED: Final = "samples too short to be timed individually were not all seen; use --detail sample"

NO_LOADER: Final = "what is read without a loader is of no batch"
FUSED: Final = "what samples are read with decodes in the same call"


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done for the batches that were delivered, over all training processes."""

    exact: dict[str, Value]  # by name; None where it is unknown
    unknown: dict[str, str] = {}  # why


class CountDifference(msgspec.Struct, frozen=True):
    """One figure that is not as expected; None where there is no such epoch."""

    name: str
    expected: Value
    measured: Value
    less_work: bool = False  # for the same samples: an improvement


def counts_of(run: Run) -> Counts:
    """Return what a run did; refuse one that has other counts each time."""
    data = run.data
    sums = dict.fromkeys(("batches", "samples", "used_nbytes", *CALLS), 0)
    unknown, kinds = dict[str, str](), set[int]()
    for rank in run if data.summed is None else ():
        spans = rank.spans[rank.loop.mine[rank.spans["process"]]]
        spans = spans[(spans["flags"] & Flag.IO) == 0]
        kinds.update(np.unique(spans["kind"]).tolist())
        for name, amounts, why in _amounts(rank, spans):
            sums[name] += int(amounts.sum())
            if (amounts < 0).any():
                unknown.setdefault(name, why)
    if (why_chance := _why_chance(run, sums["batches"])) is not None:
        raise ProfileError(f"{data.path}: its counts are not reproducible: {why_chance}")
    for name, kind in CALLS.items():
        if kind not in kinds:  # where there are any, none for a batch is 0
            unknown.setdefault(name, "no such call was seen")
    if data.lost_spans or data.missing_workers:
        lost = f"{data.lost_spans} spans lost, {len(data.missing_workers)} processes left none"
        unknown |= dict.fromkeys([*sums][1:], lost)
    samples = delivered_samples(run)
    digests = {f"{DIGESTS}{name}": each.digest for name, each in samples.epochs.items()}
    if not samples.recorded or None in digests.values():
        unknown["digests"], digests = "some batch has none; use --digests", {}
    exact: dict[str, Value] = {
        name: None if name in unknown else total for name, total in sums.items()
    }
    return Counts(exact | {name: f"{each:032x}" for name, each in digests.items()}, unknown)


def _why_chance(run: Run, n_batches: int) -> str | None:
    """Return why another run like this one would have other counts; None where it would not."""
    data, requested = run.data, run.data.run_facts.requested
    limit = requested.get("batches")
    if data.summed is not None:
        return f"only sums are kept of {data.summed.n_batches} of its batches; set IOBENCH_KEEP"
    if not n_batches:
        return "no loader delivered a batch"
    if any(each.role == "consumer" and not each.closed for each in data.processes):
        return "a training process was killed or is still running"
    if requested.get("steady_s") is not None and (limit is None or n_batches < limit):
        return (
            f"was ended by its time limit after {n_batches} batches; profile with --batches N or "
            "--epochs E"
        )
    return None


def _amounts(run: RankRun, spans: NDArray[Any]) -> Iterator[tuple[str, NDArray[np.int64], str]]:
    """Yield what is summed, by name, and why it is unknown where some of it is negative."""
    of, got = run.deliveries, run.deliveries.batch >= 0
    yield "batches", got.astype(np.int64), ""
    yield "samples", of.n_samples[got], "the batch size is not known"
    yield "used_nbytes", of.nbytes[got], "the size of a batch was not recorded"
    spans = spans[np.isin(spans["batch"], of.batch[got]) & ((spans["flags"] & Flag.DETAIL) == 0)]
    summed = (spans["flags"] & Flag.SUMMED) != 0
    if OWN_PASS in run.loop.loaders:
        yield from ((name, np.array([-1]), NO_LOADER) for name in CALLS)
    is_part = bool((spans["flags"] & Flag.ESTIMATED).any())
    if is_part or (run.is_script and run.run_facts.detail == "auto" and summed.any()):
        yield from ((name, np.array([-1]), SUMMED) for name in CALLS)
    if (spans["kind"] == Kind.FUSED).any() and not (spans["kind"] == Kind.READ).any():
        yield from ((name, np.array([-1]), FUSED) for name in ("reads", "read_nbytes"))
    pieces = np.where(summed, spans["pieces"], 1).astype(np.int64)
    for name, kind in CALLS.items():
        amounts = spans["nbytes"].astype(np.int64) if name == "read_nbytes" else pieces
        yield name, amounts[spans["kind"] == kind], "the stage does not record its bytes"


def compare_counts(
    expected: Counts, counts: Counts
) -> tuple[tuple[CountDifference, ...], dict[str, str]]:
    """Return where a run differs from what is expected, and why what is expected is unknown."""
    differences, unknown = list[CountDifference](), dict[str, str]()
    for name, old in expected.exact.items():
        new = counts.exact.get(name)
        why = counts.unknown.get("digests" if name.startswith(DIGESTS) else name)
        if old is None or old == new:
            continue
        if new is None and why is not None:
            unknown[name] = why
        else:
            is_less = isinstance(old, int) and isinstance(new, int) and new < old
            differences.append(CountDifference(name, old, new, is_less and name in CALLS))
    return tuple(differences), unknown


class _File(msgspec.Struct, frozen=True):
    iobench_counts: Literal[2]
    runs: dict[str, Counts]

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
    text = msgspec.json.encode(_File(2, dict(runs))).decode()
    with suppress(OSError):  # writing the file says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(text, indent=1) + "\n")
