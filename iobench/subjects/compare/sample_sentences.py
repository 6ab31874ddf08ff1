"""Whether two runs delivered the same samples, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import Sentence
from iobench.subjects.compare.samples_compared import SamplesVerdict

if TYPE_CHECKING:
    from iobench.subjects.compare.samples_compared import FirstDifference, SamplesComparison

HOW: Final = (
    "with digests: iobench profile --digests, iobench run --digests -- COMMAND, or "
    "iobench.record(digests=True)"
)
REASONS: Final = {
    "no epoch in common": "they have no epoch of one loader in common",
    "digests are missing": "digests of delivered batches are missing",
    "no sample in common": (
        "both ended partway through epochs of different order, and no sample has the same number "
        "in both"
    ),
}


def samples_sentences(found: SamplesComparison, a: str, b: str) -> list[Sentence]:
    """Return the verdict, how much of the runs it is about, and the first sample that differs.

    Parameters
    ----------
    a, b : str
        What the runs are called.
    """
    if found.why_unknown.startswith("not recorded"):
        which = a if found.why_unknown.endswith(" a") else b
        told = f"Samples: unknown, because {which} was made without digests. Make both {HOW}."
        return [Sentence(told, "strong")]
    lines = [Sentence(f"Samples: {_verdict(found, a, b)}.", "strong")]
    if found.first is not None:
        lines.append(Sentence(_first(found.first, a, b)))
    for name, n_unknown in zip((a, b), found.n_unknown_batches, strict=True):
        if n_unknown:
            lines.append(
                Sentence(
                    f"{units.count(n_unknown)} batches of {name} have samples without a digest: "
                    "lost, or belonging to objects whose value iobench cannot read."
                )
            )
    return lines


def _verdict(found: SamplesComparison, a: str, b: str) -> str:
    verdict = found.verdict
    n_epochs = f" in {_many(found.n_epochs, 'epoch')}"
    if verdict is SamplesVerdict.UNKNOWN:
        return f"{verdict.value}, {REASONS[found.why_unknown]}"
    text = f"{verdict.value}, {_many(found.n_compared, 'sample')}{n_epochs} compared"
    if verdict is SamplesVerdict.DIFFERENT:
        text += (
            f": {units.count(found.n_missing)} of {a} are not in {b}, "
            f"{units.count(found.n_extra)} of {b} are not in {a}"
        )
    if found.is_partial:
        text += (
            f" (of {units.count(found.n_samples[0])} in {a} and {units.count(found.n_samples[1])} "
            f"in {b}; nothing more is known, because not all epochs are complete in both)"
        )
    return text


def _first(first: FirstDifference, a: str, b: str) -> str:
    loader = "" if first.loader is None else f" of loader {first.loader}"
    sample = "of unknown number" if first.sample is None else units.count(first.sample)
    where = f"epoch {first.epoch}{loader}, place {units.count(first.place)}"
    told = [
        f"{digest} in batch {batch} of {name}" if digest is not None else f"not found in {name}"
        for name, batch, digest in zip((a, b), first.batches, first.digests, strict=True)
    ]
    return f"First that differs: sample {sample}, {where}: {', '.join(told)}."


def _many(n: int, what: str) -> str:
    return f"{units.count(n)} {what}{'' if n == 1 else 's'}"
