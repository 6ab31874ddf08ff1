"""Results of suites on disk: read as written, and damaged ones told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.errors import ProfileError
from iobench.suites.results import (
    FAILED,
    MEASURED,
    Result,
    find_results,
    read_result,
    write_result,
)

FOUND = Result(
    suite="mine", recipe_digest="0" * 16, cell={"dataset": "one", "format": "zarr"}, round=2,
    status=MEASURED, started="2026-11-27T22:00:00+00:00", figures={"step_s": 0.1},
    machine={"host": "a", "cores": 2}, versions={"iobench": "1"}, run="run",
)  # fmt: skip


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    failed = Result("mine", "0" * 16, {"dataset": "two"}, 0, FAILED, "2026", reason="a reason")
    one, two = tmp_path / "a" / "b", tmp_path / "c"
    for folder in (one, two):
        folder.mkdir(parents=True)
    write_result(one, FOUND)
    write_result(two, failed)
    assert [*map(read_result, find_results(tmp_path))] == [FOUND, failed]


def test_run_directories_are_not_looked_into(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    write_result(run, FOUND)
    assert not list(find_results(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 7}, "is damaged .Invalid enum value 7"),
        ({"status": "fine"}, "is damaged .Invalid enum value 'fine'"),
        ({"figures": {"step_s": "fast"}}, "is damaged"),
        ({"round": None}, "is damaged"),
        (None, "is damaged"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, change: dict[str, object] | None, told: str
) -> None:
    path = write_result(tmp_path, FOUND)
    text = path.read_text()
    path.write_text(text[:-20] if change is None else json.dumps(json.loads(text) | change))
    with pytest.raises(ProfileError, match=told) as caught:
        read_result(path)
    assert str(caught.value).startswith(str(path))
