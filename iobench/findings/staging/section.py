"""What staging took and when it pays, in a few sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.staging.figures import Staging, staging_of, staging_of_job
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

WORTH_FRACTION: Final = 0.01
"""An epoch that is shorter by less is as long as it was."""


def staging_section(found: Staging) -> Section:
    """Return what staging took, what of it was hidden, and when it has paid for itself."""
    return Section("staging", "Staging", sentences(_lines(found)))


def _lines(found: Staging) -> Iterator[str]:
    took = units.duration(found.staged_ns)
    if found.copy_of is not None:
        yield (
            f"The run reads a copy of {found.copy_of} that was staged before it, in time not "
            f"included here: {took}, {units.nbytes(found.nbytes)}, "
            f"{units.byte_rate(found.bytes_per_s)}."
        )
        yield from _epoch(found)
        return
    if found.nbytes is None:
        yield f"Staging took {took}; the number of bytes copied is unknown."
    elif not found.nbytes:
        yield f"Nothing was copied: checking the staged copy, or waiting for it, took {took}."
    else:
        rate = units.byte_rate(found.bytes_per_s)
        yield f"Staging took {took}: {units.nbytes(found.nbytes)} copied, {rate}."
    if found.hidden_ns or found.waited_ns:
        yield (
            f"Of that, {units.duration(found.hidden_ns)} is hidden behind compute, "
            f"{units.duration(found.waited_ns)} coincides with waits for batches, which staging "
            f"may have caused, and {units.duration(found.outside_ns)} held the training up."
        )
    else:
        yield "All of that is exposed: no training loop was computing at the time."
    yield from _epoch(found)


def _epoch(found: Staging) -> Iterator[str]:
    if found.epoch_ns is None:
        yield "T_staging / T_epoch is unknown: no complete epoch began after staging."
        return
    of = (
        "all samples at the time of one"
        if not found.n_epochs
        else f"median of {units.count(found.n_epochs)} that began after it"
    )
    yield (
        f"T_staging / T_epoch is {units.ratio(found.staging_to_epoch)}: an epoch takes "
        f"{units.duration(found.epoch_ns)} ({of})."
    )
    yield from _pays(found)


def _pays(found: Staging) -> Iterator[str]:
    """Yield when staging has paid, against a loader that reads at the rate of the copying."""
    slowdown, at_rate = found.slowdown, found.at_rate
    if slowdown is None or at_rate is None:
        return
    if slowdown - 1 < WORTH_FRACTION:
        yield (
            "By replay, a loader that read the source at the rate of this copy would be no slower. "
            "Staging shortens epochs only if the source serves the loader's own reads more slowly "
            "than that."
        )
        return
    before_ns, has = slowdown * (found.epoch_ns or 0), units.count(found.n_all_epochs)
    yield (
        "By replay, reading the source in each epoch at the rate of this copy would make an epoch "
        f"take {units.duration(before_ns)}: staging pays for itself after "
        f"{units.epochs(at_rate.epochs or 0.0)} "
        f"epochs{f'; this run has {has}' if found.n_all_epochs else ''}."
    )


FINDING: Final = Finding("staging", 80, staging_of, staging_section, staging_of_job)
"""What staging took, as the entry point names it."""
