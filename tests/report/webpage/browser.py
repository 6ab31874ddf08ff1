"""A real browser without a screen: Chromium of the system, driven by Playwright.

``page = open_page(path, width=390, dark=True)`` opens a file; what goes wrong in it (an error or
warning on its console, an exception nobody caught, anything asked for that is not the file itself)
fails the test at its end, so that no test can forget to look.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    OpenPage = Callable[..., Page]

NAMES = ("chromium", "chromium-browser", "google-chrome")
SAFE = ("file:", "data:", "blob:", "about:")


def find_browser() -> str | None:
    """Return where the system's Chromium is; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start the browser, and end it; skip the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


class PageOpener:
    """Opens files in pages of their own, and hears what goes wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.problems: list[str] = []
        self.page: Page | None = None
        """For a fixture that keeps one open."""

    def __call__(
        self,
        path: Path | str,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        touch: bool = False,
        script: str | None = None,
        **more: Any,
    ) -> Page:
        """Open a file and return its page.

        Parameters
        ----------
        path : Path or str
        width, height : int
            Of the window, in CSS pixels.
        dark : bool
            What the system prefers.
        touch : bool
            Whether the screen can be tapped.
        script : str, optional
            Run before those of the page, such as one that takes a feature away.
        **more
            For ``Browser.new_context``, such as ``device_scale_factor=2``.
        """
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            **more,
        )
        self._contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        if script is not None:
            page.add_init_script(script)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(f"not caught: {error}"))
        page.on("request", self._ask)
        page.goto(Path(path).resolve().as_uri())
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text}")

    def _ask(self, request: Any) -> None:
        if not request.url.startswith(SAFE):
            self.problems.append(f"asks for {request.url}")


# Not for the session: while Playwright is there, this thread has a running event loop, and the
# tests of other folders could run none of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium without a screen, started once for the tests of a folder."""
    with started_browser() as found:
        yield found


@pytest.fixture
def open_page(browser: Browser) -> Iterator[PageOpener]:
    """``open_page(path, width=1280, height=800, dark=False, touch=False)``: a Playwright page.

    A test that means to see problems takes them from ``open_page.problems`` and clears it.
    """
    opener = PageOpener(browser)
    yield opener
    opener.close()
    assert opener.problems == []
