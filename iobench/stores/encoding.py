"""Fewer bits on purpose: ``--dtype``, ``--range``, ``--codec bitround``, and what they cost.

An `Encoding` is what was asked for. With the spec of a dataset it gives the spec of what is stored
and an `Encoder`, which turns sample after sample into that and measures the errors. Nothing lossy
happens without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError
from iobench.samples import SampleSpec, Variable
from iobench.stores.codec_chain import kept_bits
from iobench.stores.encoding_steps import DTYPES, FLOATS, EncodingStep, finite_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample

_T = TypeVar("_T")

Label = Callable[[int], str]
"""Returns which sample a row is, in words."""
ALL: Final = ""
"""The name that stands for every floating-point variable."""

Errors = Mapping[str, Mapping[str, float]]
"""Measured errors by variable: ``{"T": {"max_absolute_error": ..., "max_relative_error": ...}}``.
JSON-ready. Relative ones are over the values that are not 0."""


class EncodedSample(dict[str, "NDArray[Any]"]):
    """A sample as it is stored, and the largest errors of its encoded variables."""

    errors: Errors


class EncodedRows(NamedTuple):
    """Samples side by side as they are stored, and what that does to their values."""

    rows: dict[str, NDArray[Any]]
    errors: Errors  # the largest of each encoded variable
    # of the values and of the errors of each encoded variable: (2 * variables, moments)
    moments: NDArray[np.float64]


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
        found = cls(
            dtypes=dict(_pairs("--dtype", dtype, _dtype_name)),
            ranges=dict(_pairs("--range", ranges, _value_range, needs_name=True)),
            keepbits=kept_bits(codec),
        )
        if found.dtypes or (found.keepbits is not None and not found.ranges):
            return found
        if found.ranges:
            raise OptionError("--range needs --dtype int16: without it nothing is lossy")
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values, for the digest of the plan."""
        return {
            "dtype": dict(self.dtypes),
            "range": {name: list(pair) for name, pair in self.ranges.items()},
            "keep_bits": {} if self.keepbits is None else {ALL: self.keepbits},
            # Of an option that is gone: with it the digest of a store made before is the same.
            "max_error": {},
        }

    def unknown_ranges(self, spec: SampleSpec) -> tuple[str, ...]:
        """Return the variables that a pass over all samples has to find the range of."""
        return tuple(step.name for step in self._steps(spec) if step.lacks_range)

    def learn(
        self, spec: SampleSpec, stacks: Iterable[tuple[Mapping[str, NDArray[Any]], Label]]
    ) -> Encoding:
        """Return the same with the ranges that were unknown, of all these samples."""
        unknown = self.unknown_ranges(spec)
        ranges = dict(self.ranges)
        for rows, label in stacks:
            for name in unknown:
                found = finite_range(rows[name], name, label)
                known = ranges.get(name, found)
                if found is not None and known is not None:
                    ranges[name] = (min(found[0], known[0]), max(found[1], known[1]))
        return replace(self, ranges={**dict.fromkeys(unknown, (0.0, 0.0)), **ranges})

    def stored_nbytes(self, spec: SampleSpec) -> int:
        """Return the bytes of one sample as it will be stored; no range needs to be known."""
        return sum(
            variable.nbytes if step is None else step.stored_nbytes
            for variable, step in zip(spec, self._by_variable(spec), strict=True)
        )

    def stored_spec(self, spec: SampleSpec) -> SampleSpec:
        """Return what the samples of a store are, from what those of the dataset are."""
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

    def _by_variable(self, spec: SampleSpec) -> list[EncodingStep | None]:
        steps = {step.name: step for step in self._steps(spec)}
        return [steps.get(variable.name) for variable in spec]

    def _steps(self, spec: SampleSpec) -> list[EncodingStep]:
        """Return one step for each variable that is encoded, after checking the options."""
        self._check_names(spec)
        steps = []
        for variable in spec:
            dtype = self.dtypes.get(variable.name, self.dtypes.get(ALL))
            if variable.dtype in FLOATS and (dtype or self.keepbits is not None):
                limits = self.ranges.get(variable.name)
                keepbits = None if dtype == "int16" else self.keepbits
                steps.append(EncodingStep(variable, dtype, limits, keepbits))
        if not steps:
            option = "--dtype" if self.dtypes else "--codec bitround"
            raise OptionError(f"{option}: none of {', '.join(spec.names)} is floating-point")
        if self.keepbits is not None and all(step.keepbits is None for step in steps):
            raise OptionError(
                f"--codec bitround:keepbits={self.keepbits}: all floating-point variables are "
                "stored as int16, which is not rounded; leave bitround out, or --dtype int16"
            )
        packed = {step.name for step in steps if step.dtype == "int16"}
        for name in sorted({*self.ranges} - packed):
            raise OptionError(f"--range {name}=...: it is not stored as int16; leave it out")
        return steps

    def _check_names(self, spec: SampleSpec) -> None:
        for option, names in (("--dtype", self.dtypes), ("--range", self.ranges)):
            for name in names:
                if name != ALL and name not in spec.names:
                    raise OptionError(
                        f"{option} {name}=...: no such variable; there is {', '.join(spec.names)}"
                    )
        for name in self.dtypes:
            if name != ALL and spec[name].dtype not in FLOATS:
                raise OptionError(
                    f"{name} is {spec[name].dtype}: --dtype is for floating-point variables"
                )


