"""What a user asks of their own files: a sample dimension, variables, targets.

And what follows from that for any source with named dimensions: which variables make a sample,
whether files fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from iobench.errors import FileFormatError, OptionError
from iobench.samples import Variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.chunks.chunk_manifest import StoredVariable
    from iobench.samples import Role

__all__ = [
    "Selection",
    "SourceFile",
    "check_same_schema",
    "check_sample_dim",
    "choose_variables",
    "helper_names",
    "sample_variable",
]


class SourceFile(Protocol):
    """A source file, or store, with named dimensions."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def dims(self) -> Mapping[str, int]:
        """Lengths of its dimensions."""
        ...

    @property
    def variables(self) -> Mapping[str, StoredVariable]:
        """Its numeric variables."""
        ...

    @property
    def skipped(self) -> Mapping[str, str]:
        """What was left out, and why."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """The choices of a user.

    Parameters
    ----------
    sample_dim : str or None
        Dimension along which one index is one sample; None: not chosen yet.
    variables : tuple of str
        Names to use, in any order; empty: all that have the sample dimension.
    targets : tuple of str
        Which of them a model is trained towards.
    """

    sample_dim: str | None
    variables: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def asks_for(self, name: str) -> bool:
        """Return whether a variable was named."""
        return name in self.variables or name in self.targets

    def role(self, name: str) -> Role:
        """Return whether a variable is an input or a target."""
        return "target" if name in self.targets else "input"

    def check_names(self, existing: Sequence[str]) -> None:
        """Raise OptionError if a chosen variable does not exist, listing those that do."""
        for option, names in (("--variables", self.variables), ("targets", self.targets)):
            unknown = [name for name in names if name not in existing]
            if unknown:
                raise OptionError(
                    f"{option}: no variable {', '.join(unknown)}; the files have "
                    f"{', '.join(existing)}"
                )


def check_sample_dim(
    sample_dim: str | None, dimensions: Mapping[str, int], files: Sequence[Path]
) -> str:
    """Return the sample dimension, or raise OptionError listing those that exist."""
    if sample_dim is not None and sample_dim in dimensions:
        return sample_dim
    listed = ", ".join(f"{dim} ({length})" for dim, length in dimensions.items()) or "none"
    if sample_dim is None:
        raise OptionError(
            f"{files[0]}: say which dimension counts samples with --sample-dim; dimensions "
            f"(lengths): {listed}"
        )
    raise OptionError(
        f"--sample-dim {sample_dim}: {files[0]} has no such dimension; dimensions (lengths): "
        f"{listed}"
    )


def choose_variables(
    file: SourceFile, selection: Selection, dim: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the variables of a sample, and for all others why they are left out.

    Raises
    ------
    OptionError
        If a variable that was asked for does not exist, or none has the sample dimension.
    """
    selection.check_names(list(file.variables))
    skipped = dict(file.skipped)
    helpers = helper_names(file)
    chosen = []
    for name, variable in file.variables.items():
        if reason := _left_out(variable, selection, dim, helpers):
            skipped[name] = reason
        else:
            chosen.append(name)
    if not chosen:
        raise OptionError(
            f"--sample-dim {dim}: no variable of {file.path} has it; the file has "
            + ", ".join(f"{v.name} ({', '.join(v.dims)})" for v in file.variables.values())
        )
    return tuple(chosen), skipped


def _left_out(variable: StoredVariable, selection: Selection, dim: str, helpers: set[str]) -> str:
    """Return why a variable is no part of a sample, ``""`` if it is."""
    if selection.asks_for(variable.name):
        return ""
    if selection.variables:
        return "not asked for"
    if variable.name in helpers:
        return "a coordinate"
    return "" if dim in variable.dims else f"lacks the dimension {dim}"


def helper_names(file: SourceFile) -> set[str]:
    """Return the names of variables that only describe others."""
    names = {name for name in file.variables if name in file.dims}
    for variable in file.variables.values():
        for key in ("coordinates", "bounds"):
            names.update(variable.attributes.get(key, "").split())
    return names


def sample_variable(variable: StoredVariable, selection: Selection, dim: str) -> Variable:
    """Return what one index of a variable along the sample dimension is in a sample."""
    kept = [(d, n) for d, n in zip(variable.dims, variable.shape, strict=True) if d != dim]
    return Variable(
        name=variable.name,
        shape=tuple(length for _, length in kept),
        dtype=variable.packing.dtype,
        dims=tuple(name for name, _ in kept),
        units=variable.attributes.get("units", ""),
        role=selection.role(variable.name),
    )


def check_same_schema(files: Sequence[SourceFile], names: Sequence[str], sample_dim: str) -> None:
    """Raise FileFormatError if a file differs from the first but in its number of samples."""
    first = files[0]
    expected = [_schema(first, name, sample_dim) for name in names]
    for file in files:
        if sample_dim not in file.dims:
            raise FileFormatError(f"{file.path}: lacks the dimension {sample_dim} of {first.path}")
        found = [_schema(file, name, sample_dim) for name in names]
        if found == expected:
            continue
        different = next(n for n in range(len(names)) if found[n] != expected[n])
        raise FileFormatError(
            f"{file.path}: variable {names[different]!r} is {_spelled(found[different])}, expected "
            f"{_spelled(expected[different])} as in {first.path}"
        )


_Schema = tuple[str, list[tuple[str, int | None]]]
"""A dtype, and the dimensions with their lengths: None of the sample dimension."""


def _schema(file: SourceFile, name: str, sample_dim: str) -> _Schema | None:
    variable = file.variables.get(name)
    if variable is None:
        return None
    lengths = zip(variable.dims, variable.shape, strict=True)
    return variable.packing.dtype, [(dim, None if dim == sample_dim else n) for dim, n in lengths]


def _spelled(schema: _Schema | None) -> str:
    if schema is None:
        return "missing"
    dtype, lengths = schema
    return f"{dtype} ({', '.join(dim if n is None else f'{dim} {n}' for dim, n in lengths)})"
