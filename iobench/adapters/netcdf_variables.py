"""Adapter to netCDF4: files opened, variables read, decoded in the same call where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import file_name
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan


def adapt(patches: Patches, netCDF4: Any) -> None:
    """Time ``Dataset`` and ``Variable[...]``.

    Raises
    ------
    TypeError
        Where the library was built with classes nobody can change; xarray's loads are seen.
    """

    def note_open(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[1] if len(args) > 1 else kwargs.get("filename"))

    def note_item(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        variable = args[0]
        span.nbytes = int(result.nbytes)
        # Filling masked values in and scaling are the library's unless they were turned off.
        if variable.mask or variable.scale or _has_filters(variable):
            span.kind, span.label = Kind.FUSED, "read+decode"
        span.detail = f"{variable.group().filepath()}:{variable.name}"

    patches.time(netCDF4.Dataset, "__init__", Kind.OPEN, only_if=_opens_to_read, note=note_open)
    patches.time(netCDF4.Variable, "__getitem__", Kind.READ, with_cpu=True, note=note_item)


def _opens_to_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "r")
    return mode in {"r", "rs", "r+", "a", "r+s", "as"}


def _has_filters(variable: Any) -> bool:
    """Say whether values are stored encoded; files of the classic format have no filters."""
    filters = variable.filters()
    return any(on for name, on in (filters or {}).items() if name != "complevel")
