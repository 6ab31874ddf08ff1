from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -c 'from iobench.cli import main; main([\"--help\"])' | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.timeout(100)
@pytest.mark.parametrize("megabytes", [60, 600, 1000])
def test_a_limit_of_memory_ends_in_a_line(tmp_path: Path, megabytes: int) -> None:
    """At the start, as libraries in C die of it, and later, where threads and arrays are made."""
    words = (
        f"ulimit -v {megabytes}000; exec {sys.executable} -m iobench profile maelstrom-yr --tiny "
        f"--batches 2 --store-dir {tmp_path}"
    )
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr
    if megabytes < 1000 or done.returncode:  # that may do, by what is installed and loaded
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1].startswith("iobench: ")