class Encoder:
    """Encodes samples of one spec; see `Encoding.encoder`. Threads may share it."""

    def __init__(
        self, spec: SampleSpec, steps: Mapping[str, tuple[EncodingStep, Variable]]
    ) -> None:
        self.spec = spec
        self._steps = steps
        self.names = tuple(name for name in spec.names if name in steps)

    def encode(self, rows: Mapping[str, NDArray[Any]], label: Label) -> EncodedRows:
        """Return samples side by side as they are stored, with their errors."""
        encoded: dict[str, NDArray[Any]] = {}
        errors: dict[str, Mapping[str, float]] = {}
        moments = []
        for variable in self.spec:
            values = rows[variable.name]
            if variable.name not in self._steps:
                encoded[variable.name] = values
                continue
            step, stored = self._steps[variable.name]
            numbers, errors[variable.name], both = step.encode(values, stored, label)
            encoded[variable.name] = numbers
            moments.append(both)
        return EncodedRows(encoded, errors, np.concatenate(moments))

    def encode_sample(self, sample: Sample, where: str) -> EncodedSample:
        """Return one sample as it is stored, with its errors."""
        self.spec.check(sample, where=where)
        rows = {name: values[None] for name, values in sample.items()}
        encoded = self.encode(rows, lambda _: where)
        found = EncodedSample(sample)
        found.update({name: encoded.rows[name][0, ...] for name in self.names})
        found.errors = encoded.errors
        return found


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


def _pairs(
    option: str,
    given: str | Sequence[str] | None,
    convert: Callable[[str, str, str], _T],
    *,
    needs_name: bool = False,
) -> Iterator[tuple[str, _T]]:
    """Yield (variable, value) of the spellings ``VALUE`` and ``VAR=VALUE``."""
    texts = [] if given is None else [given] if isinstance(given, str) else given
    seen: set[str] = set()
    for text in texts:
        name, equals, value = text.rpartition("=")
        if (needs_name and not name) or (equals and not name):
            raise OptionError(f"{option} {text}: expected VAR=VALUE")
        if name in seen:
            raise OptionError(f"{option} {text}: given twice for the same")
        seen.add(name)
        yield name, convert(option, text, value)


def _dtype_name(option: str, text: str, value: str) -> str:
    """Return the name of a dtype that ``--dtype`` takes."""
    if value not in DTYPES:
        raise OptionError(f"{option} {text}: expected {', '.join(DTYPES)}")
    return value


def _value_range(option: str, text: str, value: str) -> tuple[float, float]:
    """Return the lowest and the highest value of ``LOW:HIGH``."""
    low, colon, high = value.partition(":")
    pair = (_number(option, text, low), _number(option, text, high)) if colon else (1.0, 0.0)
    if pair[0] > pair[1]:
        raise OptionError(f"{option} {text}: expected VAR=LOW:HIGH, the lower one first")
    return pair


def _number(option: str, text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{option} {text}: {value!r} is not a number")
    return number
