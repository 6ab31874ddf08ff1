"""Figures of a report's JSON as the page shows them, each with its place in that JSON.

On the page a figure is ``<span data-figure="runs.0.wait_fraction" data-as="fraction">14 %</span>``:
where it stands in the document the page carries, and the function of `iobench.report.units` that
made it text. ``_s`` are turned into nanoseconds first, joules into microjoules. A figure of a
column of times with one unit has ``data-as="durations"`` and names the others by ``data-group``.
``"text"`` stands as it is, but for what `plain` spells out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from iobench.report import units
from iobench.report.webpage.safe_text import SafeText
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PageFigures"]

WORDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "byte_rate": units.byte_rate,
    "count": units.count,
    "duration": units.duration,
    "epochs": units.epochs,
    "fraction": units.fraction,
    "joules": units.joules,
    "nbytes": units.nbytes,
    "number": units.number,
    "ratio": units.ratio,
    "sample_rate": units.sample_rate,
    "signed_fraction": units.signed_fraction,
    "text": str,
    "watt_hours": units.watt_hours,
}
MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PageFigures:
    """The figures of a document, by path: keys and indices with dots between them.

    Parameters
    ----------
    document : mapping
        What `to_json` returns.
    """

    document: Mapping[str, Any]
    _groups: Iterator[int] = field(default_factory=count)

    def value(self, path: str) -> Any:
        """Return what stands at a path; None where there is nothing."""
        found: Any = self.document
        for key in path.split("."):
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, Sequence) and not isinstance(found, str):
                found = found[int(key)] if int(key) < len(found) else None
            else:
                return None
        return found

    def ns(self, path: str) -> int | None:
        """Return a time in nanoseconds, whether it is kept in these or in seconds."""
        value = self.value(path)
        if value is None or path.endswith("_ns"):
            return None if value is None else int(value)
        return units.nanoseconds(value)

    def __call__(self, path: str, how: str) -> SafeText:
        """Return a figure as the page shows it, ``how`` being a function of `units`."""
        value = self.ns(path) if how == "duration" else self.value(path)
        if how == "joules" and value is not None and not path.endswith("_uj"):
            value *= MICRO
        unknown = value is None and how in ("epochs", "text")
        return _span(path, how, units.UNKNOWN if unknown else WORDS[how](value))

    def column(
        self, paths: Sequence[str], *, unit: str | None = None
    ) -> tuple[str, list[SafeText]]:
        """Return times as `units.durations` has them: their one unit, and each of them."""
        unit, texts = units.durations([self.ns(path) for path in paths], unit=unit)
        group = f"{next(self._groups)}:{unit}"
        return unit, [
            _span(path, "durations", text, group) for path, text in zip(paths, texts, strict=True)
        ]


def _span(path: str, how: str, text: str, group: str = "") -> SafeText:
    of_group = SafeText.filled(' data-group="{}"', group) if group else SafeText()
    return SafeText.filled(
        '<span class="figure" data-figure="{}" data-as="{}"{}>{}</span>',
        path,
        how,
        of_group,
        plain(text),
    )
