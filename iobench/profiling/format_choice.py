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
    from collections.abc import Mapping, Sequence


class FormatChoice(msgspec.Struct, frozen=True):
    """One item of ``--format``: a container, and how samples are to lie in it."""

    name: str  # ``source``, or of a format
    spelled: str  # the item as it was given: what reports call it
    # as `iobench convert` has them, without dashes, some more than once
    options: tuple[tuple[str, str], ...] = ()
    format_options: Mapping[str, str] = {}  # those of the format itself
    encoding: Encoding | None = None  # what is stored with fewer bits; None without loss
    shard_nbytes: int | None = None

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
            return cls(name, item)
        fmt = find_format(name)
        of_format: Sequence[str] | None = getattr(fmt, "option_names", None)
        values: dict[str, list[str]] = {}
        for key, value in options:
            known = [*(of_format or ()), *OF_VALUES, SHARD_SIZE]
            if of_format is not None and key not in known:
                raise unknown_name(f"option of --format {name}", key, known)
            values.setdefault(key, []).append(value)
            if len(values[key]) > 1 and key not in OF_VALUES:
                raise OptionError(f"--format {item}: {key} is given twice; give it once")
        own = {key: each[0] for key, each in values.items() if key not in (*OF_VALUES, SHARD_SIZE)}
        if (check := getattr(fmt, "check_options", None)) is not None:
            check(own)
        try:
            encoding = Encoding.parse(
                dtype=values.get("dtype", ()),
                ranges=values.get("range", ()),
                codec=own.get("codec"),
            )
            size = values.get(SHARD_SIZE)
            nbytes = None if size is None else parse_nbytes(SHARD_SIZE, size[0])
        except OptionError as error:
            raise OptionError(f"--format {item}: {error}") from error
        return cls(name, item, options, own, encoding, nbytes)
