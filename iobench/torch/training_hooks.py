"""Parts of a PyTorch training loop, timed: forward, backward, optimiser's steps, checkpoints.

While installed, ``torch.nn.Module.__call__`` and ``train``, ``torch.autograd.backward`` and
``torch.save`` are functions of this module that call torch's own; optimisers have hooks. A forward
pass is the outermost call of a module that trains. No model, and no class of one, is changed.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from iobench.adapters.patches import Hooks, Patches
from iobench.recording import activation, session
from iobench.recording.kinds import Kind
from iobench.recording.pass_names import frames_above, role_by_name
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from iobench.recording.recorder import Span
    from iobench.recording.session import Recording

LIGHTNINGS: Final = ("lightning.pytorch", "pytorch_lightning")
TRAINER: Final = "transformers.trainer"
OF_TRAINER: Final = {
    "evaluate": "validation",
    "predict": "prediction",
    "_inner_training_loop": "training",
}
CONSUMER: Final = "consumer"
ON_HOST: Final = (
    "device: copies to it, forward, backward and step are the host's time, of a device's work that "
    "of queueing it; iobench.torch.DeviceTimer times the device"
)


class _Here(threading.local):
    """What the calling thread is at."""

    in_module = False
    sets = False  # a model, and with it all models in it, to train or to evaluate

    def __init__(self) -> None:
        # Of each optimiser that steps: its span, how often its hooks are inside of each other, and
        # at which batch that began.
        self.steps: dict[int, tuple[Span, int, int]] = {}


_here: Final = _Here()
_in_backward = False  # of any thread: those of devices compute parts of the forward pass again
_names: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
_trained: Final[weakref.WeakKeyDictionary[Recording, set[int]]] = weakref.WeakKeyDictionary()
"""The parameters of the model that a script has set to train; none once it is set to evaluate."""


def _begin(patches: Patches) -> None:
    patches.undo_by(_names.clear)
    patches.undo_by(register_optimizer_step_pre_hook(_before_step).remove)
    patches.undo_by(register_optimizer_step_post_hook(_after_step).remove)
    patches.put(torch.nn.Module, "__call__", _timed_call)
    patches.put(torch.nn.Module, "train", _noting_mode)
    patches.put(torch.autograd, "backward", _timed_backward)
    for module in (torch, torch.serialization):
        patches.put(module, "save", _timed_save)


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall


def within_part() -> bool:
    """Tell whether the calling thread is in a model's forward pass, a backward pass or a step."""
    return _here.in_module or _in_backward or bool(_here.steps)


def _span(kind: Kind, detail: str = "") -> Span | None:
    """Begin a span of the training loop; None where nothing is recorded, or a batch is made."""
    recorder = activation._active
    if recorder is None or recorder.role != CONSUMER or recorder.lane().loading:
        return None
    recorder.n_parts += 1
    return recorder.span(kind, "", detail=detail).__enter__()


def _timed_call(original: Callable[..., Any]) -> Callable[..., Any]:
    is_compiling, here = torch.compiler.is_compiling, _here

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What torch compiles must not see more than the first condition.
        if is_compiling() or here.in_module or _in_backward or activation._active is None:
            return original(self, *args, **kwargs)
        here.in_module = True
        # A validation, and what a frozen model brings, trains nothing; a loss has no parameters.
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in self.parameters())
        span = _span(Kind.FORWARD) if trains else None
        try:
            return original(self, *args, **kwargs)
        finally:
            here.in_module = False
            if span is not None:
                span.__exit__(None, None, None)

    return __call__


def _timed_backward(original: Callable[..., None]) -> Callable[..., None]:
    def backward(*args: Any, **kwargs: Any) -> None:
        global _in_backward
        # A backward pass that recomputes parts of the forward one calls this again.
        span = None if _in_backward else _span(Kind.BACKWARD)
        if span is None:
            return original(*args, **kwargs)
        _in_backward = True
        try:
            return original(*args, **kwargs)
        finally:
            _in_backward = False
            span.__exit__(None, None, None)

    return backward


