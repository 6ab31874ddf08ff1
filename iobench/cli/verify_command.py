"""``iobench verify``: whether a store is as it was written, and as its source has it."""

from __future__ import annotations

import json as json_text
from typing import Any

import click

from iobench.cli.documents import fact_table, print_answer
from iobench.cli.screen import TerminalScreen
from iobench.conversion.checking import VerifyRequest
from iobench.conversion.checking import verify as check
from iobench.errors import StoreError
from iobench.files.urls import as_path
from iobench.masking import as_typed


def verify(*, store: str, json: bool, **values: Any) -> None:
    """Check a store, and print what was compared."""
    request = VerifyRequest(store=as_path(store), **values)
    try:
        result = check(request, TerminalScreen())
    except StoreError as error:
        if json:
            facts = {"kind": "verification", "as_written": False, "error": str(error)}
            click.echo(json_text.dumps(facts, indent=1))
        raise
    facts = {"kind": "verification", "as_written": True, **result}
    table = fact_table(facts, {"kind", "as_written", "path"})
    print_answer(
        f"{as_typed(request.store.absolute())}: as written", table, figures=facts, json=json
    )
