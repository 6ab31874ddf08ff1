"""Training scripts as people write them, run by ``iobench run`` without a change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parent / "scripts"
IOBENCH = [sys.executable, "-c", "from iobench.cli import main; raise SystemExit(main())", "run"]
TORCH = (
    Kind.OPEN, Kind.READ, Kind.FUSED, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE, Kind.SAMPLER,
    Kind.CHECKPOINT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "script", "options", "name", "n_batches", "kinds"),
    [
        ("torch", "torch_forecast.py", ("--epochs", "2"), "Fields", 32, TORCH),
        ("tensorflow", "keras_nowcast.py", (), "TFRecord", 64, (Kind.READ,)),
    ],
)
def test_a_script_is_the_same_and_its_batches_are_seen(
    tmp_path: Path,
    framework: str,
    script: str,
    options: tuple[str, ...],
    name: str,
    n_batches: int,
    kinds: Iterable[Kind],
) -> None:
    pytest.importorskip(framework, reason="the script trains with it")
    pytest.importorskip("torch" if framework == "torch" else "keras", reason="the script's own")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "SLURM_JOB_NAME": "bash"}
    command = [sys.executable, str(SCRIPTS / script), *options]
    plain, seen = (
        subprocess.run(
            [*before, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        for before in ([], [*IOBENCH, "--out", "run", "--"])
    )
    assert plain.returncode == 0, plain.stderr
    assert (seen.returncode, seen.stdout) == (0, plain.stdout), seen.stderr
    assert "Exposed I/O: " in seen.stderr
    if framework == "torch":  # TensorFlow logs there, each time something else
        assert plain.stderr in seen.stderr
    spans = open_profile(tmp_path / "run").spans
    assert ((spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)).sum() == n_batches
    (told,) = [each for each in read_process_facts(tmp_path / "run" / "processes") if each.loaders]
    assert told.unseen == []
    ((found, shown),) = [(each.framework, each.name) for each in told.loaders]
    assert found == framework
    assert name in shown
    assert {*kinds} <= {Kind(kind) for kind in spans["kind"].tolist()}
