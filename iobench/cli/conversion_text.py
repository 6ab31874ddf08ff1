"""What ``iobench convert`` and ``iobench verify`` print, line by line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.report.units import (
    UNKNOWN,
    byte_rate,
    count,
    duration,
    epochs,
    nanoseconds,
    nbytes,
    number,
    ratio,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.conversion.checking import Verification
    from iobench.conversion.planning import ConversionForecast
    from iobench.conversion.preparing import PreparedConversion
    from iobench.conversion.request import ConvertRequest
    from iobench.conversion.running import ConversionOutcome

__all__ = ["forecast_lines", "outcome_lines", "verification_lines"]

INDENT: Final = 10
STAND_IN: Final = "STAND-IN: generated files, not the real dataset."


def forecast_lines(
    request: ConvertRequest, prepared: PreparedConversion, planned: ConversionForecast
) -> list[str]:
    """Return the plan of a conversion as lines."""
    return list(_forecast(request, prepared, planned))


def outcome_lines(outcome: ConversionOutcome) -> list[str]:
    """Return what a conversion made as lines."""
    return list(_outcome(outcome))


def verification_lines(found: Verification) -> list[str]:
    """Return what was checked as lines."""
    rate = found.nbytes / found.wall_s if found.wall_s > 0 else None
    shards = f"{count(found.n_shards)} {_plural('shard', found.n_shards)}"
    lines = [
        f"{_shown(found.path)}: as written",
        _line("samples", f"{count(found.n_samples)} of {found.dataset} as {found.format}"),
        _line(
            "checked",
            f"{nbytes(found.nbytes)} in {shards}, {count(found.n_files)} "
            f"{_plural('file', found.n_files)}: every checksum is right",
        ),
    ]
    left = [_line("unchecked" if n == 0 else "", w) for n, w in enumerate(found.not_covered)]
    if found.comparison is None:
        lines.append(_line("time", f"{_time(found.wall_s)}, {byte_rate(rate)}"))
        return [*lines, *left]
    lines.append(_line("compared", f"with {found.against}: {found.comparison}"))
    for name, off in found.comparison.largest.items():
        allowed = number(found.comparison.allowed.get(name))
        lines.append(
            _line("lossy", f"{name} is off by at most {number(off)}; the store says {allowed}")
        )
    lines.append(_line("time", _time(found.wall_s)))
    return [*lines, *left]


def _forecast(
    request: ConvertRequest, prepared: PreparedConversion, planned: ConversionForecast
) -> Iterator[str]:
    yield f"{prepared.dataset.name} to {request.to} in {request.out}: the plan, nothing written"
    if prepared.source.stand_in:
        yield STAND_IN
    shards = f"{count(planned.n_shards)} {_plural('shard', planned.n_shards)}"
    yield _line(
        "samples", f"{count(planned.n_samples)} in {shards} of {count(planned.shard_n_samples)}"
    )
    passes = f"{count(planned.passes)} {_plural('pass', planned.passes)}"
    yield _line(
        "read",
        f"{nbytes(planned.in_nbytes)}, {ratio(planned.read_amplification)} bytes for a byte "
        f"needed, {passes}",
    )
    free = planned.free_nbytes
    room = f"free space {UNKNOWN}" if free is None else f"{nbytes(free)} free"
    lacking = "" if planned.fits else ": NOT ENOUGH ROOM"
    yield _line("write", f"{nbytes(planned.out_nbytes)}; {room}{lacking}")
    yield _line("memory", f"{nbytes(planned.peak_nbytes)} of data at once, at the most")
    yield _line("time", f"{_time(planned.convert_s)}, at the rate of a short probe")
    yield _line(
        "epoch",
        f"loading takes {_time(planned.load_source_s)} from the source, "
        f"{_time(planned.load_store_s)} from the store, with {request.n_workers} workers",
    )
    yield _line("pay-back", _payback(request, planned))


def _payback(request: ConvertRequest, planned: ConversionForecast) -> str:
    if planned.saved_s is None:
        return f"{UNKNOWN}: no step time is published; give yours, as --compute 25ms"
    if planned.payback_epochs is None:
        return "none: with this training step, an epoch would not be shorter"
    return (
        f"after {epochs(planned.payback_epochs)} epochs; one is {_time(planned.saved_s)} shorter "
        f"(--compute {request.compute})"
    )


def _outcome(outcome: ConversionOutcome) -> Iterator[str]:
    n_shards = len(outcome.shards)
    made = f"{count(outcome.n_samples)} samples, {nbytes(outcome.out_nbytes)}"
    yield (
        f"{outcome.dataset} as {outcome.format} in {_shown(outcome.path)}: {made} in "
        f"{count(n_shards)} {_plural('shard', n_shards)}"
    )
    if outcome.stand_in:
        yield STAND_IN
    if outcome.was_finished:
        yield _line("time", "none: the store was finished already")
        return
    yield _line(
        "time",
        f"{_time(outcome.wall_s)}: read {nbytes(outcome.in_nbytes)}, wrote "
        f"{nbytes(outcome.wrote_nbytes)}, {byte_rate(outcome.bytes_per_s)}",
    )
    stages = ", ".join(f"{name} {_time(value)}" for name, value in outcome.stages_s.items())
    yield _line("stages", f"{stages} (over all threads)")
    told = {
        "written": outcome.n_written,
        "there before": outcome.n_resumed,
        "by other processes": outcome.n_elsewhere,
    }
    yield _line("shards", ", ".join(f"{count(n)} {what}" for what, n in told.items() if n))
    yield _line(
        "memory",
        f"{nbytes(outcome.peak_rss_nbytes)} at the most, {nbytes(outcome.idle_rss_nbytes)} before",
    )
    for name, errors in outcome.lossy.items():
        yield _line(
            "lossy",
            f"{name} is off by at most {number(errors['max_absolute_error'])}, relatively "
            f"{number(errors['max_relative_error'])}",
        )
    yield _line("check", shlex.join(["iobench", "verify", _shown(outcome.path)]))


def _shown(path: Path) -> str:
    """Return a path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _time(value_s: float) -> str:
    return duration(nanoseconds(value_s))


def _plural(word: str, n: int) -> str:
    return word if n == 1 else f"{word}es" if word.endswith("s") else f"{word}s"


def _line(name: str, text: str) -> str:
    return f"  {name:{INDENT}} {text}"
