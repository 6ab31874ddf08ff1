"""Digests of what a run delivered, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import Column, Count, Section, Table, sentences
from iobench.subjects.contract import Subject
from iobench.subjects.samples.figures import SampleDigests, sample_digests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.document import Cell
    from iobench.subjects.samples.figures import EpochDigest

N_EPOCHS: Final = 3
"""Epochs whose digest is shown."""
COLUMNS: Final = tuple(map(Column, ("epoch", "samples", "digest, in any order")))


def samples_section(found: SampleDigests) -> Section:
    """Return of how many samples there are digests, what they cost, and those of epochs."""
    more = len(found.epochs) - N_EPOCHS
    table = Table(
        "",
        COLUMNS,
        tuple(map(_row, found.epochs[:N_EPOCHS])),
        note=f"{units.count(more)} more epochs are in --json." if more > 0 else "",
    )
    return Section("samples", "Samples", (*sentences(_lines(found)), table), is_folded=True)


def _lines(found: SampleDigests) -> Iterator[str]:
    share = units.fraction(found.spent_ns / found.wall_ns if found.wall_ns else None)
    yield (
        f"Digests of {units.count(found.n_samples)} samples (XXH3, 128 bits): "
        f"{units.duration(found.spent_ns)} of all processes, {share} of the run's time."
    )
    if found.n_unknown_batches:
        yield (
            f"{units.count(found.n_unknown_batches)} batches have samples without a digest: lost, "
            "or belonging to objects whose value iobench cannot read."
        )
    if found.n_damaged:
        yield f"{units.count(found.n_damaged)} digests cannot be read."


def _row(each: EpochDigest) -> tuple[Cell, ...]:
    loader = "" if each.loader is None else f" of loader {each.loader}"
    part = "" if each.is_complete else ", a part of it"
    name = f"{each.epoch}{loader}{part}"
    return name, Count(each.n_samples), each.digest or units.UNKNOWN


SUBJECT: Final = Subject(name="digests", order=600, figures=sample_digests, section=samples_section)
"""Digests of samples, as the entry point names them."""
