"""Training scripts as people write them, run by ``iobench run`` without a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parent / "scripts"
IOBENCH = [sys.executable, "-c", "from iobench.cli import main; raise SystemExit(main())", "run"]


def run_both(
    command: list[str], folder: Path, *, quiet: bool = True
) -> tuple[list[tuple[str, str, int]], dict[str, Any]]:
    """Run a script without and with iobench; return its loaders with their batches, and the JSON.

    Its output, its exit code and, where libraries log nothing there, its stderr must be the same.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "SLURM_JOB_NAME": "bash"}
    plain, seen = (
        subprocess.run(
            [*options, *command], cwd=folder, env=environment, capture_output=True, text=True
        )
        for options in ([], [*IOBENCH, "--out", "run", "--json", "told.json", "--"])
    )
    assert plain.returncode == 0, plain.stderr
    assert (seen.returncode, seen.stdout) == (0, plain.stdout), seen.stderr
    assert "Exposed I/O: " in seen.stderr
    if quiet:
        assert plain.stderr in seen.stderr
    profile = open_profile(folder / "run")
    spans, strings = profile.spans, profile.strings
    rounds = {
        int(span["sample"]): strings[span["detail"]]
        for span in spans[spans["kind"] == Kind.OTHER]
        if strings[span["label"]] == "round"
    }
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    of = [rounds[number] for number in waits["sample"].tolist()]
    (told,) = [f for f in read_process_facts(folder / "run" / "processes") if f.loaders]
    assert told.unseen == []
    loaders = [
        (each.framework, each.name, of.count(f"loader-{each.number}")) for each in told.loaders
    ]
    kinds = {Kind(kind) for kind in spans["kind"].tolist()}
    return loaders, {"kinds": kinds, "json": json.loads((folder / "told.json").read_text())}


def test_a_plain_pytorch_loop(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script trains with PyTorch")
    script = str(SCRIPTS / "torch_forecast.py")
    loaders, found = run_both([sys.executable, script, "--epochs", "2"], tmp_path)
    assert loaders == [("torch", "Fields", 32)]
    wanted = {Kind.OPEN, Kind.READ, Kind.FUSED, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE}
    assert wanted | {Kind.SAMPLER, Kind.CHECKPOINT} <= found["kinds"]


def test_keras_fit_on_tf_data(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="the script trains with Keras")
    pytest.importorskip("keras", reason="the script trains with Keras")
    script = str(SCRIPTS / "keras_nowcast.py")
    loaders, found = run_both([sys.executable, script], tmp_path, quiet=False)
    ((framework, name, n_batches),) = loaders
    assert (framework, n_batches) == ("tensorflow", 64)
    assert "TFRecord" in name
    assert Kind.READ in found["kinds"]


def test_a_lightning_trainer(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the script trains with Lightning")
    script = str(SCRIPTS / "lightning_downscaling.py")
    loaders, found = run_both([sys.executable, script], tmp_path, quiet=False)
    assert sorted(n_batches for _, _, n_batches in loaders) == [2 * 2 + 2, 2 * 16]
    assert {Kind.FORWARD, Kind.BACKWARD, Kind.STEP, Kind.CHECKPOINT} <= found["kinds"]


TRAINER = """
import torch
from torch.utils.data import TensorDataset
from transformers import PrinterCallback, Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)

    def forward(self, x, labels):
        made = self.linear(x)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(made, labels), "made": made}

def collate(samples):
    x = torch.stack([sample[0] for sample in samples])
    return {"x": x, "labels": x.sum(1)}

torch.manual_seed(0)
options = TrainingArguments(
    "out", per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=2,
    dataloader_num_workers=1, eval_strategy="epoch", save_strategy="epoch",
    logging_strategy="no", disable_tqdm=True, use_cpu=True, report_to=[], seed=3,
)
trainer = Trainer(
    Model(), options, data_collator=collate,
    train_dataset=TensorDataset(torch.randn(24, 3)), eval_dataset=TensorDataset(torch.randn(8, 3)),
)
trainer.remove_callback(PrinterCallback)  # prints how long it took
told = trainer.train()
print(told.global_step, told.training_loss, trainer.state.best_metric)
print(trainer.model.linear.weight.tolist(), torch.rand(1).item())
"""


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the script trains with Hugging Face's Trainer")
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs it")
    (tmp_path / "train.py").write_text(TRAINER)
    loaders, found = run_both([sys.executable, "train.py"], tmp_path, quiet=False)
    # The trainer makes a loader for each evaluation.
    assert sorted(n_batches for _, _, n_batches in loaders) == [2, 2, 12]
    wanted = {Kind.SAMPLER, Kind.FUSED, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE}
    assert wanted | {Kind.CHECKPOINT} <= found["kinds"]
