"""``iobench verify``: whether a store is as it was written, and as its source has it."""

from __future__ import annotations

from typing import Any

import click

from iobench.cli.documents import print_answer


def verify(*, store: str, json: bool, **values: Any) -> None:
    """Check a store, and print what was compared."""
    import json as json_text

    from iobench.cli.conversion_text import verification_told
    from iobench.cli.screen import TerminalScreen
    from iobench.conversion.checking import VerifyRequest
    from iobench.conversion.checking import verify as check
    from iobench.errors import StoreError
    from iobench.files.urls import as_path

    request = VerifyRequest(store=as_path(store), **values)
    try:
        result = check(request, TerminalScreen())
    except StoreError as error:
        if json:
            facts = {"kind": "verification", "as_written": False, "error": str(error)}
            click.echo(json_text.dumps(facts, indent=1))
        raise
    title, known = verification_told(result)
    facts = {"kind": "verification", "as_written": True, **result.to_dict()}
    print_answer(title, *known, figures=facts, json=json)
