"""Progress on a terminal: counts, or bytes with their rate; nothing elsewhere."""

from __future__ import annotations

import io

import pytest

from iobench.cli.screen import TerminalScreen


class Terminal(io.StringIO):
    """What a terminal would get."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    """Make stderr a terminal, within the test: pytest sets its own after the fixtures."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)

    def begin() -> Terminal:
        made = Terminal()
        monkeypatch.setattr("sys.stderr", made)
        return made

    return begin


def test_bytes_are_shown_with_a_rate(on_a_terminal) -> None:
    terminal = on_a_terminal()
    with TerminalScreen().progress("converting", in_bytes=True) as move:
        for done in range(0, 10_000_001, 1_000):
            move(done, 10_000_000)
    text = terminal.getvalue()
    assert "10.0/10.0 MB" in text
    assert "MB/s" in text
    assert text.count("converting") <= 110  # about a hundred redraws


def test_other_work_is_counted(on_a_terminal) -> None:
    terminal = on_a_terminal()
    with TerminalScreen().progress("indexing") as move:
        move(3, 7)
        move(7, 7)
    assert "3/7" in terminal.getvalue()
    assert "MB" not in terminal.getvalue()


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("JPY_PARENT_PID", "1")])
def test_nothing_is_drawn_where_no_cursor_moves(on_a_terminal, monkeypatch, name, value) -> None:
    terminal = on_a_terminal()
    monkeypatch.setenv(name, value)
    screen = TerminalScreen()
    with screen.progress("converting") as move:
        move(1, 2)
    screen.note("kept in run")
    assert terminal.getvalue() == "kept in run\n"
