"""Steps of several batches, under ``iobench run``: as a script is told, or as its optimiser steps.

Sleeps are the truth, as a least: how much longer a busy machine makes them is not asked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from iobench.analysis.run import Run
from iobench.findings.compare import compare_runs
from iobench.report.json_report import to_json
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("torch", reason="it is torch's loader that is asked")
pytestmark = pytest.mark.timeout(240)

WGAN = """
    import sys, time
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, i):
            time.sleep(0.001)
            return torch.zeros(16)

    if __name__ == "__main__":
        batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=2))
        for _step in range(20):
            for _critic in range(5):
                next(batches)
                time.sleep(0.004)
            next(batches)
            time.sleep(0.01)
"""
STEP_NS = (5 * 4 + 10) * 1_000_000


def text_of(path: Any) -> str:
    return " ".join(TerminalRenderer().render(report_document([Run(path)])).split())


@pytest.mark.thorough
def test_a_loop_without_an_optimiser_is_told_its_steps_or_has_none(
    script: Callable[..., Any], launch: Callable[..., Any], tmp_path: Any
) -> None:
    train = script(WGAN)
    told = launch(sys.executable, train, batches_per_step=6)
    (run,) = to_json([Run(told.run)])["runs"]
    steps = run["optimizer_steps"]
    assert (steps["steps"], steps["batches_per_step"], steps["known_by"]) == (20, 6, "option")
    # When the last of them was over nobody knows: its batches live on with the process.
    assert run["time_per_step"]["n_steps"] >= 19
    assert run["time_per_step"]["min_s"] * 1e9 >= STEP_NS
    assert run["wait_per_step"]["n_steps"] == 20
    assert run["batches"] == 120
    waited = [sum(run["waits_ns"][place : place + 6]) for place in range(0, 120, 6)]
    assert run["wait_per_step"]["max_s"] == max(waited) / 1e9
    assert run["wait_per_step"]["mean_s"] * 1e9 == pytest.approx(sum(waited) / 20, abs=1)
    assert sum(each["exposed_s"] for each in run["stages"]) == pytest.approx(run["wait_ns"] / 1e9)
    found = text_of(told.run)
    assert "20 steps of 6 batches, as given by --batches-per-step" in found
    assert "Wait per step of 6 batches" in found
    assert "A step waits" in found

    untold = launch(sys.executable, train, out=tmp_path / "untold")
    (run,) = to_json([Run(untold.run)])["runs"]
    assert run["optimizer_steps"]["batches_per_step"] is None
    assert run["time_per_step"] is None
    assert run["wait_per_step"]["n_steps"] == run["batches"]
    found = text_of(untold.run)
    assert "How many batches one optimiser step takes is unknown" in found
    assert "Wait per batch" in found
    assert "A batch waits" in found
    assert "A step waits" not in found

    for other, per in ((untold.run, "batch"), (told.run, "step")):
        (pair,) = compare_runs([told.run, other]).comparisons
        (step,) = (each for each in pair.figures if each.figure == "step_ns")
        assert step.per == per
    assert step.values[0] >= STEP_NS


COLLECTED = """
    import time
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x):
            time.sleep(0.004)
            return self.layer(x)

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(40, 8))
    for _epoch in range(2):
        net.train()
        for number, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=2), 1):
            net(x).sum().backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    torch.save(net, "model.pt")
"""


@pytest.mark.long
def test_a_script_that_collects_gradients_and_saves_its_model(
    script: Callable[..., Any],
    launch: Callable[..., Any],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = launch(sys.executable, script(COLLECTED))
    assert told.code == 0
    assert b"iobench" not in (tmp_path / "model.pt").read_bytes()
    (run,) = to_json([Run(told.run)])["runs"]
    steps = run["optimizer_steps"]
    assert (steps["steps"], steps["batches_per_step"], steps["known_by"]) == (10, 4, "optimizer")
    spent = {row["stage"]: row for row in run["compute_stages"]}
    assert {"forward", "backward", "step"} <= spent.keys()
    assert spent["forward"]["busy_s"] >= 40 * 0.004
    assert spent["forward"]["per_step_s"] >= 4 * 0.004
    # A checkpoint lies outside of the passes.
    parts = [row["busy_s"] for row in run["compute_stages"] if row["stage"] != "checkpoint"]
    assert sum(parts) <= run["compute_s"]


OWN_CLASSES = """
    import io, pickle
    import cloudpickle, torch

    class Doubled(torch.nn.Module):
        def __call__(self, x):
            return 2 * super().__call__(x)

    class Plain(torch.nn.Module):
        def forward(self, x):
            return x + 1

    class Both(Plain, Doubled):
        pass

    Plain().train()
    both = Both()
    both.train()
    copy = pickle.loads(cloudpickle.dumps(both))
    print(both(torch.ones(1)).item(), copy(torch.ones(1)).item(), Plain()(torch.ones(1)).item())

    @torch.compile(fullgraph=True, backend="eager")
    def evaluated(x):
        both.eval()
        return x + 1

    print(evaluated(torch.ones(1)).item())
"""


@pytest.mark.long
def test_classes_of_models_work_pickle_and_compile_as_they_did(
    script: Callable[..., Any], launch: Callable[..., Any]
) -> None:
    pytest.importorskip("cloudpickle", reason="pickles classes of a script by value")
    found = launch(sys.executable, script(OWN_CLASSES))
    assert found.code == 0, found.err
    assert found.out.split() == ["4.0", "4.0", "2.0", "2.0"]
