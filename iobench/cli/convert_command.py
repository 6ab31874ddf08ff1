"""``iobench convert``: write a dataset's samples into a container that loads faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.cli.conversion_text import forecast_text, outcome_text, profile_command
from iobench.cli.documents import print_answer
from iobench.cli.screen import TerminalScreen
from iobench.conversion.conversion_run import forecast, run
from iobench.conversion.convert_request import ConvertRequest
from iobench.files.urls import as_path

if TYPE_CHECKING:
    from collections.abc import Sequence


def convert(
    *,
    sources: Sequence[str],
    out: str,
    dry_run: bool,
    codec: str | None,
    format_options: dict[str, str],
    json: bool,
    **values: Any,
) -> None:
    """Convert what is named, or print the plan of it."""
    of_codec = {} if codec is None else {"codec": codec}
    request = ConvertRequest(
        targets=tuple(sources), out=as_path(out), format_options=of_codec | format_options, **values
    )
    screen = TerminalScreen()
    if dry_run:
        prepared, planned = forecast(request, screen)
        title, known = forecast_text(request, prepared, planned)
        facts = {"kind": "plan", "out": str(request.out), **planned.to_dict()}
    else:
        outcome = run(request, screen)
        title, known = outcome_text(outcome)
        command = profile_command(str(outcome.path))
        facts = {"kind": "conversion", **outcome.to_dict(), "next_command": command}
    print_answer(title, *known, figures=facts, json=json)
