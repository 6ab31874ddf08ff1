"""How every command takes its words: an option that has one value is given once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = ["Command", "make_typer"]


class Command(TyperCommand):
    """A command that refuses a second value where only the last one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after each option was looked for a second time.

        Raises
        ------
        UsageError
            If one that takes one value was given twice. A plain flag may be: it says the same.
        """
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        given = Counter(each for each in order if each.param_type_name == "option")
        for option, times in given.items():
            is_plain_flag = getattr(option, "is_flag", False) and not option.secondary_opts
            if times > 1 and not (getattr(option, "multiple", False) or is_plain_flag):
                ctx.fail(
                    f"{option.opts[0]} is given {times} times; it takes one value: give it once"
                )
        return super().parse_args(ctx, args)


def make_typer(**options: Any) -> typer.Typer:
    """Return an application without commands; ``options`` as of ``typer.Typer``."""
    return typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **options
    )
