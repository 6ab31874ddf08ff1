"""``iobench simulate`` as users call it: its sentences, its numbers, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

MS = 1_000_000
NBYTES = 4_000_000
READ, DECODE, STEP = 10 * MS, 5 * MS, 25 * MS


def write_run(path: Path, *, n_batches: int = 40, ranks: int = 1, **config: object) -> Path:
    """Write a run whose training loop loads every batch itself: 15 ms before a step of 25 ms."""
    settings = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 2}
    directory = RunDirectory.create(
        path, {**settings, "framework": "workers", "n_samples": 1000, **config}
    )
    for rank in range(ranks):
        recorder = directory.recorder(role="consumer", rank=rank, clock=FakeClock(1000))
        maker = recorder.string("consumer")
        now = 0
        for batch in range(n_batches):
            read, held = now + READ, now + READ + DECODE
            recorder.emit(Kind.READ, now, read, nbytes=NBYTES, batch=batch, epoch=0, sample=0)
            recorder.emit(Kind.DECODE, read, held, nbytes=NBYTES, batch=batch, epoch=0, sample=0)
            recorder.emit(Kind.WAIT, now, held, nbytes=NBYTES, batch=batch, epoch=0, detail=maker)
            now = held + STEP
        # Reads of nothing that was trained on: a module, and what a killed run had asked for.
        for batch in (-1, n_batches):
            recorder.emit(Kind.READ, now, now, batch=batch, epoch=0 if batch >= 0 else -1)
        recorder.emit(Kind.WAIT, now, now, label=recorder.string("shutdown"))
        recorder.emit(Kind.OTHER, 0, now, sample=0, label=recorder.string("round"))
        recorder.close()
    return directory.path


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate few steps: every batch of these runs is the same."""
    monkeypatch.setattr("iobench.findings.scaling.job_simulation.MOST_STEPS", 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("measured") / "run")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Return what is printed, on one line."""
    assert main(["simulate", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["simulate", *map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_it_says_where_storage_saturates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--ranks", "1,8,16", "--storage-bandwidth", "1GB/s"]
    assert main(["simulate", str(run), *arguments]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[0] == "run: 1 rank measured, batches of 2, the training loop loads"
    assert lines[2] == "Storage saturates at 10 ranks: bandwidth."
    assert lines[5].split()[:3] == ["ranks", "samples/s", "spread"]
    first, last = lines[7].split(), lines[9].split()
    assert (first[0], first[1], first[3:5]) == ("1", "50.0", ["100", "%"])
    # 16 x 4 ms to read, 5 to decode, a step of 25: 94 ms, of which 69 are exposed.
    assert (last[0], last[1], last[2]) == ("16", "<=", "340")
    assert ">= 73 %" in lines[9]
    assert "68 %" in lines[9]
    output = " ".join(output.split())
    for words in (
        "drawn from 39",
        "25.0 ms besides loading",
        "Communication that the run did not have is not included",
        "A sample takes 2.00 MB from storage, in 1 read",
        "It was not counted whether the run read from storage",
        "Beyond 8 ranks",
        "For the measured run, the model's step is 0 % shorter.",
        "With 16 ranks an epoch of 2.00 GB takes 2.94 s; storage needs 2.00 s to read it.",
    ):
        assert words in output


def test_the_numbers_are_in_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, run, "--ranks", "2,20", "--storage-iops", "0.5k/s")
    assert document["schema_version"] == 1
    assert document["saturation"] == {"ranks": 10, "by": "reads"}
    assert document["verdict"] == ["Storage saturates at 10 ranks: reads."]
    assert document["measured"]["rule"] == "serial"
    assert document["measured"]["step_ns"] == 40 * MS
    assert document["model_error_fraction"] == pytest.approx(0)
    two, many = document["first_epoch"]
    assert two["step_ns"] == 40 * MS
    assert two["exposed_fraction"]["median"] == pytest.approx(15 / 40)
    assert two["samples_per_s"]["median"] == pytest.approx(4 / 0.04)
    assert not two["is_bound"]
    assert many["step_ns"] == (80 + 5 + 25) * MS
    assert many["reads_per_s"] == pytest.approx(40 / 0.11)


def test_efficiency_is_over_one_rank(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, run, "--ranks", "9", "--storage-bandwidth", "100MB/s")
    assert document["first_epoch"][0]["efficiency"] == pytest.approx(70 / 390)
    output = printed(capsys, run, "--ranks", "1")
    assert "No storage limit is given" in output
    assert "With 1 rank an epoch of 2.00 GB takes" in output
    output = printed(capsys, run, "--ranks", "600")
    assert "A step of 600 ranks takes 1,200 samples, more than the" in output
    output = printed(capsys, run, "--ranks", "20", "--storage-bandwidth", "1kB/s")
    assert "> 99.9 %" in output
    assert ">= >" not in output
    assert "<= <" not in output


def test_a_job_of_several_ranks_is_one_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_run(tmp_path / "job", ranks=3)
    document = told(capsys, job, "--ranks", "24,25")
    assert document["measured"]["ranks"] == document["measured"]["ranks_looked_at"] == 3
    assert document["measured"]["batches"] == 117
    assert [point["is_bound"] for point in document["first_epoch"]] == [False, True]
    assert "The batches come from 3 ranks of the job" in printed(capsys, job)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--ranks", "0"], "--ranks 0: expected numbers from 1 to 16384"),
        (["--ranks", "4..1"], "--ranks 4..1: expected numbers"),
        (["--ranks", "1..1000000"], "--ranks 1..1000000: expected numbers"),
        (["--ranks", "some"], "--ranks some: expected numbers"),
        (["--ranks", ""], "--ranks : expected numbers"),
        (["--storage-bandwidth", "fast"], "expected bytes per second such as 100GB/s"),
        (["--storage-bandwidth", "0"], "expected bytes per second"),
        (["--storage-bandwidth", "100Gb/s"], "is in bits; expected bytes per second"),
        (["--storage-iops", "0"], "--storage-iops 0: expected reads per second"),
        (["--storage-iops", "1X"], "--storage-iops 1X: expected reads per second"),
        (["--reads-per-sample", "0"], "--reads-per-sample 0: expected more than 0"),
        (["--reads-per-sample", "1e10"], "expected more than 0, at most 1e9"),
        (["--reads-per-sample", "nan"], "--reads-per-sample nan: expected more than 0"),
        (["--bytes-per-sample", "0"], "--bytes-per-sample 0: expected a size"),
    ],
)
def test_bad_options_get_one_line(
    run: Path, options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(run), *options]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert error in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"n_batches": 0}, "no loader delivered a batch"),
        ({"n_batches": 1}, "has 1 batch, expected at least 2"),
    ],
)
def test_runs_that_say_too_little_get_one_line(
    tmp_path: Path,
    settings: dict[str, Any],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = write_run(tmp_path / "run", **settings)
    assert main(["simulate", str(run), "--ranks", "2"]) == 1
    assert error in capsys.readouterr().err


def test_a_loader_that_nobody_saw_inside_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path / "run", {"framework": "dali", "batch_size": 2})
    recorder = directory.recorder(role="consumer", clock=FakeClock(1000))
    for batch in range(9):
        start = batch * 20 * MS
        recorder.emit(Kind.WAIT, start, start + MS, nbytes=NBYTES, batch=batch)
    recorder.emit(Kind.OTHER, 0, 200 * MS, sample=0, label=recorder.string("round"))
    recorder.close()
    assert main(["simulate", str(directory.path)]) == 1
    error = capsys.readouterr().err
    assert "cannot be simulated on more ranks" in error
    assert "expected a loader that iobench sees inside" in error
    assert "the spans of all its workers" in error


def test_several_runs_are_refused_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("numpy", "zarr"):
        write_run(tmp_path / "both" / name)
    assert main(["simulate", str(tmp_path / "both")]) == 1
    error = capsys.readouterr().err
    assert "holds several runs; expected one of" in error
    assert str(tmp_path / "both" / "zarr") in error
    assert main(["simulate", str(tmp_path / "nothing")]) == 1
    assert "is no directory" in capsys.readouterr().err


def limits_of(*, served_by: str = "server", request_nbytes: int = 1_000_000) -> dict[str, Any]:
    """Return what a probe found: 1 GB/s from 8 readers, 400 MB/s from one."""
    read = {
        "way": "direct", "n_reads": 100, "nbytes": 10**8,
        "latency_ns": [1, 1, 1, 1], "resident_fraction": None, "device_nbytes": None,
        "served_by": served_by, "refused": "",
    }  # fmt: skip
    reads = [
        {**read, "threads": 1, "wall_ns": 250_000_000},
        {**read, "threads": 8, "wall_ns": 100_000_000},
    ]
    return {
        "version": 1, "path": "/scratch", "mount": "/scratch", "host": "a", "file_system": "lustre",
        "reach": "network", "wall_ns": 1, "like": "", "request_nbytes": request_nbytes,
        "n_files": 1, "files_nbytes": 10**8, "reads": reads,
        "spent_ns": 1, "read_nbytes": 10**8, "notes": [],
    }  # fmt: skip


def test_a_measured_limit_bounds_from_both_sides_beyond_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", storage_limits=[limits_of()])
    options = ["--ranks", "1,8,16", "--storage-bandwidth", "measured"]
    text = printed(capsys, run, *options)
    assert (
        "Nothing was measured beyond 8 readers: from 9 ranks on, storage may deliver more"
    ) in text
    assert (
        "If it delivers no more than was measured: storage saturates at 10 ranks: "
        "bandwidth." in text
    )
    document = told(capsys, run, *options)
    limit = document["measured_limit"]
    assert (limit["bytes_per_s"], limit["readers"]) == (1e9, 8)
    last = document["first_epoch"][-1]
    # As of 1GB/s (the first test) at the least, and 2 samples in 40 ms of each rank at the most.
    assert last["samples_per_s"]["median"] == pytest.approx(340, rel=0.02)
    assert last["free_samples_per_s"] == pytest.approx(16 * 50)
    plain = printed(capsys, run, "--ranks", "1,16", "--storage-bandwidth", "1GB/s")
    assert "Nothing was measured" not in plain
    assert "If it delivers no more" not in plain


def test_reads_that_are_smaller_than_those_of_the_probe_are_bounded_by_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", storage_limits=[limits_of(request_nbytes=4_000_000)])
    storage = told(capsys, run, "--ranks", "1", "--storage-bandwidth", "measured")["storage"]
    assert (storage["bytes_per_s"], storage["reads_per_s"]) == (None, 1000.0)


@pytest.mark.parametrize("limits", [[], [limits_of(served_by="page cache")]])
def test_a_run_without_limits_of_its_storage_has_none_to_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: list[Any]
) -> None:
    run = write_run(tmp_path / "run", storage_limits=limits)
    assert main(["simulate", str(run), "--storage-bandwidth", "measured"]) == 1
    assert "--limits 10" in capsys.readouterr().err
