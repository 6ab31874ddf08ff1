"""A callback for PyTorch Lightning: the parts of each step, epochs, validation, checkpoints.

Lightning asks whether a callback is one of its own, so that the class is made when it is asked
for, below the ``Callback`` of the Lightning that the script uses: ``lightning``,
``pytorch_lightning``, or both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from iobench.errors import MissingExtraError
from iobench.recording.activation import active_recorder
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording, record
from iobench.recording.span_file import Flag
from iobench.torch import hooks
from iobench.torch.checkpoint_times import checkpoint_span
from iobench.torch.device import TYPES
from iobench.torch.device_time import DeviceTimer
from iobench.torch.training_hooks import PARTS, claim, name_of_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.recording.session import Recording

LIGHTNINGS: Final = ("lightning.pytorch", "pytorch_lightning")


class StepHooks:
    """Times what a Lightning trainer does, while it does it.

    ``forward`` (the training step, its loss included), ``backward``, ``step`` (the optimizer's),
    ``evaluate`` and ``checkpoint`` are spans of the training loop; the first three, on a CUDA
    device, spans of the device as well. What the loop waits for is told by its DataLoaders, which
    record from the start to the end of the trainer's work.

    Parameters
    ----------
    path : Path or str, optional
        Where to record if nothing is recording already, as for `iobench.record`.

    Examples
    --------
    >>> trainer = lightning.Trainer(callbacks=[LightningCallback("run")])  # doctest: +SKIP
    """

    def __init__(self, path: Path | str | None = None) -> None:
        super().__init__()
        self._path = path
        self._recording: Recording | None = None  # its own, where nobody else has one
        self._timer: DeviceTimer | None = None
        self._part = ""
        self._undo: list[Callable[[], Any]] = []
        self._epoch_ns = -1
        self._evaluation: Any = None

    # -- life -----------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Record from before the first loader is asked, in each process of the trainer."""
        self._end()
        if current_recording() is None:
            self._recording = record(self._path).start()
        if not hasattr(torch.utils.data.DataLoader.__iter__, "_iobench_original"):
            hooks.install()
            self._undo.append(hooks.uninstall)
        device = trainer.strategy.root_device
        self._timer = DeviceTimer(device if device.type in TYPES else "cpu")
        self._undo.append(claim(*PARTS))
        self._undo.append(register_optimizer_step_post_hook(self._stepped).remove)
        save = trainer.save_checkpoint = _timed_save(trainer.save_checkpoint)
        self._undo.append(lambda: _restore(trainer, save))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End all that was begun."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End all that was begun."""
        self._end(exception)

    def _end(self, error: BaseException | None = None) -> None:
        self._enter("")
        self._leave_evaluation()
        self._leave_epoch()
        if self._timer is not None:
            self._timer.flush()
        while self._undo:
            self._undo.pop()()
        if self._recording is not None:
            self._recording.close(error)
        self._recording = self._timer = None

    def __getstate__(self) -> dict[str, Any]:
        """Travel to the processes of a strategy that spawns them without what goes on here."""
        nothing: dict[str, Any] = {"_epoch_ns": -1, "_evaluation": None, "_part": "", "_undo": []}
        return {**vars(self), **nothing, "_recording": None, "_timer": None}

    # -- a step ---------------------------------------------------------------------------

    def _enter(self, part: str, detail: str = "") -> None:
        before, self._part = self._part, part
        if self._timer is None:
            return
        if before:
            self._timer.end(before)
        if part:
            self._timer.start(part, detail)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin ``forward``."""
        self._enter("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Begin ``backward``."""
        self._enter("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """End ``backward``."""
        self._enter("")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin ``step``."""
        self._enter("step", name_of_optimizer(optimizer))

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._part == "step":
            self._enter("")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End what is left of the step."""
        self._enter("")

    # -- what holds steps -----------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch."""
        recorder = active_recorder()
        if recorder is not None:
            self._epoch_ns = recorder.clock.now_ns()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End it."""
        self._leave_epoch(trainer.current_epoch)

    def _leave_epoch(self, epoch: int = -1) -> None:
        start_ns, self._epoch_ns = self._epoch_ns, -1
        recorder = active_recorder()
        if start_ns < 0 or recorder is None:
            return
        recorder.emit(
            Kind.OTHER,
            start_ns,
            recorder.clock.now_ns(),
            epoch=epoch,
            label=recorder.string("epoch"),
            flags=Flag.DETAIL,  # it holds everything else
        )

    def _enter_evaluation(self) -> None:
        self._leave_evaluation()
        recorder = active_recorder()
        if recorder is not None:
            self._evaluation = recorder.full_span(Kind.EVALUATE).__enter__()

    def _leave_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin ``evaluate``."""
        self._enter_evaluation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End ``evaluate``."""
        self._leave_evaluation()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin ``evaluate``."""
        self._enter_evaluation()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """End ``evaluate``."""
        self._leave_evaluation()


def _timed_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        with checkpoint_span(filepath):
            return original(filepath, *args, **kwargs)

    return save_checkpoint


def _restore(trainer: Any, save: Callable[..., Any]) -> None:
    if vars(trainer).get("save_checkpoint") is save:
        del trainer.save_checkpoint


def __getattr__(name: str) -> Any:
    """Make the class, of the Lightning that is imported by then."""
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _callback_class(tuple(_bases()))


def _bases() -> list[type]:
    names = [name for name in LIGHTNINGS if name in sys.modules]
    if not names:
        names = [name for name in LIGHTNINGS if importlib.util.find_spec(name.split(".")[0])][:1]
    if not names:
        raise MissingExtraError(
            "this needs PyTorch Lightning, which is not installed: pip install lightning"
        )
    return [importlib.import_module(name).Callback for name in names]


@functools.cache
def _callback_class(bases: tuple[type, ...]) -> type:
    # Its name in the module is how pickle finds it in processes that are spawned.
    more = {"__doc__": StepHooks.__doc__, "__module__": __name__}
    return type("LightningCallback", (StepHooks, *bases), more)
