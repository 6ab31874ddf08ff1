"""``iobench convert``: write a dataset's samples into a container that loads faster."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, Final

from iobench.cli.documents import error_tables, fact_table, print_answer
from iobench.cli.screen import TerminalScreen
from iobench.conversion.conversion_run import forecast, run
from iobench.conversion.convert_request import ConvertRequest
from iobench.errors import OptionError
from iobench.files.urls import as_path
from iobench.masking import as_typed
from iobench.report.document import Command, Sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.document import Block

STAND_IN: Final = Sentence("STAND-IN: generated files, not the real dataset.", "caution")
NO_SPACE: Final = Sentence("NOT ENOUGH ROOM: free some space, or name another OUT.", "caution")
OF_OUTCOME: Final = {
    "path", "dataset", "format", "stand_in", "is_finished", "shards", "stages_nbytes",
    "lossy",
}  # fmt: skip
"""What stands in the title of a conversion, or is for machines."""


def convert(
    *,
    sources: Sequence[str],
    out: str,
    dry_run: bool,
    codec: str | None,
    chunk_samples: int | None,
    format_options: dict[str, str],
    json: bool,
    **values: Any,
) -> None:
    """Convert what is named, or print the plan of it."""
    named = {"codec": codec, "chunk-samples": chunk_samples}
    given = {name: str(value) for name, value in named.items() if value is not None}
    for name in given.keys() & format_options.keys():
        raise OptionError(f"--{name} and --format-option {name}= are one option; give one of them")
    request = ConvertRequest(
        targets=tuple(sources), out=as_path(out), format_options=given | format_options, **values
    )
    screen = TerminalScreen()
    shown: list[Block] = []
    if dry_run:
        source, facts = forecast(request, screen)
        shown += [STAND_IN] * bool(source.stand_in) + [NO_SPACE] * (not facts["fits"])
        shown += [fact_table(facts, {"lossy"}), *error_tables(facts["lossy"])]
        name = source.dataset.name
        title = f"{name} to {request.to} in {request.out}: the plan, by a short probe"
        facts = {"kind": "plan", "out": str(request.out), **facts}
    else:
        facts = run(request, screen)
        path = _named(str(as_typed(request.out.absolute())))
        title = f"{facts['dataset']} as {facts['format']} in {path}"
        shown += [STAND_IN] * facts["stand_in"]
        shown += [fact_table(facts, OF_OUTCOME), *error_tables(facts["lossy"])]
        if not facts["is_finished"]:
            shown.append(Sentence(f"Part {request.part} is written; others are not finished."))
        elif not facts["was_finished"]:
            shown.append(Command(shlex.join(["iobench", "verify", path]), "Check it"))
        if facts["is_finished"]:
            shown.append(Command(shlex.join(["iobench", "profile", path]), "Measure loading it"))
        next_command = shlex.join(["iobench", "profile", _named(facts["path"])])
        facts = {"kind": "conversion", **facts, "next_command": next_command}
    print_answer(title, *shown, figures=facts, json=json)


def _named(path: str) -> str:
    """Return a path as commands take it: a plain word may be the name of a dataset."""
    return path if os.sep in path else f".{os.sep}{path}"