def _timed_save(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``torch.save`` be a checkpoint; who has taken it out of its module before is not seen."""

    def save(*args: Any, **kwargs: Any) -> Any:
        recorder = activation.active_recorder()
        if recorder is None:
            return original(*args, **kwargs)
        with recorder.full_span(Kind.CHECKPOINT) as span:
            saved = original(*args, **kwargs)
            file = args[1] if len(args) > 1 else kwargs.get("f")
            if isinstance(file, str | os.PathLike) and Path(file).is_file():  # not a folder
                span.nbytes = Path(file).stat().st_size
        return saved

    return save


def _name_of(optimizer: Any) -> str:
    """Return what an optimiser is called among those of this process, as ``"Adam-1"``."""
    name = _names.get(optimizer)
    if name is None:
        recording = current_recording()
        if recording is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            recording.add_unseen(ON_HOST)
        name = _names[optimizer] = f"{type(optimizer).__name__}-{len(_names) + 1}"
    return name


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if activation._active is None or session._current is None:
        return
    steps, number, at = _here.steps, id(optimizer), session._current.step
    known = steps.get(number)
    # The step of a class derived from one of torch's calls that one's; of an earlier batch is a
    # step that an exception has ended.
    if known is not None and known[2] == at:
        steps[number] = known[0], known[1] + 1, at
    elif (span := _span(Kind.STEP, _name_of(optimizer))) is not None:
        steps[number] = span, 1, at


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    recording = current_recording()
    if recording is not None:
        recording.optimizer_stepped()
    known = _here.steps.pop(id(optimizer), None)
    if known is not None and known[1] > 1:
        _here.steps[id(optimizer)] = known[0], known[1] - 1, known[2]
    elif known is not None:
        known[0].__exit__(None, None, None)


# -- what a pass over a loader is for: training, validation, test or prediction ---
#
# Looked for as the pass begins: in the loops of Lightning and Hugging Face above it, in gradients
# that are switched off, in what the script calls the loader, in a model that was set to evaluate.
# An optimiser's step in the pass says more than all of these (`iobench.recording.delivery_log`).


def role_of_pass(recording: Recording, loader: Any) -> str:
    """Return what a pass is for that begins now; ``""`` where nothing tells."""
    frames = frames_above()
    for frame in frames:
        role = _of_framework(frame)
        if role:
            return role
    named = role_by_name(loader, frames)
    if not torch.is_grad_enabled() or _trained.get(recording) == set():
        return named if named not in ("", "training") else "evaluation"
    return named


def _of_framework(frame: FrameType) -> str:
    """Return what a loop of a framework says of itself; ``""`` of any other frame."""
    module = str(frame.f_globals.get("__name__", ""))
    if module == TRAINER:
        return OF_TRAINER.get(frame.f_code.co_name, "")
    if not module.startswith(LIGHTNINGS):
        return ""
    trainer = getattr(frame.f_locals.get("self"), "trainer", None)
    for name, role in (
        ("sanity_checking", "validation"), ("validating", "validation"), ("testing", "test"),
        ("predicting", "prediction"), ("training", "training"),
    ):  # fmt: skip
        if getattr(trainer, name, False) is True:
            # A validation within a training is one; its loop runs without gradients.
            return "validation" if role == "training" and not torch.is_grad_enabled() else role
    return ""


def _noting_mode(original: Any) -> Any:
    def train(self: Any, mode: bool = True) -> Any:
        if torch.compiler.is_compiling():  # what is compiled must not see the rest
            return original(self, mode)
        outermost, _here.sets = not _here.sets, True
        try:
            result = original(self, mode)
        finally:
            _here.sets = not outermost
        recording = current_recording() if outermost else None
        if recording is not None:
            own = {id(each) for each in self.parameters()}
            # A part of what trains is kept from learning where it alone is set to evaluate.
            is_part = own & (others := _trained.get(recording, set())) and others - own
            if mode or not is_part:
                _trained[recording] = own if mode else set()
        return result

    return train
