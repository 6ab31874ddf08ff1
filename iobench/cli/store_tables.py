"""Tables of what the numbers of a store are, and of what fewer bits did to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from iobench.report.document import Block, Cell, Column, Quantity, Sentence, Table
from iobench.report.units import count, fraction, number, number_beside


def statistics_told(statistics: Mapping[str, Any] | None) -> Iterator[Block]:
    """Yield the statistics of a store's samples, as its manifest has them.

    None where a manifest could have them and has none.
    """
    if statistics is None:
        yield Sentence(
            "Statistics are unknown: the store was made before iobench kept them; convert it again."
        )
    elif not statistics:
        yield Sentence("Statistics: none, because complex numbers have no order.")
    else:
        names = ("variable", "mean", "deviation", "lowest", "highest", "missing")
        splits = ", ".join(name for name in statistics if name != "all")
        levels = any("by" in each for each in statistics["all"].values())
        more = " and ".join(
            filter(None, (f"splits ({splits})" if splits else "", "level" if levels else ""))
        )
        yield Table(
            "Values, over all samples",
            tuple(map(Column, names)),
            tuple(_row(name, known) for name, known in statistics["all"].items()),
            note=f"--json has them by {more} as well." if more else "",
        )


def quality_told(
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


def _quality_row(name: str, told: Mapping[str, Any]) -> tuple[Cell, ...]:
    before, after = told["before"]["std"], told["after"]["std"]
    return (
        name,
        Quantity(told["max_absolute_error"], "number"),
        Quantity(told["max_relative_error"], "number"),
        Quantity(_over(told["rmse"], before), "share"),
        Quantity(_over(told["bias"], before), "change"),
        Quantity(None if None in (before, after) else _over(after - before, before), "change"),
    )


def _over(part: float | None, deviation: float | None) -> float | None:
    """Return a part of a deviation; unknown where that is none, or the part is."""
    if part is None or deviation is None:
        return None
    return part / deviation if deviation else (0.0 if part == 0 else None)


def _row(name: str, told: Mapping[str, Any]) -> tuple[str, ...]:
    scale = told["std"]
    figures = (number_beside(told[key], scale) for key in ("mean", "min", "max"))
    mean, low, high = figures
    total = told["n"] + told["n_missing"]
    missing = fraction(told["n_missing"] / total) if told["n_missing"] else count(0)
    return name, mean, number(scale), low, high, missing
