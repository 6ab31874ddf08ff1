"""Writes iobench/cli/pages: of each command what its --help prints; a test holds them to it."""

from pathlib import Path
from typing import Any

import typer

from iobench.cli.app import make_app
from iobench.cli.suite_command import MLLOG

WIDTH = 100
PAGES = Path(__file__).parents[1] / "iobench" / "cli" / "pages"


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    group = typer.main.get_command(make_app())
    told = {name: [_help(command, name)] for name, command in group.commands.items()}
    told["suite"].append(_help(group.commands["suite"], "suite", MLLOG))
    return {f"{name}.md": "\n".join([f"# iobench {name}\n", *told[name]]) for name in told}


def _help(command: Any, name: str, *words: str) -> str:
    context = command.make_context(
        f"iobench {name}", list(words), resilient_parsing=True, terminal_width=WIDTH
    )
    return f"```text\n{context.command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text)
