"""Where a PyTorch training loop can be timed: forward, backward, optimizer steps, checkpoints.

Optimizers have hooks for that, a model those that `Watch` puts on it. ``loss.backward()`` has none
that ends with it: while anybody listens, ``torch.autograd.backward``, which it calls, is a function
that tells them.

Under ``iobench run`` nobody names a model, and hooks on one would be saved and copied with it. So
the class of a model that a script, or its framework, sets to train gets a method that times that
one object: ``training_step`` of a LightningModule, ``__call__`` of others. Hooks of torch's own for
all modules would be called for each layer.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from iobench.adapters.patches import Patches
from iobench.recording import activation, session
from iobench.recording.kinds import Kind
from iobench.recording.pass_names import frames_above, role_by_name
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from iobench.recording.lanes import Span
    from iobench.recording.session import Recording

MOST_CLASSES: Final = 16
"""Of more classes of models than this, set to train by a script, the forward pass is not timed."""
MOST_NAMED: Final = 64
LIGHTNINGS: Final = ("lightning.pytorch", "pytorch_lightning")
TRAINER: Final = "transformers.trainer"
OF_TRAINER: Final = {
    "evaluate": "validation",
    "predict": "prediction",
    "_inner_training_loop": "training",
}
CONSUMER: Final = "consumer"
ON_HOST: Final = (
    "device: forward, backward and step are the host's time, of a device's work that of queueing "
    "it; iobench.torch.DeviceTimer times the device"
)


class _Listener(Protocol):
    def start(self, name: str, detail: str = "") -> None: ...
    def end(self, name: str) -> None: ...


class Watch:
    """Times a model, its backward passes and its optimizers; made by `DeviceTimer.watch`."""

    def __init__(
        self,
        timer: _Listener,
        model: torch.nn.Module | None,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._timer = timer
        self._handles: list[Any] = []
        self._claimed = ["backward"]
        if model is not None:
            self._claimed.append("forward")
            self._handles += [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]
        if optimizers:
            self._claimed.append("step")
        for optimizer in optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
        for part in self._claimed:
            _claims[part] += 1
        _listen(timer)

    def remove(self) -> None:
        """Stop. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._claimed:
            _claims[self._claimed.pop()] -= 1
        _leave(self._timer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _before_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if model.training:
            self._timer.start("forward")

    def _after_forward(self, model: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._timer.end("forward")

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._timer.start("step", name_of_optimizer(optimizer))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._timer.end("step")


_lock: Final = threading.Lock()
_listeners: Final[list[_Listener]] = []
_claims: Final = {"forward": 0, "backward": 0, "step": 0}
"""How many time a part of the script's own accord: nobody else times it then."""
_backward: Final = Patches()
_inside = False


def _listen(timer: _Listener) -> None:
    with _lock:
        _listeners.append(timer)
        if not _backward:
            _backward.put(torch.autograd, "backward", _with_listeners)


def _leave(timer: _Listener) -> None:
    with _lock:
        if timer in _listeners:
            _listeners.remove(timer)
        if not _listeners:
            _backward.take_back()


def _with_listeners(original: Callable[..., None]) -> Callable[..., None]:
    def backward(*args: Any, **kwargs: Any) -> None:
        global _inside
        # A backward pass that recomputes parts of the forward one calls this again.
        if _inside or not _listeners:
            return original(*args, **kwargs)
        timers = tuple(_listeners)
        _inside = True
        for timer in timers:
            timer.start("backward")
        try:
            return original(*args, **kwargs)
        finally:
            for timer in reversed(timers):
                timer.end("backward")
            _inside = False

    return backward


# -- what is timed without being asked ----------------------------------------------------


class _Here(threading.local):
    """What the calling thread is at."""

    backward: Span | None = None
    in_model = False
    evaluates = False
    sets = False  # a model, and with it all models in it, to train or to evaluate

    def __init__(self) -> None:
        # Of each optimizer that steps: its span, how often its hooks are inside of each other, and
        # at which batch that began.
        self.steps: dict[int, tuple[Span, int, int]] = {}


class _Models:
    """What a script last set its models to: whether to evaluate, and which one to train."""

    evaluates = False
    trained: weakref.ref[Any] | None = None


_by_recording: Final[weakref.WeakKeyDictionary[Recording, _Models]] = weakref.WeakKeyDictionary()
_here: Final = _Here()
_installed_hooks: Final[list[Callable[[], None]]] = []
_patches: Final = Patches()
_models: Final[dict[int, weakref.ref[Any]]] = {}
_names: Final[dict[int, tuple[weakref.ref[Any], str]]] = {}
_numbers = itertools.count(1)
_classes: Final[dict[type, tuple[str, Any, Any]]] = {}
"""Of each class that has a method of ours: its name, what was there, and ours."""


def _span(part: str, kind: Kind, detail: str = "") -> Span | None:
    """Begin a span of the training loop; None where nothing is recorded, or somebody else does."""
    recorder = activation._active
    if recorder is None or _claims[part] or recorder.role != CONSUMER:
        return None
    recorder.n_parts += 1
    return recorder.span(kind, "", detail=detail).__enter__()


class _Unasked:
    """Times backward passes, where nobody else does."""

    def start(self, name: str, detail: str = "") -> None:
        _here.backward = _span("backward", Kind.BACKWARD)

    def end(self, name: str) -> None:
        span, _here.backward = _here.backward, None
        if span is not None:
            span.__exit__(None, None, None)


_unasked: Final = _Unasked()


def install() -> None:
    """Time the parts of every training loop from now on, where nobody else does. Idempotent."""
    if _installed_hooks:
        return
    _listen(_unasked)
    _installed_hooks.extend(
        (
            functools.partial(_leave, _unasked),
            register_optimizer_step_pre_hook(_before_step).remove,
            register_optimizer_step_post_hook(_after_step).remove,
            _patches.take_back,
        )
    )
    for module in (torch, torch.serialization):
        _patches.put(module, "save", _timed_save)
    _patches.put(torch.nn.Module, "train", _noting_mode)


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


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    global _numbers
    while _installed_hooks:
        _installed_hooks.pop()()
    _models.clear()
    _names.clear()
    _numbers = itertools.count(1)
    for kind, (name, before, ours) in _classes.items():
        if vars(kind).get(name) is not ours:
            continue  # somebody else has replaced it meanwhile
        if before is None:
            type.__delattr__(kind, name)
        else:
            type.__setattr__(kind, name, before)
    _classes.clear()


def within_part() -> bool:
    """Tell whether the calling thread is in a model's forward pass, a backward pass or a step."""
    here = _here
    return here.in_model or here.evaluates or here.backward is not None or bool(here.steps)


def name_of_optimizer(optimizer: Any) -> str:
    """Return what an optimizer is called among those of this process, as ``"Adam-1"``."""
    known = _names.get(id(optimizer))
    if known is not None and known[0]() is optimizer:
        return known[1]
    recording = current_recording()
    if recording is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        recording.add_unseen(ON_HOST)
    text = type(optimizer).__name__
    if len(_names) < MOST_NAMED:
        text = f"{text}-{next(_numbers)}"
        _names[id(optimizer)] = weakref.ref(optimizer), text
    return text


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if activation._active is None or session._current is None:
        return
    steps, number, at = _here.steps, id(optimizer), session._current.step
    known = steps.get(number)
    # The step of a class derived from one of torch's calls that one's; of an earlier batch is a
    # step that an exception has ended.
    if known is not None and known[2] == at:
        steps[number] = known[0], known[1] + 1, at
        return
    span = _span("step", Kind.STEP, name_of_optimizer(optimizer))
    if span is not None:
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


def see_model(model: Any) -> None:
    """Time the forward pass of a model that is going to train; of a LightningModule its step."""
    if not _installed_hooks or id(model) in _models or not isinstance(model, torch.nn.Module):
        return
    kind = type(model)
    if kind not in _classes:
        if len(_classes) >= MOST_CLASSES or isinstance(model, torch.jit.ScriptModule):
            return
        is_lightning = any(
            each.__name__ == "LightningModule" and each.__module__.startswith(LIGHTNINGS)
            for each in kind.__mro__
        )
        name = "training_step" if is_lightning else "__call__"
        before = vars(kind).get(name)
        if before is not None and not isinstance(before, types.FunctionType):
            return  # whoever looks it up there gets something else
        ours = _timed(kind, name)
        try:
            type.__setattr__(kind, name, ours)
        except (TypeError, AttributeError):  # a class that does not let itself be changed
            return
        _classes[kind] = name, before, ours
    number = id(model)
    _models[number] = weakref.ref(model, lambda _: _models.pop(number, None))


def see_first_model() -> None:
    """Time the forward passes of the model with parameters to train that is called first."""
    module: Any = torch.nn.Module
    original = module.__call__
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        if not any(each.requires_grad for each in self.parameters()):
            return original(self, *args, **kwargs)
        restore()
        see_model(self)
        return self(*args, **kwargs)

    def restore() -> None:
        if module.__call__ is call:
            module.__call__ = original

    if _installed_hooks and not hasattr(original, "__wrapped__"):
        module.__call__ = call
        _installed_hooks.append(restore)


def _timed(kind: Any, name: str) -> Callable[..., Any]:
    """Return a class's method that times those of its objects that are being watched."""
    own = vars(kind).get(name)
    is_compiling = torch.compiler.is_compiling

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Looked for at each call: others, as torch.fx, put theirs there for a while.
        call = getattr(super(kind, self), name) if own is None else own.__get__(self, kind)
        # What torch compiles must not see more than this line.
        if is_compiling():
            return call(*args, **kwargs)
        # Of a class that may be pickled by value, and read where there is no iobench.
        hooks = sys.modules.get("iobench.torch.training_hooks")
        return call(*args, **kwargs) if hooks is None else hooks._run(self, call, args, kwargs)

    return functools.wraps(own if own is not None else getattr(kind, name))(method)


def _run(model: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    if id(model) not in _models or _here.in_model:
        return call(*args, **kwargs)
    # A validation, and what a frozen model brings, trains nothing.
    span = _span("forward", Kind.FORWARD) if torch.is_grad_enabled() else None
    if span is None:
        before, _here.evaluates = _here.evaluates, True
        try:
            return call(*args, **kwargs)
        finally:
            _here.evaluates = before
    _here.in_model = True
    try:
        return call(*args, **kwargs)
    finally:
        _here.in_model = False
        span.__exit__(None, None, None)


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
    models = _by_recording.get(recording)
    if models is None:
        _by_recording[recording] = _Models()
        see_first_model()  # nobody has set one to train
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
                see_model(getattr(trainer, "lightning_module", None))
            # A validation within a training is one; its loop runs without gradients.
            return "validation" if role == "training" and not torch.is_grad_enabled() else role
    return ""


def _noting_mode(original: Any) -> Any:
    def train(self: Any, mode: bool = True) -> Any:
        if torch.compiler.is_compiling():  # what is compiled must not see the rest
            return original(self, mode)
        outermost = not _here.sets
        _here.sets = True
        try:
            result = original(self, mode)
        finally:
            _here.sets = not outermost
        recording = current_recording() if outermost else None
        if recording is not None:
            _set(recording, self, mode)
            see_model(self)
        return result

    return train


def _set(recording: Recording, model: Any, mode: bool) -> None:
    """Note that a model was set to train or to evaluate; not so a part of one that trains.

    Parts are kept from learning so, where a model's own ``train`` sets them to evaluate.
    """
    models = _by_recording.setdefault(recording, _Models())
    if mode:
        models.evaluates, models.trained = False, weakref.ref(model)
        return
    whole = None if models.trained is None else models.trained()
    if whole is None or whole is model or not any(each is model for each in whole.modules()):
        models.evaluates = True
    elif sum(1 for _ in model.parameters()) == sum(1 for _ in whole.parameters()):
        models.evaluates = True  # all of it, but for who wraps it
