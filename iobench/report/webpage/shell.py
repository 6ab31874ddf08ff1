"""The shell of the page: its styles and scripts, and a policy that lets nothing else run.

Names may hold anything: Jinja2 escapes them, `printable` takes control characters out, and the
policy names the digests of what iobench itself put in and forbids all requests. Data stand in
script elements of a type that no browser runs.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from iobench.masking import printable
from iobench.recording.kinds import Kind
from iobench.report.wrapping import QUANTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment

HERE: Final = Path(__file__).parent
TIMELINE_STYLES: Final = ("uplot/uPlot.min.css", "timeline.css")
TIMELINE_SCRIPTS: Final = (
    "uplot/uPlot.iife.min.js",
    "quantities.js",
    "spans.js",
    "painter.js",
    "view.js",
    "describe.js",
    "overlay.js",
    "machine.js",
    "frame.js",
    "timeline.js",
    "waits.js",
)
"""Files of ``assets/`` in the order in which a page needs them."""
STYLES: Final = ("page.css", "dark.css")
SCRIPTS: Final = ("page.js",)
DARK: Final = ':root[data-theme="dark"]'
HARD_SPACE: Final = "\u00a0"


class SafeText(str):
    """HTML made by iobench, with everything in it that it was given escaped."""

    __slots__ = ()

    def __html__(self) -> str:  # by which templates know it
        return self

    @classmethod
    def filled(cls, template: str, *texts: str) -> Self:
        """Return a template with ``{}`` filled with texts that may hold anything."""
        filled = (text if isinstance(text, SafeText) else html.escape(text) for text in texts)
        return cls(template.format(*filled))


def styles(*, drawn: bool) -> tuple[str, ...]:
    """Return the style sheets in their order; ``drawn`` where scripts draw, as a timeline."""
    return (*_assets((*STYLES, *(TIMELINE_STYLES if drawn else ()))), _kinds())


def _kinds() -> str:
    """Return the colour of each kind of span, in both themes, and its swatch."""
    return "\n".join(
        f":root {{ --kind-{kind.spelled}: {kind.light}; }}\n"
        f"{DARK} {{ --kind-{kind.spelled}: {kind.dark}; }}\n"
        f".swatch.kind-{kind.spelled} {{ background: var(--kind-{kind.spelled}); }}"
        for kind in Kind
    )


def scripts(*, drawn: bool) -> tuple[str, ...]:
    """Return the scripts, in the order in which the page runs them; ``drawn`` as of `styles`."""
    return _assets((*(TIMELINE_SCRIPTS if drawn else ()), *SCRIPTS))


def _assets(names: Sequence[str]) -> tuple[str, ...]:
    return tuple((HERE / "assets" / name).read_text("utf-8").strip() for name in names)


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return the content security policy of a page with these elements in it."""
    return (
        f"default-src 'none'; script-src {_digests(scripts)}; style-src {_digests(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digests(texts: Sequence[str]) -> str:
    digests = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def json_text(value: Any) -> SafeText:
    """Return JSON that can stand in a script element, whatever its texts hold."""
    # In ASCII, so that lone surrogates, U+2028 and U+2029 are escapes.
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return SafeText(text)


def make_environment() -> Environment:
    """Return the environment of the templates; all they print is escaped and printable."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kept_together"] = _unbroken
    environment.filters["json_text"] = json_text
    return environment


def _finalize(value: object) -> object:
    """Return what an expression prints; markup is ours, all else may hold anything."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return value


def _unbroken(text: str) -> SafeText:
    """Return a sentence whose quantities are not broken between number and unit."""
    return SafeText.filled("{}", QUANTITY.sub(HARD_SPACE, printable(text)))
