"""What a pass over a loader of torch's is for: training, validation, test or prediction.

Looked for as the pass begins: in the loops of Lightning and Hugging Face above it, in gradients
that are switched off, in what the script calls the loader, in a model that was set to evaluate. An
optimiser's step in the pass says more than all of these (`iobench.recording.delivery_log`).
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from iobench.adapters.patches import Patches
from iobench.recording.pass_names import frames_above, role_by_name
from iobench.recording.session import current_recording
from iobench.torch import training_hooks

if TYPE_CHECKING:
    from types import FrameType

    from iobench.recording.session import Recording

LIGHTNINGS: Final = ("lightning.pytorch.", "pytorch_lightning.")
TRAINER: Final = "transformers.trainer"
OF_TRAINER: Final = {
    "evaluate": "validation",
    "predict": "prediction",
    "_inner_training_loop": "training",
}


class _Models:
    """What a script last set its models to: whether to evaluate, and which one to train."""

    evaluates = False
    trained: weakref.ref[Any] | None = None


_models: Final[weakref.WeakKeyDictionary[Recording, _Models]] = weakref.WeakKeyDictionary()
_setting: Final = threading.local()
"""Whether the calling thread sets a model, and with it all models in it."""
_lock: Final = threading.Lock()
_patches: Final = Patches()


def role_of_pass(recording: Recording, loader: Any) -> str:
    """Return what a pass is for that begins now; ``""`` where nothing tells."""
    frames = frames_above()
    for frame in frames:
        role = _of_framework(frame)
        if role:
            return role
    named = role_by_name(loader, frames)
    models = _models.get(recording)
    if models is None:
        _models[recording] = _Models()
        training_hooks.see_first_model()  # nobody has set one to train
    if not torch.is_grad_enabled() or (models is not None and models.evaluates):
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
            if name == "training":
                training_hooks.see_model(getattr(trainer, "lightning_module", None))
            # A validation within a training is one; its loop runs without gradients.
            return "validation" if role == "training" and not torch.is_grad_enabled() else role
    return ""


def install() -> None:
    """See models set to train or to evaluate, and what they do then. Idempotent."""
    with _lock:
        if not _patches:
            training_hooks.install()
            _patches.put(torch.nn.Module, "train", _noting_mode)


def _noting_mode(original: Any) -> Any:
    def train(self: Any, mode: bool = True) -> Any:
        if torch.compiler.is_compiling():  # what is compiled must not see the rest
            return original(self, mode)
        outermost = not getattr(_setting, "inside", False)
        _setting.inside = True
        try:
            result = original(self, mode)
        finally:
            _setting.inside = not outermost
        recording = current_recording() if outermost else None
        if recording is not None:
            _set(recording, self, mode)
            training_hooks.see_model(self)
        return result

    return train


def _set(recording: Recording, model: Any, mode: bool) -> None:
    """Note that a model was set to train or to evaluate; not so a part of one that trains.

    Parts are kept from learning so, where a model's own ``train`` sets them to evaluate.
    """
    models = _models.setdefault(recording, _Models())
    if mode:
        models.evaluates, models.trained = False, weakref.ref(model)
        return
    whole = None if models.trained is None else models.trained()
    if whole is None or whole is model or not any(each is model for each in whole.modules()):
        models.evaluates = True
    elif sum(1 for _ in model.parameters()) == sum(1 for _ in whole.parameters()):
        models.evaluates = True  # all of it, but for who wraps it


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    with _lock:
        _patches.take_back()
        training_hooks.uninstall()
