"""The folder of helpers; counting what is decoded."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from iobench.chunks import sampled_variable

sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[object, ...]]:
    """Count how often each chunk is read to be decoded."""
    counts: Counter[tuple[object, ...]] = Counter()
    read = sampled_variable.read_chunks

    def counted(wanted, **more):
        counts.update((file, variable.name, place) for file, variable, place in wanted)
        return read(wanted, **more)

    monkeypatch.setattr(sampled_variable, "read_chunks", counted)
    return counts
