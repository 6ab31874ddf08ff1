"""The options of ``maelstrom-yr``, with upstream's names and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from iobench.errors import OptionError
from iobench_maelstrom.yr.schema import SIZES, parse_dates

__all__ = ["YrOptions", "parse_options"]

OPTIONS = (
    "dates",
    "normalize",
    "parameter",
    "patch",
    "predict_diff",
    "probabilistic_target",
    "size",
    "x_range",
    "y_range",
)
PARAMETERS = ("air_temperature",)
TRAINING_PATCH = 256


@dataclass(frozen=True, slots=True)
class YrOptions:
    """Options of ``maelstrom-yr``; ``patch`` None is the whole grid, ``dates`` () those at hand."""

    size: str
    parameter: str
    dates: tuple[str, ...]
    patch: int | None
    y_range: tuple[int, int] | None
    x_range: tuple[int, int] | None
    normalize: bool
    predict_diff: bool
    probabilistic_target: bool

    @property
    def n_targets(self) -> int:
        """Channels of the target."""
        return 2 if self.probabilistic_target else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the options that say what a sample is, as JSON-ready values."""
        values = {name: value for name, value in asdict(self).items() if name != "dates"}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


def parse_options(options: Mapping[str, str]) -> YrOptions:
    """Return the options as values.

    Parameters
    ----------
    options : mapping of str to str
        ``size`` (5GB or 5TB, the default), ``parameter`` (air_temperature), ``dates`` (as upstream:
        ``2020-03-01``, a list or ``A/to/B``), ``patch`` (points along a side, or ``whole``; by
        default 256 for 5TB, the whole grid for 5GB), ``x_range`` and ``y_range`` (``start,stop``,
        both or none, as in training: ``215,1751`` and ``50,2098``), ``normalize`` (by default
        true, as in training), ``predict_diff`` and ``probabilistic_target`` (by default false).

    Raises
    ------
    OptionError
        For an unknown option or a value that cannot be used.
    """
    for name in options:
        if name == "location":
            raise OptionError("option 'location': give the folder with --data-dir")
        if name not in OPTIONS:
            raise OptionError(f"option {name!r}: maelstrom-yr knows {', '.join(OPTIONS)}")
    if ("x_range" in options) != ("y_range" in options):
        raise OptionError("x_range and y_range: give both or none")
    size = _one_of(options, "size", tuple(SIZES), default="5TB")
    patch = options.get("patch", str(TRAINING_PATCH) if size == "5TB" else "whole")
    if patch != "whole" and not (_is_number(patch) and int(patch) > 0):
        raise OptionError(f"patch {patch!r}: expected a whole number from 1, or whole")
    return YrOptions(
        size=size,
        parameter=_one_of(options, "parameter", PARAMETERS, default=PARAMETERS[0]),
        dates=parse_dates(options["dates"]) if "dates" in options else (),
        patch=None if patch == "whole" else int(patch),
        y_range=_range(options, "y_range"),
        x_range=_range(options, "x_range"),
        normalize=_flag(options, "normalize", default=True),
        predict_diff=_flag(options, "predict_diff", default=False),
        probabilistic_target=_flag(options, "probabilistic_target", default=False),
    )


def _one_of(options: Mapping[str, str], name: str, values: tuple[str, ...], *, default: str) -> str:
    value = options.get(name, default)
    if value not in values:
        raise OptionError(f"{name} {value!r}: expected {' or '.join(values)}")
    return value


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} {value!r}: expected true or false")
    return value == "true"


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 9


def _range(options: Mapping[str, str], name: str) -> tuple[int, int] | None:
    if name not in options:
        return None
    parts = [part.strip() for part in options[name].strip("[]").split(",")]
    if len(parts) != 2 or not all(map(_is_number, parts)):
        raise OptionError(f"{name} {options[name]!r}: expected start,stop, e.g. 215,1751")
    return int(parts[0]), int(parts[1])
