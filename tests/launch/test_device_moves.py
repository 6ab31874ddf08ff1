"""What a script moves to a device, under ``iobench run``, without a change to it."""

from __future__ import annotations

import sys

import pytest

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from tests.support.run_json import to_json

pytest.importorskip("torch", reason="its tensors are what is moved")
pytestmark = pytest.mark.timeout(240)

TRAINING = """
    import sys
    import torch

    if "meta" in sys.argv:
        # The one thing that no script does: torch's ``meta`` counts as a device.
        import iobench.torch.device_moves
        iobench.torch.device_moves.counts_meta = True

    if __name__ == "__main__":
        torch.manual_seed(0)
        place = torch.device(sys.argv[1])
        torch.nn.Linear(64, 64).to(place)
        data = torch.utils.data.TensorDataset(torch.ones(24, 1000), torch.ones(24))
        model = torch.nn.Linear(1000, 1)
        model.train()
        for epoch in range(2):
            for x, y in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
                x.to(place), y.float().to(place)
                loss = (model(x).squeeze() - y).pow(2).mean()
                model.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for each in model.parameters():
                        each -= 1e-4 * each.grad
        print(float(loss), torch.rand(1).item())
"""


@pytest.mark.long
def test_copies_are_spans_of_their_batches_and_the_script_is_the_same(script, launch, plainly):
    train = script(TRAINING)
    alone = plainly(sys.executable, train, "meta")
    told = launch(sys.executable, train, "meta")
    assert told.out == alone.stdout
    profile = told.profile
    moves = profile.spans[profile.spans["kind"] == Kind.H2D]
    assert moves["nbytes"].tolist() == [4 * 1000 * 4, 4 * 4] * 12
    assert moves["batch"].tolist() == [batch for batch in range(12) for _ in range(2)]
    assert {profile.strings[label] for label in moves["label"]} == {""}
    (run,) = to_json([Run(told.run)])["runs"]
    (row,) = [each for each in run["compute_stages"] if each["stage"] == "h2d"]
    assert row["busy_ns"] > 0
