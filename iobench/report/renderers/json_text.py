"""The figures of a document as JSON, for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.report.document import Document


class JsonRenderer:
    """JSON with the keys of ``iobench report --json``; of a document without figures ``{}``."""

    def render(self, document: Document) -> str:
        """Return the figures."""
        figures = {} if document.figures is None else document.figures()
        return json.dumps(figures, indent=1, allow_nan=False)
