"""Fewer bits on purpose: ``--dtype``, ``--range``, ``--codec bitround``, and what they cost.

An `Encoding` is what was asked for. With the spec of a dataset it gives the spec of what is stored
and an `Encoder`, which turns samples side by side into that and measures the errors. Nothing lossy
happens without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError, SampleError
from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.codec_chain import kept_bits
from iobench.stores.rounding import PIECE, pack_linearly, round_bits, scale_and_offset, unpack
from iobench.stores.value_statistics import (
    HIGH,
    N_ENCODED,
    group_moments,
    merge_moments,
    no_moments,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Label = Callable[[int], str]
"""Returns which sample a row is, in words."""
Rows = Mapping[str, "NDArray[Any]"]
"""Samples side by side."""
ALL: Final = ""
"""The name that stands for every floating-point variable."""
DTYPES: Final = {"float16": "<f2", "int16": "<i2"}
"""What ``--dtype`` takes, and the dtype of the numbers in the store."""
FLOATS: Final = ("<f2", "<f4", "<f8")
"""Of variables that may have fewer bits."""
LARGEST: Final = float(np.finfo(np.float64).max)


class Encoding(msgspec.Struct, frozen=True):
    """What is to be stored with fewer bits, by variable; ``""`` is every floating-point one."""

    dtypes: Mapping[str, str] = msgspec.field(default_factory=dict)  # ``"float16"`` or ``"int16"``
    # lowest and highest value of variables stored as int16
    ranges: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    keepbits: int | None = None  # of the mantissa of all of them; None: they are not rounded

    @classmethod
    def parse(
        cls,
        *,
        dtype: str | Sequence[str] | None = None,
        ranges: str | Sequence[str] | None = None,
        codec: str | None = None,
    ) -> Encoding | None:
        """Return what these options ask for, None where they ask for nothing."""
        dtypes, limits = {}, {}
        for name, value, text in _pairs("--dtype", dtype):
            if value not in DTYPES:
                raise OptionError(f"--dtype {text}: expected {', '.join(DTYPES)}")
            dtypes[name] = value
        for name, value, text in _pairs("--range", ranges):
            limits[name] = _value_range(value, text)
        keepbits = kept_bits(codec)
        if ALL in limits:
            raise OptionError("--range: expected VAR=LOW:HIGH")
        if limits and not dtypes:
            raise OptionError("--range needs --dtype int16: without it nothing is lossy")
        return cls(dtypes, limits, keepbits) if dtypes or keepbits is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values, for the digest of the plan."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def unknown_ranges(self, spec: SampleSpec) -> tuple[str, ...]:
        """Return the variables that a pass over all samples has to find the range of."""
        dtypes = self._dtypes(spec)
        return tuple(n for n in dtypes if dtypes[n] == "int16" and n not in self.ranges)

    def learn(self, spec: SampleSpec, stacks: Iterable[tuple[Rows, Label]]) -> Encoding:
        """Return the same with the ranges that were unknown, of all these samples."""
        unknown = self.unknown_ranges(spec)
        ranges = dict(self.ranges)
        for rows, label in stacks:
            for name in unknown:
                result = _finite_range(rows[name], name, label)
                known = ranges.get(name, result)
                if result is not None and known is not None:
                    ranges[name] = (min(result[0], known[0]), max(result[1], known[1]))
        return replace(self, ranges={**dict.fromkeys(unknown, (0.0, 0.0)), **ranges})

    def stored_spec(self, spec: SampleSpec, *, guess: bool = False) -> SampleSpec:
        """Return what the samples of a store are, from what those of the dataset are.

        Raises OptionError where a range is not known, unless a ``guess`` will do.
        """
        dtypes, variables = self._dtypes(spec), []
        for variable in spec:
            name, packed = variable.name, None
            dtype = DTYPES.get(dtypes.get(name, ""), variable.dtype)
            if dtypes.get(name) == "int16":
                limits = self.ranges.get(name, (0.0, 1.0) if guess else None)
                if limits is None:
                    raise OptionError(
                        f"{name}: its range must be known for --dtype int16; give --range "
                        f"{name}=LOW:HIGH"
                    )
                packed = Packed(variable.dtype, *scale_and_offset(*limits))
            variables.append(replace(variable, dtype=dtype, packed=packed))
        return SampleSpec(tuple(variables))

    def encoder(self, spec: SampleSpec) -> Encoder:
        """Return what encodes samples of this spec; raise OptionError as `stored_spec` does."""
        return Encoder(self, self.stored_spec(spec), tuple(self._dtypes(spec)))

    def _dtypes(self, spec: SampleSpec) -> dict[str, str]:
        """Return the dtype asked for of each variable that is encoded, after checking the options.

        Empty: its own.
        """
        for option, names in (("--dtype", self.dtypes), ("--range", self.ranges)):
            for name in names:
                if name != ALL and name not in spec.names:
                    raise OptionError(
                        f"{option} {name}=...: no such variable; there is {', '.join(spec.names)}"
                    )
                if name != ALL and option == "--dtype" and spec[name].dtype not in FLOATS:
                    raise OptionError(
                        f"{name} is {spec[name].dtype}: --dtype is for floating-point variables"
                    )
        floats = [variable.name for variable in spec if variable.dtype in FLOATS]
        dtypes = {name: self.dtypes.get(name, self.dtypes.get(ALL, "")) for name in floats}
        if self.keepbits is None:
            dtypes = {name: dtype for name, dtype in dtypes.items() if dtype}
        elif dtypes and set(dtypes.values()) == {"int16"}:
            raise OptionError(
                f"--codec bitround:keepbits={self.keepbits}: all floating-point variables are "
                "stored as int16, which is not rounded; leave bitround out, or --dtype int16"
            )
        if not dtypes:
            option = "--dtype" if self.dtypes else "--codec bitround"
            raise OptionError(f"{option}: none of {', '.join(spec.names)} is floating-point")
        for name in sorted(self.ranges):
            if dtypes.get(name) != "int16":
                raise OptionError(f"--range {name}=...: it is not stored as int16; leave it out")
        return dtypes


class Encoder:
    """Encodes samples of one spec; see `Encoding.encoder`. Threads may share it."""

    def __init__(self, encoding: Encoding, stored: SampleSpec, names: tuple[str, ...]) -> None:
        self.stored, self.names = stored, names
        self._encoding = encoding

    def encode(
        self, rows: Rows, label: Label
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
        """Return samples side by side as they are stored, and what that does to their values.

        That are `N_ENCODED` moments of each encoded variable.
        """
        encoded, moments = dict(rows), []
        for name in self.names:
            encoded[name], result = self._encode(rows[name], self.stored[name], label)
            moments.append(result)
        return encoded, np.concatenate(moments)

    def _encode(
        self, values: NDArray[Any], stored: Variable, label: Label
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        packed, keepbits, name = stored.packed, self._encoding.keepbits, stored.name
        if packed is not None:
            low, high = self._encoding.ranges[name]
            result = _finite_range(values, name, label)
            if result is not None and not low <= result[0] <= result[1] <= high:
                _refuse(
                    values, (values < low) | (values > high), name, label,
                    f"is beyond the range {low} to {high} of its int16 numbers; convert to a new "
                    f"folder with a wider --range {name}=LOW:HIGH",
                )  # fmt: skip
        flat = values.reshape(-1)
        numbers = np.empty(flat.size, dtype=stored.dtype)
        moments = no_moments(N_ENCODED)
        # Piece by piece, so that all that is in between stays in the processor's cache.
        for start in range(0, flat.size, PIECE):
            piece = flat[start : start + PIECE]
            with np.errstate(all="ignore"):  # those that overflow are infinity
                if packed is not None:
                    encoded: NDArray[Any] = pack_linearly(piece, packed)
                    back = unpack(encoded, packed)
                else:
                    encoded = piece.astype(stored.dtype, copy=False)
                    encoded = encoded if keepbits is None else round_bits(encoded, keepbits)
                    back = encoded.astype(piece.dtype, copy=False)
                numbers[start : start + PIECE] = encoded
                error = np.subtract(back, piece, dtype=np.float64)
                if (lost := np.isfinite(piece) & ~np.isfinite(back)).any():
                    wrong = np.zeros(flat.size, dtype=bool)
                    wrong[start : start + PIECE] = lost
                    more = "" if keepbits is None else ", or with more keepbits"
                    _refuse(
                        values, wrong.reshape(values.shape), name, label,
                        f"is beyond the largest {np.dtype(stored.dtype).name} as it is stored; "
                        f"convert to a new folder with --dtype {name}=int16{more}",
                    )  # fmt: skip
                relative = np.abs(error / piece)[(piece != 0) & ~np.isnan(error)]
            both = [group_moments(each.reshape(1, 1, -1)) for each in (piece, error)]
            largest = no_moments(1)
            largest[0, HIGH] = relative.max(initial=-np.inf).clip(max=LARGEST)
            moments = merge_moments(moments, np.concatenate([*both, largest]))
        return numbers.reshape(values.shape), moments


def _refuse(
    values: NDArray[Any], wrong: NDArray[np.bool_], name: str, label: Label, why: str
) -> NoReturn:
    """Raise SampleError that names the first value that is wrong."""
    first = np.argwhere(wrong)[0]
    place = f"{first[1:].tolist()}" if first.size > 1 else ""
    raise SampleError(f"{label(int(first[0]))}: {values[tuple(first)]!s} of {name}{place} {why}")


def _finite_range(values: NDArray[Any], name: str, label: Label) -> tuple[float, float] | None:
    """Return the lowest and highest value of samples side by side, None where there is none."""
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):  # a NaN is the lowest and the highest
        _refuse(
            values, ~np.isfinite(values), name, label,
            f"cannot be stored as int16; convert to a new folder with --dtype {name}=float16",
        )  # fmt: skip
    return low, high


def _pairs(option: str, given: str | Sequence[str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield variable, value and text of the spellings ``VALUE`` and ``VAR=VALUE``."""
    seen: set[str] = set()
    for text in [] if given is None else [given] if isinstance(given, str) else given:
        name, equals, value = text.rpartition("=")
        if equals and not name:
            raise OptionError(f"{option} {text}: expected VAR=VALUE")
        if name in seen:
            raise OptionError(f"{option} {text}: given twice for the same")
        seen.add(name)
        yield name, value, text


def _value_range(value: str, text: str) -> tuple[float, float]:
    """Return the lowest and the highest value of ``LOW:HIGH``."""
    try:
        low, high = map(float, value.split(":"))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OptionError(
            f"--range {text}: expected VAR=LOW:HIGH, two numbers, the lower one first"
        )
    return low, high
