"""The browser of the tests of pages."""

from tests.report.webpage.browser import browser, open_page

__all__ = ["browser", "open_page"]
