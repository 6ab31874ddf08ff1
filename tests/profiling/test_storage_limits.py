"""How many threads a probe tries where nobody says."""

from __future__ import annotations

import pytest

from iobench.profiling import storage_limits
from iobench.profiling.storage_limits import default_threads


@pytest.mark.parametrize(
    ("cpus", "request_nbytes", "threads"),
    [
        (1, 1 << 20, (1,)),
        (2, 1 << 20, (1, 2)),
        (6, 1 << 20, (1, 2, 4, 6)),
        (256, 1 << 20, (1, 2, 4, 8, 16, 32)),
        (256, 60_000_000, (1, 2, 4, 8, 16, 17)),
        (256, 1 << 40, (1, 2, 4, 8, 16)),
    ],
)
def test_threads_go_up_to_the_cpus_and_what_memory_holds(
    monkeypatch, cpus, request_nbytes, threads
):
    monkeypatch.setattr(storage_limits, "available_cpus", lambda: cpus)
    assert default_threads(request_nbytes) == threads
