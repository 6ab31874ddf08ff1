"""Fewer bits on purpose: ``--dtype``, ``--keep-bits``, ``--max-error``, and what they cost.

An `Encoding` is what was asked for. With the spec of a dataset it gives the spec of what is stored
and an `Encoder`, which turns sample after sample into that and measures the errors. Nothing lossy
happens without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from iobench.errors import OptionError, SampleError
from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.rounding import (
    MANTISSA_BITS,
    largest_errors,
    pack_linearly,
    round_mantissa,
    scale_and_offset,
    to_bfloat16,
    unpack,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample

__all__ = ["EncodedSample", "Encoder", "Encoding", "Errors", "merge_errors"]

_T = TypeVar("_T")

DTYPES = {"float16": ("<f2", 10), "bfloat16": ("<u2", 7), "int16": ("<i2", 0)}
"""What ``--dtype`` takes: the dtype of the numbers in the store, bits of their mantissas."""
ALL = ""
"""The name that stands for every floating-point variable."""

Errors = Mapping[str, Mapping[str, float]]
"""Measured errors by variable: ``{"T": {"max_absolute_error": ..., "max_relative_error": ...}}``.
JSON-ready. Relative ones are over the values that are not 0."""


class EncodedSample(dict[str, "NDArray[Any]"]):
    """A sample as it is stored, and the errors of its encoded variables.

    The errors travel with the sample, so that whoever writes it into a shard adds them to those of
    that shard, whichever thread encoded it and whether or not it came to be written.
    """

    errors: Errors


@dataclass(frozen=True, slots=True)
class Encoding:
    """What is to be stored with fewer bits, by variable; ``""`` is every floating-point one.

    Parameters
    ----------
    dtypes : mapping of str to str
        ``"float16"``, ``"bfloat16"`` or ``"int16"``.
    keep_bits : mapping of str to int
        Bits of the mantissa that stay; the others are rounded to 0, which compresses well.
    max_errors : mapping of str to float
        Largest absolute error allowed, in units of the variable.
    ranges : mapping of str to (float, float)
        Lowest and highest value of variables stored as int16.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    keep_bits: Mapping[str, int] = field(default_factory=dict)
    max_errors: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        *,
        dtype: str | Sequence[str] | None = None,
        keep_bits: str | int | Sequence[str] | None = None,
        max_error: str | Sequence[str] | None = None,
        ranges: str | Sequence[str] | None = None,
    ) -> Encoding | None:
        """Return what these options ask for, None where they ask for nothing.

        Parameters
        ----------
        dtype : str or sequence of str, optional
            ``"float16"``, or ``"VAR=float16"`` for one variable, which goes before.
        keep_bits : str, int or sequence of str, optional
            ``"7"`` or ``"VAR=7"``.
        max_error : str or sequence of str, optional
            ``"VAR=0.1"``.
        ranges : str or sequence of str, optional
            ``"VAR=LOW:HIGH"`` for int16. Where it is not given, one pass over all samples has to
            find it (`learn`).

        Raises
        ------
        OptionError
            If one of them is spelled otherwise, or there is nothing for it to apply to.
        """
        found = cls(
            dtypes=dict(_pairs("--dtype", dtype, _dtype_name)),
            keep_bits=dict(_pairs("--keep-bits", keep_bits, _whole)),
            max_errors=dict(_pairs("--max-error", max_error, _limit, needs_name=True)),
            ranges=dict(_pairs("--range", ranges, _range, needs_name=True)),
        )
        if found.dtypes or found.keep_bits:
            return found
        if found.max_errors or found.ranges:
            given = "--max-error" if found.max_errors else "--range"
            raise OptionError(f"{given}: nothing is lossy without --dtype or --keep-bits")
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values, for the plan and the manifest."""
        return {
            "dtype": dict(self.dtypes),
            "keep_bits": dict(self.keep_bits),
            "max_error": dict(self.max_errors),
            "range": {name: list(pair) for name, pair in self.ranges.items()},
        }

    def unknown_ranges(self, spec: SampleSpec) -> tuple[str, ...]:
        """Return the variables that a pass over all samples has to find the range of."""
        return tuple(step.name for step in self._steps(spec) if step.lacks_range)

    def learn(self, spec: SampleSpec, samples: Iterable[tuple[str, Sample]]) -> Encoding:
        """Return the same with the ranges that were unknown, of all these samples.

        Parameters
        ----------
        spec : SampleSpec
            What the dataset's samples are.
        samples : iterable of (str, Sample)
            Which sample, for messages, and the sample. Taken once, one at a time.

        Raises
        ------
        SampleError
            Naming sample and variable of the first value that int16 cannot hold.
        """
        unknown = self.unknown_ranges(spec)
        ranges = dict(self.ranges)
        for where, sample in samples:
            for name in unknown:
                if not sample[name].size:
                    continue
                low, high = float(sample[name].min()), float(sample[name].max())
                if not (math.isfinite(low) and math.isfinite(high)):
                    raise _not_finite(sample[name], name, where)
                if name in ranges:
                    low, high = min(low, ranges[name][0]), max(high, ranges[name][1])
                ranges[name] = (low, high)
        return replace(self, ranges={**dict.fromkeys(unknown, (0.0, 0.0)), **ranges})

    def stored_nbytes(self, spec: SampleSpec) -> int:
        """Return the bytes of one sample as it will be stored; no range needs to be known."""
        return sum(
            variable.nbytes if step is None else step.stored_nbytes
            for variable, step in zip(spec, self._by_variable(spec), strict=True)
        )

    def stored_spec(self, spec: SampleSpec) -> SampleSpec:
        """Return what the samples of a store are, from what those of the dataset are.

        Raises
        ------
        OptionError
            If an option names a variable that is not there or cannot be encoded so, or the range
            of one is unknown.
        """
        return SampleSpec(
            tuple(
                variable if step is None else step.stored()
                for variable, step in zip(spec, self._by_variable(spec), strict=True)
            )
        )

    def encoder(self, spec: SampleSpec) -> Encoder:
        """Return what encodes samples of this spec; raise OptionError as `stored_spec` does."""
        steps = {step.name: (step, step.stored()) for step in self._steps(spec)}
        return Encoder(spec, steps)

    def _by_variable(self, spec: SampleSpec) -> list[_Step | None]:
        steps = {step.name: step for step in self._steps(spec)}
        return [steps.get(variable.name) for variable in spec]

    def _steps(self, spec: SampleSpec) -> list[_Step]:
        """Return one step for each variable that is encoded, after checking the options."""
        given = {
            "--dtype": self.dtypes, "--keep-bits": self.keep_bits,
            "--max-error": self.max_errors, "--range": self.ranges,
        }  # fmt: skip
        for option, values in given.items():
            for name in values:
                if name != ALL and name not in spec.names:
                    raise OptionError(f"{option} {name}=: there is {', '.join(spec.names)}")
        steps = []
        for variable in spec:
            dtype = self.dtypes.get(variable.name, self.dtypes.get(ALL))
            keep_bits = self.keep_bits.get(variable.name, self.keep_bits.get(ALL))
            is_named = variable.name in {*self.dtypes, *self.keep_bits}
            if dtype is None and keep_bits is None:
                continue
            if variable.dtype not in MANTISSA_BITS:
                if is_named:
                    raise OptionError(
                        f"{variable.name} is {variable.dtype}: --dtype and --keep-bits are for "
                        "floating-point variables"
                    )
                continue
            limit = self.max_errors.get(variable.name)
            steps.append(_Step(variable, dtype, keep_bits, limit, self.ranges.get(variable.name)))
        encoded = {step.name for step in steps}
        if not encoded:
            raise OptionError(f"--dtype: none of {', '.join(spec.names)} is floating-point")
        packed = {step.name for step in steps if step.dtype == "int16"}
        for name in sorted({*self.max_errors} - encoded):
            raise OptionError(f"--max-error {name}=: {name} is stored without loss; leave it out")
        for name in sorted({*self.ranges} - packed):
            raise OptionError(f"--range {name}=: {name} is not stored as int16; leave it out")
        return steps


@dataclass(frozen=True, slots=True)
class _Step:
    """What is done to one variable."""

    variable: Variable
    dtype: str | None
    keep_bits: int | None
    max_error: float | None
    range: tuple[float, float] | None

    def __post_init__(self) -> None:
        if self.keep_bits is None:
            return
        if self.dtype == "int16":
            raise OptionError(f"{self.name}: --keep-bits does not go with --dtype int16")
        there = MANTISSA_BITS[self.variable.dtype]
        if self.dtype is not None:
            there = min(there, DTYPES[self.dtype][1])
        if not 0 <= self.keep_bits < there:
            raise OptionError(
                f"{self.name}: --keep-bits {self.keep_bits}, expected 0 to {there - 1}; "
                f"{self.dtype or self.variable.dtype} has {there}"
            )

    @property
    def name(self) -> str:
        return self.variable.name

    @property
    def lacks_range(self) -> bool:
        return self.dtype == "int16" and self.range is None

    @property
    def stored_nbytes(self) -> int:
        itemsize = 2 if self.dtype else np.dtype(self.variable.dtype).itemsize
        return math.prod(self.variable.shape) * itemsize

    def stored(self) -> Variable:
        """Return the variable as it is stored."""
        if self.dtype is None:
            return self.variable
        dtype, _ = DTYPES[self.dtype]
        packed = None
        if self.dtype == "bfloat16":
            packed = Packed("bfloat16")
        elif self.dtype == "int16":
            if self.range is None:
                raise OptionError(
                    f"{self.name}: its range must be known for --dtype int16; "
                    f"give --range {self.name}=LOW:HIGH"
                )
            scale, offset = scale_and_offset(*self.range)
            packed = Packed("scaled", self.variable.dtype, scale, offset)
        return replace(self.variable, dtype=dtype, packed=packed)

    def encode(self, values: NDArray[Any], packed: Packed | None, where: str) -> NDArray[Any]:
        """Return the numbers to store; those that overflow are infinity."""
        if self.dtype == "int16":
            assert packed is not None
            self._check_range(values, where)
            return pack_linearly(values, packed)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if self.keep_bits is not None:
                values = round_mantissa(values, self.keep_bits)
            if self.dtype == "bfloat16":
                return to_bfloat16(values)
            return values if self.dtype is None else values.astype(DTYPES[self.dtype][0])

    def _check_range(self, values: NDArray[Any], where: str) -> None:
        assert self.range is not None
        low, high = self.range
        if not values.size or (values.min() >= low and values.max() <= high):
            return  # never where there is a NaN: it is the lowest and the highest
        if not np.isfinite(values).all():
            raise _not_finite(values, self.name, where)
        first = np.argwhere((values < low) | (values > high))[0]
        value = values[tuple(first)]
        raise SampleError(
            f"{where}: {value} of {self.name}{_at(first)} is beyond the range {low} to {high} of "
            f"its int16 numbers; give a wider --range {self.name}=LOW:HIGH"
        )


class Encoder:
    """Encodes samples of one spec; see `Encoding.encoder`. Threads may share it.

    Attributes
    ----------
    spec, stored_spec : SampleSpec
        What goes in and what comes out.
    """

    def __init__(self, spec: SampleSpec, steps: Mapping[str, tuple[_Step, Variable]]) -> None:
        self.spec = spec
        self.stored_spec = SampleSpec(
            tuple(steps[v.name][1] if v.name in steps else v for v in spec)
        )
        self._steps = steps

    def encode(self, sample: Sample, where: str) -> EncodedSample:
        """Return the sample as it is stored, with its errors.

        Parameters
        ----------
        sample : Sample
            As the dataset makes it.
        where : str
            Which sample, for messages.

        Raises
        ------
        SampleError
            Naming sample and variable, if a value cannot be represented or an error is beyond
            ``--max-error``; or if the sample is not as its spec says.
        """
        self.spec.check(sample, where=where)
        encoded = EncodedSample()
        errors: dict[str, Mapping[str, float]] = {}
        for variable in self.spec:
            values = sample[variable.name]
            if variable.name not in self._steps:
                encoded[variable.name] = values
                continue
            step, stored = self._steps[variable.name]
            numbers = step.encode(values, stored.packed, where)
            encoded[variable.name] = numbers
            back = numbers if stored.packed is None else unpack(numbers, stored.packed)
            errors[variable.name] = _measure(step, values, back, where)
        encoded.errors = errors
        return encoded


def _measure(step: _Step, values: NDArray[Any], back: NDArray[Any], where: str) -> dict[str, float]:
    absolute, relative = largest_errors(values, back)
    if math.isinf(absolute):
        first = np.argwhere(np.isfinite(values) & ~np.isfinite(back))[0]
        name = step.dtype or f"{step.keep_bits} bits"
        raise SampleError(
            f"{where}: {values[tuple(first)]} of {step.name}{_at(first)} is beyond the largest "
            f"number of {name}; choose --dtype {step.name}=bfloat16, int16 or none"
        )
    if step.max_error is not None and absolute > step.max_error:
        raise SampleError(
            f"{where}: {step.name} is off by up to {absolute:.6g}, --max-error allows "
            f"{step.max_error:.6g}; keep more bits of it"
        )
    return {"max_absolute_error": absolute, "max_relative_error": relative}


def merge_errors(*many: Errors) -> dict[str, dict[str, float]]:
    """Return the largest errors of several: of samples for a shard, of shards for a store.

    In any order and any grouping the result is the same, to the bit.
    """
    merged: dict[str, dict[str, float]] = {}
    for errors in many:
        for name, measured in errors.items():
            largest = merged.setdefault(name, {})
            for key, value in measured.items():
                largest[key] = max(value, largest.get(key, 0.0))
    return {name: merged[name] for name in sorted(merged)}


def _not_finite(values: NDArray[Any], name: str, where: str) -> SampleError:
    first = np.argwhere(~np.isfinite(values))[0]
    return SampleError(
        f"{where}: {values[tuple(first)]} of {name}{_at(first)} cannot be stored as int16; "
        f"choose --dtype {name}=float16 or bfloat16"
    )


def _at(position: NDArray[np.intp]) -> str:
    return f"{position.tolist()}" if position.size else ""


def _pairs(
    option: str,
    given: str | int | Sequence[str] | None,
    convert: Callable[[str, str, str], _T],
    *,
    needs_name: bool = False,
) -> Iterator[tuple[str, _T]]:
    """Yield (variable, value) of the spellings ``VALUE`` and ``VAR=VALUE``."""
    texts = [] if given is None else [given] if isinstance(given, str | int) else given
    seen: set[str] = set()
    for text in map(str, texts):
        name, equals, value = text.rpartition("=")
        if (needs_name and not name) or (equals and not name):
            raise OptionError(f"{option} {text}: expected VAR=VALUE")
        if name in seen:
            raise OptionError(f"{option} {text}: given twice for the same")
        seen.add(name)
        yield name, convert(option, text, value)


def _dtype_name(option: str, text: str, value: str) -> str:
    if value not in DTYPES:
        raise OptionError(f"{option} {text}: expected {', '.join(DTYPES)}")
    return value


def _whole(option: str, text: str, value: str) -> int:
    if not value.isdecimal():
        raise OptionError(f"{option} {text}: expected a whole number of bits")
    return int(value)


def _limit(option: str, text: str, value: str) -> float:
    number = _float(option, text, value)
    if number < 0:
        raise OptionError(f"{option} {text}: expected a number from 0")
    return number


def _range(option: str, text: str, value: str) -> tuple[float, float]:
    low, colon, high = value.partition(":")
    pair = (_float(option, text, low), _float(option, text, high)) if colon else (1.0, 0.0)
    if pair[0] > pair[1]:
        raise OptionError(f"{option} {text}: expected VAR=LOW:HIGH, the lower one first")
    return pair


def _float(option: str, text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{option} {text}: {value!r} is not a number")
    return number
