"""Writes iobench/cli/pages: of each command what its --help prints; a test holds them to it."""

from pathlib import Path

import click

from iobench.cli.app import MLLOG, make_app

WIDTH = 100
PAGES = Path(__file__).parents[1] / "iobench" / "cli" / "pages"


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    commands = make_app().commands
    told = {name: [_help(command, name)] for name, command in commands.items()}
    told["suite"].append(_help(commands["suite"], "suite", MLLOG))
    return {f"{name}.md": "\n".join([f"# iobench {name}\n", *told[name]]) for name in told}


def _help(command: click.Command, name: str, *words: str) -> str:
    context = command.make_context(
        f"iobench {name}", list(words), resilient_parsing=True, terminal_width=WIDTH
    )
    return f"```text\n{context.command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text)
