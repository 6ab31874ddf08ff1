"""What a user asks of their own files: a sample dimension, variables, targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.samples import Role

__all__ = ["Selection", "check_sample_dim"]


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
