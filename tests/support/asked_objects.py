"""What is asked of stores of objects for reading, counted by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from iobench.files import objects

KINDS = {
    "_fill": "ranges", "_get": "ranges", "_state": "states", "_listed": "listings",
    "_states_below": "listings",
}  # fmt: skip


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """Count ``ranges`` and their ``nbytes``, ``turns`` of those, ``states`` and ``listings``."""
    counts: Counter[str] = Counter()
    ask = objects.ask

    def counted(urls: Any, request: Any, *arguments: Any, **options: Any) -> list[Any]:
        answers = ask(urls, request, *arguments, **options)
        counts[KINDS.get(request.__name__, "writes")] += len(urls)
        if request.__name__ == "_fill":
            counts.update(turns=bool(urls), nbytes=sum(answers))
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "ask", counted)
        yield counts
