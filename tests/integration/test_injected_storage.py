"""What is said of storage is what was injected: latency, jitter, bandwidth, opens a second.

The emulation is ``tests/emulated_storage``. What a machine that is busy adds only makes reads
longer, so lower bounds are exact and upper ones generous; a folder of the same emulation without
any of it is held against each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main

KIB, MIB = 1 << 10, 1 << 20


def _limits(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Return what ``iobench limits`` found, as JSON and as text."""
    capsys.readouterr()
    assert main(["limits", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["limits", str(folder)]) == 0
    return told, " ".join(capsys.readouterr().out.split())


def _files(folder: Path, n: int, nbytes: int) -> None:
    for number in range(n):
        (folder / f"{number:03}.bin").write_bytes(bytes(nbytes))


def _reads(told: Any) -> list[Any]:
    found = [each for each in told["reads"] if each["n_reads"]]
    assert found, told["reads"]
    return found


@pytest.mark.long
def test_the_latency_and_its_evenness_are_those_injected(
    slow_storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: 20 ms for each read, by several threads at once."""
    folder = slow_storage(latency_s=0.02)
    _files(folder, 8, MIB)
    told, said = _limits(folder, capsys)
    assert all(20e6 <= each["latency_ns"][0] < 60e6 for each in _reads(told))
    assert "fuse.slow" in said


def test_fast_storage_of_the_same_kind_is_told_as_fast(
    slow_storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = slow_storage()
    _files(folder, 8, MIB)
    told, _ = _limits(folder, capsys)
    assert min(each["latency_ns"][0] for each in _reads(told)) < 15e6
    assert max(each["bytes_per_s"] for each in _reads(told)) > 20 * MIB


@pytest.mark.long
def test_bandwidth_is_that_injected_however_many_read(
    slow_storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: 20 MiB a second for all together."""
    folder = slow_storage(nbytes_per_s=20 * MIB)
    _files(folder, 8, 4 * MIB)
    told, _ = _limits(folder, capsys)
    # A first read of several at once is not waited for: it is in the count, not in the time.
    assert all(each["bytes_per_s"] < 30 * MIB for each in _reads(told))
    assert max(each["bytes_per_s"] for each in _reads(told)) > 8 * MIB


@pytest.mark.long
def test_jitter_is_said_and_steady_storage_is_not_called_uneven(
    slow_storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: 1 ms and an exponential time of 4 ms on top, one in a hundred of 18 ms."""
    uneven = slow_storage(latency_s=0.001, jitter_s=0.004)
    _files(uneven, 4, 8 * MIB)
    told, said = _limits(uneven, capsys)
    most = max(_reads(told), key=lambda each: each["n_reads"])
    assert most["n_reads"] >= 100
    assert most["latency_ns"][2] > 3 * most["latency_ns"][0]
    assert "Read times vary widely:" in said

    steady = slow_storage(latency_s=0.05)  # what a busy machine adds is little beside it
    _files(steady, 4, 8 * MIB)
    _, said = _limits(steady, capsys)
    assert "unequally" not in said


SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __init__(self):
        self.files = sorted(Path(sys.argv[1]).glob("*.bin"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, number):
        with open(self.files[number], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

if __name__ == "__main__":
    for _ in DataLoader(Samples(), batch_size=4):
        time.sleep(0.002)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("slow", "nbytes", "is_open"),
    [
        pytest.param({"opens_per_s": 40}, 4 * KIB, True, id="opens"),
        pytest.param({"nbytes_per_s": 4 * MIB}, 512 * KIB, False, id="bandwidth"),
    ],
)
def test_a_report_says_whether_opening_or_reading_takes_the_time(
    slow_storage: Any,
    tmp_path: Path,
    iobench: Any,
    slow: dict[str, float],
    nbytes: int,
    is_open: bool,
) -> None:
    """Known truth: 25 ms an open of many small files; or 125 ms for the bytes of a larger one.

    To pack the files is what is advised first against opens.
    """
    pytest.importorskip("torch", reason="the script loads with its DataLoader")
    folder = slow_storage(**slow)
    _files(folder, 32, nbytes)
    (tmp_path / "train.py").write_text(SCRIPT)
    done = iobench("run", "--out", "run", "--", sys.executable, "train.py", folder)
    assert done.returncode == 0, done.stderr
    report = " ".join(iobench("report", "run", "--full").stdout.split())
    assert ("most of all for open" in report) == is_open, report
    if is_open:
        advice = " ".join(iobench("advise", "run").stdout.split())
        assert "finished samples" in advice[advice.index(" 1. ") :][:100]
