"""The figures of a document as JSON, for machines: unrounded, and null is unknown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from iobench.report.document import Document


class JsonRenderer:
    """JSON with the keys of ``iobench report --json``; of a document without figures ``{}``."""

    def render(self, document: Document) -> str:
        """Return the figures."""
        figures = {} if document.figures is None else document.figures()
        return json_text(figures)


def json_text(figures: Any) -> str:
    """Return structs, dicts and lists of them as strict JSON, else a TypeError or ValueError."""
    return json.dumps(to_plain(figures), indent=1, allow_nan=False)


def to_plain(figures: Any) -> Any:
    """Return structs, dicts and lists of them as dicts, lists, numbers and texts."""
    return msgspec.to_builtins(figures, str_keys=True)
