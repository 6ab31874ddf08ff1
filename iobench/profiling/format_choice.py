"""``--format``: containers, each as it comes or with what is stored otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from iobench.command_options import OF_VALUES, SHARD_SIZE, parse_format
from iobench.errors import OptionError
from iobench.registry import SOURCE, find_format, unknown_name
from iobench.sizes import parse_nbytes
from iobench.stores.encoding import Encoding

if TYPE_CHECKING:
    from collections.abc import Sequence


class FormatChoice(msgspec.Struct, frozen=True):
    """One item of ``--format``: a container, and how samples are to lie in it."""

    name: str  # ``source``, or of a format
    # as `iobench convert` has them, without dashes: in their order, some more than once
    options: tuple[tuple[str, str], ...]
    spelled: str  # the item as it was given: what reports call it

    @classmethod
    def parse(cls, item: str) -> Self:
        """Return what an item of `split_formats` says."""
        name, options = parse_format(item)
        if name == SOURCE:
            if ":" in item:
                raise OptionError(
                    f"--format {item}: the original files are read as they are; give {SOURCE} "
                    "without options"
                )
            return cls(name, (), item)
        fmt = find_format(name)
        of_format: Sequence[str] | None = getattr(fmt, "option_names", None)
        if of_format is not None:
            known = [*of_format, *OF_VALUES, SHARD_SIZE]
            for key, _ in options:
                if key not in known:
                    raise unknown_name(f"option of --format {name}", key, known)
        once = [key for key, _ in options if key not in OF_VALUES]
        if twice := [key for key in once if once.count(key) > 1]:
            raise OptionError(f"--format {item}: {twice[0]} is given twice; give it once")
        result = cls(name, options, item)
        result._check()
        if (check := getattr(fmt, "check_options", None)) is not None:
            check(result.format_options)
        return result

    @property
    def encoding(self) -> Encoding | None:
        """What is stored with fewer bits; None without loss."""
        codec = self.format_options.get("codec")
        return Encoding.parse(
            dtype=self._values("dtype"), ranges=self._values("range"), codec=codec
        )

    @property
    def format_options(self) -> dict[str, str]:
        """The options of the format itself."""
        return {
            name: value
            for name, value in self.options
            if name not in OF_VALUES and name != SHARD_SIZE
        }

    @property
    def shard_nbytes(self) -> int | None:
        """Bytes of a shard, where that is given."""
        result = self._values(SHARD_SIZE)
        return parse_nbytes(SHARD_SIZE, result[0]) if result else None

    def _values(self, name: str) -> tuple[str, ...]:
        return tuple(value for each, value in self.options if each == name)

    def _check(self) -> None:
        try:
            _ = self.encoding, self.shard_nbytes
        except OptionError as error:
            raise OptionError(f"--format {self.spelled}: {error}") from error
