"""``iobench compare`` as users call it, on runs written span by span."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")

from iobench.cli import main
from iobench.recording.digests import DigestLog
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import RUN_DIGESTS, _wants_digests, record
from iobench.testing import FakeClock

MS = 1_000_000


def made(path: Path, samples: list[int], *, read_ms: int = 4, digests: bool = True) -> Path:
    """Return a run that read and trained on these samples, one a batch."""
    config = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1}
    config |= {"n_samples": len(samples), "digests": digests, "machine": {"cpus": 2}}
    directory = RunDirectory.create(path, config)
    clock = FakeClock(0)
    recorder = directory.recorder(role="consumer", clock=clock)
    log = DigestLog(directory.path) if digests else None
    now = 0
    for batch, sample in enumerate(samples):
        end = now + read_ms * MS
        recorder.emit(Kind.READ, now, end, batch=batch, epoch=0)
        recorder.emit(
            Kind.WAIT, now, end, nbytes=8, batch=batch, epoch=0, detail=recorder.string("consumer")
        )
        if log is not None:
            log.add(batch, 0, np.full((1, 2), sample, "<f4"), 1)
        now = end + 6 * MS
    recorder.emit(Kind.WAIT, now, now, label=recorder.string("shutdown"))
    recorder.emit(Kind.OTHER, 0, now, sample=0, label=recorder.string("round"))
    recorder.close()
    if log is not None:
        log.close()
    return directory.path


def compared(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = made(tmp_path / "a", [0, 1, 2, 3], read_ms=4)
    fast = made(tmp_path / "b", [3, 2, 1, 0], read_ms=2)
    text = compared(capsys, slow, fast)
    assert f"A: {slow} B: {fast}" in text
    assert "samples/s 100 125 1.25" in text
    assert "wait per step 4.00 ms 2.00 ms 0.50 - -" in text
    assert "exposed share 40 % 25 % accelerator util" in text
    assert "accelerator util., MLPerf 60 % 75 %" in text
    assert "Stages, exposed per batch 95 % stage A B B/A interval differs" in text
    assert "read 4.00 ms 2.00 ms 0.50 - -" in text
    assert "A and B are too short for an interval; expected 48 steps or more." in text
    assert "Configuration and machine: the same" in text
    assert "Samples: identical samples, different order, 4 samples in 1 epoch compared." in text


def test_the_first_batch_that_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = made(tmp_path / "a", [0, 1, 2, 3]), made(tmp_path / "b", [0, 1, 7, 3])
    text = compared(capsys, a, b)
    assert (
        "Samples: different batches, 4 samples in 1 epoch compared: batches with 1 samples of A "
        "are not in B, with 1 of B not in A." in text
    )
    assert "First batch that differs: epoch 0, place 2: " in text
    document = json.loads(compared(capsys, a, b, "--json"))
    assert document["interleaved"] is False
    (samples,) = document["samples"]
    assert (samples["verdict"], samples["n_missing"]) == ("different batches", 1)
    assert samples["first_difference"]["batches"] == [2, 2]
    assert len(samples["first_difference"]["digests"][1]) == 32
    assert document["runs"][0]["whole"]["wait_fraction"] == 0.4
    assert document["runs"][0]["mlperf_utilisation"]["fraction"] == 0.6
    assert document["differences"] == {}


def test_three_runs_and_one_without_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = made(tmp_path / "a", [0, 1]), made(tmp_path / "b", [0, 1])
    c = made(tmp_path / "c", [0, 1], digests=False)
    text = compared(capsys, a, b, c)
    assert "Samples: identical samples, same order" in text
    assert "Samples: unknown, because C was made without digests. Make both with digests" in text


def test_the_report_tells_digests_and_utilisation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path / "a", [0, 1, 2])
    assert main(["report", str(path), "--full"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Digests of 3 samples (XXH3, 128 bits, of each batch)" in text
    assert "MLPerf Storage's formula (DLIO 2.0.0 (e1919d7)): 60 %; the other 40 %: read" in text
    assert main(["report", str(path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (epoch,) = run["digests"]["epochs"]
    assert epoch["digest"] in text
    (block,) = run["mlperf_utilisation"]["stretches"]
    assert block["missing_ns"] == {"read": 8 * MS}
    assert (block["total_ns"], block["compute_ns"]) == (20 * MS, 12 * MS)


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "both" / "a", [0])
    made(tmp_path / "both" / "b", [0])
    for arguments, message in (
        ([a], "expected 2 to 8 runs, got 1"),
        ([a] * 9, "expected 2 to 8 runs, got 9"),
        ([a, tmp_path / "none"], "is no directory"),
    ):
        assert main(["compare", *map(str, arguments)]) == 1
        assert message in capsys.readouterr().err


def test_scripts_are_asked_for_digests_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _wants_digests()
    with record(tmp_path / "run", digests=True) as recording:
        assert recording.digests
        assert _wants_digests()  # and so do processes that are started now
    assert not _wants_digests()
    assert RunDirectory.open(tmp_path / "run").config["digests"] is True
    monkeypatch.setenv(RUN_DIGESTS, "1")
    assert _wants_digests()


def test_loaders_that_keep_no_digests_say_so(tmp_path: Path) -> None:
    with record(tmp_path / "run", digests=True) as recording:
        assert recording.add_loader("torch", "DataLoader", "x").unseen == []
        assert recording.add_loader("tensorflow", "Dataset", "x").unseen == [
            "digests: of PyTorch's loaders only"
        ]
