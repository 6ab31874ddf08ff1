"""What ``iobench convert`` and ``iobench verify`` say: a title, and what stands below it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.chunks.group_plan import mebibytes
from iobench.masking import as_typed
from iobench.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Quantity,
    Sentence,
    Table,
    properties,
)
from iobench.report.units import (
    UNKNOWN,
    byte_rate,
    count,
    duration,
    nanoseconds,
    nbytes,
    number,
    ratio,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iobench.conversion.checking import Verification
    from iobench.conversion.conversion_run import ConversionOutcome
    from iobench.conversion.convert_request import ConvertRequest
    from iobench.conversion.forecast import ConversionForecast
    from iobench.conversion.preparing import PreparedConversion

STAND_IN: Final = Sentence("STAND-IN: generated files, not the real dataset.", "caution")


def forecast_text(
    request: ConvertRequest, prepared: PreparedConversion, planned: ConversionForecast
) -> tuple[str, list[Block]]:
    """Return the plan of a conversion: its title, and what is in it."""
    title = f"{prepared.dataset.name} to {request.to} in {request.out}: the plan, nothing written"
    rows = properties(_planned(request, planned))
    lost = quality_tables(planned.lossy, planned.probe_n_samples, is_probe=True)
    return title, [*([STAND_IN] if prepared.source.stand_in else []), rows, *lost]


def _planned(request: ConvertRequest, planned: ConversionForecast) -> Iterator[tuple[Cell, ...]]:
    shards = f"{_counted(planned.n_shards, 'shard')} of {count(planned.shard_n_samples)}"
    yield "samples", f"{count(planned.n_samples)} in {shards}"
    amplified = f"{ratio(planned.read_amplification)} bytes read per byte needed"
    yield (
        "read",
        Quantity(planned.in_nbytes, "B", f"{{}}, {amplified}, {_counted(planned.passes, 'pass')}"),
    )
    if planned.unknown_ranges:
        yield (
            "range",
            f"of {', '.join(planned.unknown_ranges)}: found by reading all samples once before the "
            "first is written; --range VAR=LOW:HIGH spares that",
        )
    free = planned.free_nbytes
    space = f"free space {UNKNOWN}" if free is None else f"{nbytes(free)} free"
    if not planned.files_fit:
        space += (
            f"; {count(planned.least_files)} files or more; {count(planned.free_files)} can be "
            "created"
        )
    lacking = "" if planned.fits else ": NOT ENOUGH ROOM"
    aside = planned.spilled_nbytes
    meanwhile = f" and {nbytes(aside)} of temporary files" if aside else ""
    yield "write", Quantity(planned.out_nbytes, "B", f"{{}}{meanwhile}; {space}{lacking}")
    yield (
        "memory",
        Quantity(planned.peak_nbytes, "B", f"about {{}} for data and buffers{_held(planned)}"),
    )
    yield "time", _time(planned.convert_s, "{}, extrapolated from a short probe")
    source, store = (
        duration(nanoseconds(each)) for each in (planned.load_source_s, planned.load_store_s)
    )
    yield (
        "epoch",
        f"loading takes {source} from the source, {store} from the store, with "
        f"{request.n_workers} workers; timed on a probe just read and written, so local files came "
        "from the page cache",
    )
    yield "pay-back", _payback(request, planned)


def _held(planned: ConversionForecast) -> str:
    held = f" (--memory {nbytes(planned.memory_nbytes)}"
    once = planned.once_memory_nbytes
    if once is None:
        return f"{held})"
    return f"{held}; --memory {mebibytes(once)} would read each chunk once)"


def _payback(request: ConvertRequest, planned: ConversionForecast) -> Cell:
    if planned.saved_s is None:
        return f"{UNKNOWN}: no step time is published; give yours, as --compute 25ms"
    if planned.payback_epochs is None:
        return "never: with this training step, an epoch would not be shorter"
    saved = duration(nanoseconds(planned.saved_s))
    words = f"after {{}} epochs; one is {saved} shorter (--compute {request.compute})"
    return Quantity(planned.payback_epochs, "epochs", words)


def outcome_text(outcome: ConversionOutcome) -> tuple[str, list[Block]]:
    """Return what a conversion made, and the commands that check and measure it."""
    path = str(as_typed(outcome.path))
    created = f"{count(outcome.n_samples)} samples, {nbytes(outcome.out_nbytes)}"
    shards = _counted(len(outcome.shards), "shard")
    known: list[Block] = [STAND_IN] if outcome.stand_in else []
    if outcome.was_finished:
        known.append(properties([("time", "none: the store was already finished")]))
    else:
        known.append(properties(_figures(outcome)))
        known += quality_tables(outcome.lossy, outcome.n_samples)
        known.append(Command(shlex.join(["iobench", "verify", _as_argument(path)]), "Check it"))
    known.append(Command(profile_command(path), "Measure loading it"))
    return f"{outcome.dataset} as {outcome.format} in {path}: {created} in {shards}", known


def profile_command(store: str) -> str:
    """Return the command that measures loading a finished store."""
    is_path = os.sep in store or bool(Path(store).suffix)
    # A plain word may be the name of a dataset.
    named = _as_argument(store) if is_path else f".{os.sep}{store}"
    return shlex.join(["iobench", "profile", named])


def _as_argument(path: str) -> str:
    """Return a path that is no option, whatever it begins with."""
    return f".{os.sep}{path}" if path.startswith("-") else path


def _figures(outcome: ConversionOutcome) -> Iterator[tuple[Cell, ...]]:
    moved = f"read {nbytes(outcome.in_nbytes)}, wrote {nbytes(outcome.wrote_nbytes)}"
    yield "time", _time(outcome.wall_s, f"{{}}: {moved}, {byte_rate(outcome.bytes_per_s)}")
    stages = (f"{name} {duration(nanoseconds(s))}" for name, s in outcome.stages_s.items())
    yield "stages", f"{', '.join(stages)} (over all threads)"
    known = {
        "written": outcome.n_written,
        "there before": outcome.n_resumed,
        "by other processes": outcome.n_elsewhere,
    }
    yield "shards", ", ".join(f"{count(n)} {what}" for what, n in known.items() if n)
    before = nbytes(outcome.idle_rss_nbytes)
    held = f"samples being made may use {nbytes(outcome.memory_nbytes)} of it (--memory)"
    words = f"{{}} resident at most, {before} before the conversion; {held}"
    yield "memory", Quantity(outcome.peak_rss_nbytes, "B", words)


def verification_text(found: Verification) -> tuple[str, list[Block]]:
    """Return what of a store was checked, and what could not be."""
    return f"{as_typed(found.path)}: as written", [properties(_checked(found))]


def _checked(found: Verification) -> Iterator[tuple[Cell, ...]]:
    yield "samples", f"{count(found.n_samples)} of {found.dataset} as {found.format}"
    parts = f"{_counted(found.n_shards, 'shard')}, {_counted(found.n_files, 'file')}"
    yield "checked", Quantity(found.nbytes, "B", f"{{}} in {parts}: all checksums match")
    rate = found.nbytes / found.wall_s if found.wall_s > 0 else None
    words = "{}" if found.comparison is not None else f"{{}}, {byte_rate(rate)}"
    if found.comparison is not None:
        yield "compared", f"with {found.against}: {found.comparison}"
        for name, off in found.comparison.largest.items():
            allowed = number(found.comparison.allowed.get(name))
            yield (
                "lossy",
                Quantity(
                    off, "number", f"{name} differs by at most {{}}; the store promises {allowed}"
                ),
            )
    yield "time", _time(found.wall_s, words)
    for place, text in enumerate(found.not_covered):
        yield "" if place else "unchecked", text


def _time(value_s: float, words: str) -> Quantity:
    return Quantity(nanoseconds(value_s), "ns", words)


def _counted(n: int, word: str) -> str:
    plural = "" if n == 1 else "es" if word.endswith("s") else "s"
    return f"{count(n)} {word}{plural}"


def quality_tables(
    quality: Mapping[str, Any], n_samples: int, *, is_probe: bool = False
) -> Iterator[Block]:
    """Yield what fewer bits do to each variable; nothing where none has fewer."""
    known = {name: each for name, each in quality.items() if "rmse" in each}
    if not known:
        return
    names = (
        "variable", "largest error", "relative", "RMSE / deviation", "bias / deviation",
        "deviation changes",
    )  # fmt: skip
    few = "the probe's" if is_probe else "all"
    yield Table(
        "Effect of fewer bits on the values",
        tuple(map(Column, names)),
        tuple(_quality_row(name, each) for name, each in known.items()),
        note=f"Errors and deviations are over {few} {count(n_samples)} samples; --json has more.",
    )


def _quality_row(name: str, variable: Mapping[str, Any]) -> tuple[Cell, ...]:
    before, after = variable["before"]["std"], variable["after"]["std"]
    return (
        name,
        Quantity(variable["max_absolute_error"], "number"),
        Quantity(variable["max_relative_error"], "number"),
        Quantity(_over(variable["rmse"], before), "share"),
        Quantity(_over(variable["bias"], before), "change"),
        Quantity(None if None in (before, after) else _over(after - before, before), "change"),
    )


def _over(part: float | None, deviation: float | None) -> float | None:
    """Return a part of a deviation; unknown where that is none, or the part is."""
    if part is None or deviation is None:
        return None
    return part / deviation if deviation else (0.0 if part == 0 else None)
