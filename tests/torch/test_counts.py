"""Counts of torch's DataLoader: the same each time, and by any number of workers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

import iobench
from iobench.analysis.run import Run
from iobench.findings.counts import counts_of
from iobench.torch import DataLoader

pytestmark = pytest.mark.timeout(60)
N_SAMPLES, NBYTES = 24, 4096


class Files(torch.utils.data.Dataset):
    """Opens a file for each sample and reads it, more than once where asked to."""

    def __init__(self, folder, times=1):
        self.folder, self.times = folder, times

    def __len__(self):
        return N_SAMPLES

    def __getitem__(self, index):
        for _ in range(self.times):
            data = (self.folder / f"{index}.bin").read_bytes()
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def counts(path, dataset, workers, seed=0, *, stop=99):
    loader = DataLoader(
        dataset, batch_size=4, num_workers=workers, shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    with iobench.record(path, detail="sample", digests=True):
        for number, _ in enumerate(loader):
            if number == stop:
                break
    return counts_of(Run(iobench.open_profile(path)))


@pytest.fixture
def files(tmp_path):
    for index in range(N_SAMPLES):
        (tmp_path / f"{index}.bin").write_bytes(bytes([index]) * NBYTES)
    return tmp_path


@pytest.mark.thorough
def test_counts_are_those_of_any_run_by_any_number_of_workers(files):
    pytest.importorskip("xxhash", reason="digests need it")
    serial = counts(files / "r0", Files(files), 0)
    used = N_SAMPLES * NBYTES
    assert (serial.exact["opens"], serial.exact["samples"]) == (N_SAMPLES, N_SAMPLES)
    assert {serial.exact[f"{what}_nbytes"] for what in ("read", "used")} == {used}
    for number, workers in enumerate((1, 2, 2)):
        found = counts(files / f"r{number + 1}", Files(files), workers)
        assert found.exact == serial.exact
    other_order = counts(files / "order", Files(files), 0, seed=1).exact
    digests = {name for name in other_order if name.startswith("digests/")}
    assert {name for name, each in serial.exact.items() if other_order[name] != each} == digests
    twice = counts(files / "twice", Files(files, times=2), 2)
    assert twice.exact["opens"] == 2 * N_SAMPLES
    digests = [name for name in serial.exact if name.startswith("digests/")]
    assert digests
    assert [twice.exact[name] for name in digests] == [serial.exact[name] for name in digests]


def test_what_workers_made_ahead_is_not_counted(files):
    pytest.importorskip("xxhash", reason="digests need it")
    one = counts(files / "one", Files(files), 0, stop=2)
    ahead = counts(files / "ahead", Files(files), 2, stop=2)
    assert one.exact["batches"] == 3
    assert ahead.exact == one.exact
