"""Frameworks are optional, and only loaded when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import iobench
assert {module!r} not in sys.modules
sys.modules[{module!r}] = None
from iobench.errors import MissingExtraError
try:
    import iobench.{package}
except MissingExtraError as error:
    assert "(extra {package}): pip install '" in str(error)
else:
    raise SystemExit("no error")
"""
MODULES = {"torch": "torch", "tensorflow": "tensorflow", "dali": "nvidia.dali"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("package", MODULES)
def test_in_a_fresh_interpreter(package):
    code = CODE.format(package=package, module=MODULES[package])
    subprocess.run([sys.executable, "-c", code], check=True)
