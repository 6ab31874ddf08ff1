"""Where and when samples are, as the CF conventions say it: coordinates, units, grid mappings.

Numbers are as stored (times with their ``units`` and ``calendar``), attributes are JSON-ready.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.errors import SampleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_DIM: Final = "sample"
"""The first dimension of a coordinate that has a value for each sample."""
TIME_UNITS: Final = "seconds since 1970-01-01"
"""Of times that a source has in other ways, or in several."""
MAX_TEXT: Final = 1 << 16
"""Longest text, or list, of an attribute."""
PLAIN_UNITS: Final = re.compile(
    r"\s*(?P<unit>day|hour|minute|second)s? since (?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.0{1,6})?)?)(?: ?(?:UTC|Z|\+00:?00))?)?\s*",
    re.IGNORECASE,
)
"""Units of times without a zone or in UTC, spelled so that there are no two ways to read them."""
UNIT_S: Final = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
STANDARD_CALENDARS: Final = ("", "standard", "gregorian", "proleptic_gregorian")
GREGORIAN: Final = (np.datetime64("1582-10-16", "s"), np.datetime64("2262-01-01", "s"))
"""Between these all standard calendars, and all libraries, agree."""


class Coordinate(msgspec.Struct, frozen=True, eq=False):
    """A coordinate, its bounds, or a grid mapping (which has no dimension and no value)."""

    name: str
    # ``("sample",)``: one value for each sample. Else dimensions of the sample's variables, as
    # ``("latitude",)`` or ``("y", "x")``; none for all samples alike. Bounds have one more
    dims: tuple[str, ...]
    values: NDArray[Any]  # numbers or texts of fixed width
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)  # JSON-ready

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != len(self.dims) or values.dtype.kind not in "biufU":
            raise SampleError(
                f"coordinate {self.name!r}: {values.dtype} {values.shape} is no array of numbers "
                f"or texts along {self.dims}"
            )
        # One byte order and one layout, so that equal coordinates are written as equal bytes.
        msgspec.structs.force_setattr(
            self, "values", np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(
                values.shape
            )
        )  # fmt: skip
        msgspec.structs.force_setattr(self, "dims", tuple(self.dims))

    @property
    def of_samples(self) -> bool:
        """Whether it has a value for each sample."""
        return self.dims[:1] == (SAMPLE_DIM,)

    def take(self, samples: Sequence[int] | NDArray[np.int64]) -> Coordinate:
        """Return it for some of the samples, in this order."""
        if not self.of_samples:
            return self
        return replace(self, values=self.values[np.asarray(samples, dtype=np.int64)])

    def cut(self, parts: Mapping[str, Sequence[slice]], *, max_nbytes: int) -> Coordinate:
        """Return what each sample has of it, where they take other parts of some dimensions."""
        n_samples = len(next(iter(parts.values())))
        places = [
            tuple(parts[dim][number] if dim in parts else slice(None) for dim in self.dims)
            for number in range(n_samples)
        ]
        nbytes = self.values[places[0]].nbytes * n_samples
        if self.of_samples or nbytes > max_nbytes:
            raise SampleError(f"{nbytes} bytes for the parts of all samples")
        values = np.stack([self.values[place] for place in places])
        return replace(self, dims=(SAMPLE_DIM, *self.dims), values=values)


class SampleLabels(msgspec.Struct, frozen=True, eq=False):
    """What is known of samples beside their numbers; empty where nothing is."""

    sample_dims: tuple[str, ...] = ()  # slowest first, as ``("time", "number")``
    coordinates: tuple[Coordinate, ...] = ()  # with distinct names
    # JSON-ready attributes of each variable, true of the values as samples hold them
    variables: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)  # of the (first) source
    # coordinates that the source has and this does not, and why
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [each.name for each in self.coordinates]
        if len(set(names)) != len(names):
            raise SampleError(f"coordinates need distinct names, got {names}")
        lengths = {len(each.values) for each in self.coordinates if each.of_samples}
        if len(lengths) > 1:
            raise SampleError(f"coordinates of samples have different lengths: {sorted(lengths)}")

    def __bool__(self) -> bool:
        return bool(self.sample_dims or self.coordinates or self.variables or self.attributes)

    def __getitem__(self, name: str) -> Coordinate:
        for each in self.coordinates:
            if each.name == name:
                return each
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.coordinates)

    def take(self, samples: Sequence[int] | NDArray[np.int64]) -> SampleLabels:
        """Return what is known of some of the samples, in this order."""
        chosen = np.asarray(samples, dtype=np.int64)
        return replace(self, coordinates=tuple(each.take(chosen) for each in self.coordinates))

    def along(self, dim: str) -> Coordinate | None:
        """Return the coordinate of the samples along one of their dimensions, if there is one."""
        return next(
            (each for each in self.coordinates if each.name == dim and each.dims == (SAMPLE_DIM,)),
            None,
        )


def forecast_times(
    starts: NDArray[np.datetime64], lead_s: NDArray[Any] | int
) -> tuple[Coordinate, Coordinate]:
    """Return ``time``, when forecasts start, and ``valid_time``, ``lead_s`` seconds later."""
    seconds = starts.astype("M8[s]").astype(np.int64)
    named = {"time": "forecast_reference_time", "valid_time": "time"}
    started, valid = (
        Coordinate(name, (SAMPLE_DIM,), values, {"standard_name": standard, "units": TIME_UNITS})
        for (name, standard), values in zip(
            named.items(), (seconds, seconds + np.asarray(lead_s, dtype=np.int64)), strict=True
        )
    )
    return started, valid


def json_attributes(
    attributes: Mapping[str, Any], *, without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return attributes as JSON holds them; what it cannot hold, or is too long, is left out."""
    left = frozenset(without)
    values = {str(key): _json_value(each) for key, each in attributes.items() if key not in left}
    return {key: each for key, each in values.items() if each is not None}


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        # Surrogates and NULs of damaged texts would not come back from a file.
        text = value.encode("utf-8", "replace").decode("utf-8").rstrip("\0")
        return text if len(text) <= MAX_TEXT else None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        parts = [_json_value(each) for each in value[: MAX_TEXT + 1]]
        return parts if len(parts) <= MAX_TEXT and None not in parts else None
    return json_attributes(value) if isinstance(value, Mapping) else None


def decode_whole_seconds(
    values: NDArray[Any], units: str, calendar: str
) -> NDArray[np.datetime64] | None:
    """Return the times that whole numbers mean in a standard calendar; None of all others."""
    # xarray takes seconds to load and milliseconds for each file.
    spelled = PLAIN_UNITS.fullmatch(units)
    is_standard = calendar.lower() in STANDARD_CALENDARS
    if spelled is None or not is_standard or values.dtype.kind not in "iuf" or not values.size:
        return None
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values % 1 == 0)).all():
        return None
    try:
        since = np.datetime64(f"{spelled['date']}T{spelled['time'] or '00:00'}", "s")
    except ValueError:
        return None  # a 30 February
    unit_s = UNIT_S[spelled["unit"].lower()]
    first, last = (int(each) * unit_s for each in (values.min(), values.max()))
    allowed = [int((border - since) / np.timedelta64(1, "s")) for border in GREGORIAN]
    if since < GREGORIAN[0] or not allowed[0] <= first <= last < allowed[1]:
        return None
    seconds = values.astype(np.int64) * unit_s
    return (since + seconds.astype("timedelta64[s]")).astype("datetime64[us]")
