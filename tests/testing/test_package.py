"""The package for authors' tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

import iobench.testing


def test_every_public_name_is_there():
    assert [name for name in dir(iobench.testing) if getattr(iobench.testing, name) is None] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        iobench.testing.Nonsense  # noqa: B018


def test_the_clock_needs_no_pytest():
    code = "import sys; sys.modules['pytest'] = None; from iobench.testing import FakeClock"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
