"""Runs a trainer with the clock of Lightning: ``clocked_trainer.py MODULE|COMMAND ARGUMENT...``.

Writes ``clock.json``, the seconds of all that its profiler knows, and of validations.
"""

import importlib.util
import json
import runpy
import sys
from pathlib import Path


def import_torchvision():
    """Import it where that can be: PyPI's wheel finds no operators beside a CPU build of torch."""
    import torch

    try:
        import torchvision  # noqa: F401
    except ImportError:
        return None
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        known = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            known.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return known


def clock_lightning():
    """Return what Lightning's profiler records of all trainers made from now on."""
    from pytorch_lightning import Trainer
    from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop
    from pytorch_lightning.profilers import SimpleProfiler

    clock, make, validate = SimpleProfiler(), Trainer.__init__, _EvaluationLoop.run

    def made(self, *args, **options):
        make(self, *args, **{**options, "profiler": clock})

    def validated(self):
        with clock.profile("validation"):
            return validate(self)

    Trainer.__init__, _EvaluationLoop.run = made, validated
    return clock.recorded_durations


if __name__ == "__main__":
    kept = import_torchvision()
    clock = clock_lightning() if importlib.util.find_spec("pytorch_lightning") else None
    sys.argv[:] = sys.argv[1:]
    sys.path[0] = str(Path.cwd())
    module = sys.argv[0].removesuffix(".py").replace("anemoi-training", "anemoi.training")
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if clock is not None:
            Path("clock.json").write_text(json.dumps(clock))
