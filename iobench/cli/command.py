"""How every command takes its words: an option that has one value is given once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand

from iobench.command_options import OF_PROFILE

__all__ = ["IobenchCommand", "declared", "make_typer"]

_ADDRESS: Final = re.compile(r"(?:[\w+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:/[^\\]")
"""pathlib leaves one slash of ``https://``."""


class IobenchCommand(TyperCommand):
    """A command that refuses a second value where only the last one would count.

    And an address where a path is expected: folders of that name would be made, a password in it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after each option was looked for a second time.

        Raises
        ------
        UsageError
            If one that takes one value was given twice. A plain flag may be: it says the same.
            If an address was given for a path of this machine.
        """
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        given = Counter(each for each in order if each.param_type_name == "option")
        for option, times in given.items():
            is_plain_flag = getattr(option, "is_flag", False) and not option.secondary_opts
            if times > 1 and not (getattr(option, "multiple", False) or is_plain_flag):
                ctx.fail(
                    f"{option.opts[0]} is given {times} times; it takes one value: give it once"
                )
        left = super().parse_args(ctx, args)
        for each in self.params:
            named = getattr(getattr(each, "type", None), "name", "")  # typer on click leaves texts
            values = ctx.params.get(each.name or "")
            for value in values if isinstance(values, list | tuple) else [values]:
                is_path = isinstance(value, Path) or (named == "path" and isinstance(value, str))
                if is_path and _ADDRESS.match(str(value)):
                    ctx.fail(f"{value} is an address; expected a path of this machine")
        return left


def make_typer(**options: Any) -> typer.Typer:
    """Return an application without commands; ``options`` as of ``typer.Typer``."""
    return typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **options
    )


def declared(name: str) -> Any:
    """Return an option of the table that advice reads as well, for the command that has it."""
    option = OF_PROFILE[name]
    return typer.Option(option.name, help=option.help, metavar=option.metavar)
