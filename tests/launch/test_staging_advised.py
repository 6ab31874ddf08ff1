"""Staging advised on a script that reads slow storage of known latency, and obtained."""

from __future__ import annotations

import shlex
import sys

import numpy as np
import pytest

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.proposals import Reason

pytest.importorskip("torch", reason="a loader of torch's reads the files")
pytestmark = pytest.mark.timeout(240)

TRAIN = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import torch

    class Samples(torch.utils.data.Dataset):
        def __init__(self, folder):
            self.files = sorted(Path(folder).glob("*.npy"))

        def __len__(self):
            return len(self.files)

        def __getitem__(self, k):
            return torch.from_numpy(np.load(self.files[k]))

    workers, epochs, step = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    loader = torch.utils.data.DataLoader(Samples(sys.argv[1]), 2, num_workers=workers)
    weight = torch.nn.Parameter(torch.zeros(1))
    for epoch in range(epochs):
        for batch in loader:
            (weight * batch.float().mean()).sum().backward()
            time.sleep(step)
"""


def filled(folder, n_files, nbytes):
    generator = np.random.default_rng(0)
    for number in range(n_files):
        np.save(folder / f"{number:03}.npy", generator.integers(0, 255, nbytes, dtype=np.uint8))
    return folder


def advice_on(run, **options):
    rank = Run(run).of_rank()
    found = advice_of([loading_of(rank, recorded_runs(rank))], **options)
    assert found is not None
    return found


def staging(advice):
    changes = (*advice.changes, *advice.to_measure)
    return next((each for each in changes if "stage" in each.settings), None)


def why_not(advice):
    return next((each.reason for each in advice.ruled_out if "stage" in each.settings), None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "n_files", "nbytes", "step", "latency_s"),
    [(0, 8, 40_000, 0.02, 0.02), (2, 16, 300_000, 0.01, 0.03)],
)
def test_staging_is_advised_and_obtains_what_was_predicted(
    launch, script, slow_storage, tmp_path, workers, n_files, nbytes, step, latency_s
):
    far = filled(slow_storage(latency_s=latency_s), n_files, nbytes)
    path = script(TRAIN)
    command = [sys.executable, path, far, workers, 3, step]
    assert launch(*command, out=tmp_path / "far", detail="sample").code == 0
    advice = advice_on(tmp_path / "far", epochs=1000)
    change = staging(advice)
    assert change is not None, [(e.title, e.sentence) for e in advice.ruled_out]
    near = tmp_path / "near"
    near.mkdir()
    filled(near, n_files, nbytes)
    command[2] = near
    assert launch(*command, out=tmp_path / "near-run", detail="sample").code == 0
    before, after = (Run(tmp_path / each).of_rank().exposure.judged for each in ("far", "near-run"))
    # By what is waited less: a busy machine may have computed longer in one of both.
    obtained = (before.wait_ns - after.wait_ns) / before.wall_ns
    print(f"predicted {change.saved_fraction}, obtained {obtained}")
    assert abs(obtained - change.saved_fraction) < 0.2
    assert change.commands[0] == shlex.join(
        ["iobench", "stage", str(far), "--to", change.settings["stage"]]
    )
    # Of a training of so few epochs it is not.
    least = change.break_even.epochs
    assert why_not(advice_on(tmp_path / "far", epochs=max(1, int(least)))) is (
        Reason.TOO_FEW_EPOCHS if least >= 1 else None
    )
    assert why_not(advice_on(tmp_path / "near-run")) is Reason.NEAR_ALREADY
