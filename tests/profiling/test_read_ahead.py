"""Reader threads of a profile follow the storage, where nobody said how many, and that is told."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))

from number_stores import write_numbers

from iobench.loaders.pipeline import store_pipeline
from iobench.loaders.ring.ahead_choice import AheadChoice, ReadSpeeds
from iobench.loaders.ring.store_source import StoreSource
from iobench.profiling import ahead
from iobench.profiling.ahead import with_read_ahead
from iobench.profiling.formats import Prepared


@dataclass
class Asked:
    """What of a configuration counts here."""

    workers: int | None = None
    cache: str = "asis"


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    store = write_numbers(tmp_path / "store", n_samples=9)
    return Prepared(
        label="numpy", format="numpy", pipeline="own", work=store_pipeline(store), n_samples=9,
        files=[store.extents(0)[0].file], store=None, framework="native", workers=0, prefetch=2,
        threads=2, extents=StoreSource(store),
    )  # fmt: skip


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """Let the storage be one that takes six threads; return what was evicted."""
    speeds = ReadSpeeds(1 << 19, 10_000_000, {1: 5e7, 16: 5e8})
    choice = AheadChoice(6, 8, 2, speeds, "it is far away")
    found: list[list[Path]] = []
    monkeypatch.setattr(ahead, "ahead_of", lambda *_, **__: choice)
    monkeypatch.setattr(ahead, "evict", found.append)
    return found


def test_threads_follow_the_storage(prepared: Prepared, evicted: list[list[Path]]) -> None:
    config: Any = Asked()
    one, why = with_read_ahead(config, prepared, 4)
    assert one == replace(prepared, threads=6)
    assert why == "6 threads: it is far away"
    assert with_read_ahead(config, one, 4) == (one, "")
    assert evicted == []


def test_a_cold_cache_is_cold_again(prepared: Prepared, evicted: list[list[Path]]) -> None:
    config: Any = Asked(cache="cold")
    with_read_ahead(config, prepared, 4)
    assert evicted == [prepared.files]


def test_what_was_asked_for_stays(prepared: Prepared, evicted: list[list[Path]]) -> None:
    config: Any = Asked(workers=3, cache="cold")
    assert with_read_ahead(config, prepared, 4) == (prepared, "")
    alone = replace(prepared, extents=None)
    config = Asked()
    assert with_read_ahead(config, alone, 4) == (alone, "")
    assert evicted == []
