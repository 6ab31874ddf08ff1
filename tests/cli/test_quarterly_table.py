"""``iobench compare --quarterly``: the table of D2.3 from folders of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.testing import CONSUMER, SketchedRun

if TYPE_CHECKING:
    import pytest

MS = 1_000_000
DAY = 86_400 * 10**9


def made(
    path: Path, *, day: int = 1, waits_ms: tuple[int, ...] = (4, 2, 6, 4), **changed: Any
) -> Path:
    """Return a serial run of whole epochs, two batches each: 1 ms forward, 2 ms backward."""

    config = {
        "dataset": "own", "format": "source", "framework": "native", "workers": 0, "prefetch": 0,
        "batch_size": 1, "n_samples": 2, "sample_nbytes": 8, "machine": {"cpus": 2},
    }  # fmt: skip
    run, now = SketchedRun(config, **changed), 0
    run.process = {"anchors": (Anchor(0, day * DAY),)}
    for batch, wait_ms in enumerate(waits_ms):
        of, end = {"batch": batch, "epoch": batch // 2}, now + wait_ms * MS
        run.add(CONSUMER, Kind.READ, now, end, **of)
        run.wait(batch, now, end, "consumer", nbytes=8, epoch=batch // 2)
        run.add(CONSUMER, Kind.FORWARD, end, end + MS, **of)
        now = end + 3 * MS
        run.add(CONSUMER, Kind.BACKWARD, end + MS, now, **of)
    run.shutdown(now, now)
    run.round(0, now)
    run.write(path)
    return path


def document(capsys: pytest.CaptureFixture[str], *folders: Path) -> dict[str, Any]:
    assert main(["compare", *map(str, folders), "--quarterly", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments), "--quarterly"]) == 0
    return capsys.readouterr().out


def test_the_newest_run_stands_for_a_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = made(tmp_path / "z" / "old", day=1)
    new = made(tmp_path / "a" / "new", day=3, waits_ms=(1, 1))
    lossy = made(tmp_path / "lossy", day=4)
    (file,) = lossy.rglob("*.spans")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - 4096] if len(data) > 8192 else data[:300])
    torn = made(tmp_path / "torn", day=5)
    (torn / "run.json").write_text("{")
    empty = made(tmp_path / "empty", day=6, waits_ms=())
    made(tmp_path / "other", day=1, format="zarr")
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(old, tmp_path / ".hidden" / "run")
    shutil.copytree(old, new / "inside")  # what is within a run is no run of its own
    found = document(capsys, tmp_path, tmp_path / "a")
    assert {row["run"] for row in found["rows"]} == {str(new), str(tmp_path / "other")}
    why = {each["run"]: each["why"] for each in found["skipped"]}
    assert set(why) == {str(path) for path in (old, lossy, torn, empty)}
    assert why[str(old)] == f"older than {new}, which is of the same cell"
    assert why[str(empty)] == "no batch was delivered"
    assert "run.json" in why[str(torn)]
    text = text_of(capsys, tmp_path)
    assert text.index("native source") < text.index("native zarr")
