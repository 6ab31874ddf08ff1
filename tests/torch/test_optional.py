"""Torch is optional, and only loaded when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = {
    "not loaded by iobench": "import iobench, sys; assert 'torch' not in sys.modules",
    "missing": (
        "import sys; sys.modules['torch'] = None\n"
        "from iobench.errors import MissingExtraError\n"
        "try:\n    import iobench.torch\n"
        "except MissingExtraError as error:\n"
        "    assert \"pip install 'iobench[torch]'\" in str(error)\n"
        "else:\n    raise SystemExit('no error')"
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CODE)
def test_in_a_fresh_interpreter(case):
    subprocess.run([sys.executable, "-c", CODE[case]], check=True)
