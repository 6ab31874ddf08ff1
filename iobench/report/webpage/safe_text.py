"""Text that is HTML already: Jinja2 escapes all other."""

from __future__ import annotations

import html
from typing import Self


class SafeText(str):
    """HTML made by iobench, with everything in it that it was given escaped.

    Templates know it by ``__html__``, as they do MarkupSafe's ``Markup``.
    """

    __slots__ = ()

    def __html__(self) -> str:
        return self

    @classmethod
    def filled(cls, template: str, *texts: str) -> Self:
        """Return a template with ``{}`` filled with texts that may hold anything."""
        filled = (text if isinstance(text, SafeText) else html.escape(text) for text in texts)
        return cls(template.format(*filled))
