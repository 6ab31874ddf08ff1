"""A library of somebody else is timed inside torch's workers, by rows of its own package."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

THIRD_PARTY = Path(__file__).parent / "third_party"
SCRIPT = """
import torch
from third_party_records import RecordFile, unpack

class Records(torch.utils.data.Dataset):
    file = None
    def __len__(self):
        return 8
    def __getitem__(self, number):
        self.file = self.file or RecordFile("records.bin")
        return torch.frombuffer(bytearray(unpack(self.file.fetch(number))), dtype=torch.uint8)

total = 0
for batch in torch.utils.data.DataLoader(Records(), batch_size=2, num_workers=2):
    total += int(batch.sum())
print(total)
"""


@pytest.mark.timeout(120)
def test_reads_of_another_librarys_format_are_stages(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script trains with torch")
    values = [np.full(50_000, number, np.uint8).tobytes() for number in range(8)]
    records = b"".join(zlib.compress(each).ljust(4096, b"\0") for each in values)
    (tmp_path / "records.bin").write_bytes(records)
    (tmp_path / "train.py").write_text(SCRIPT)
    iobench = [sys.executable, "-m", "iobench", "run", "--out", "run"]
    command = [*iobench, "--", sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(THIRD_PARTY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(50_000 * sum(range(8)))]
    spans = open_profile(tmp_path / "run").spans
    read, decoded = (spans[spans["kind"] == kind] for kind in (Kind.READ, Kind.DECODE))
    assert read["nbytes"].tolist().count(4096) == 8
    assert decoded["nbytes"].tolist() == 8 * [50_000]
    assert (decoded["cpu_ns"] > 0).all()
