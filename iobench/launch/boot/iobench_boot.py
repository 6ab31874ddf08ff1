"""What every Python process of a profiled command does at its start, before the user's code.

It notes that it is there, and waits for the imports of a few libraries. Nothing else is imported
until then, no iobench and no typing: most processes are small.
"""

from __future__ import annotations

import gc
import os
import sys
import time  # built in: nothing is read for it
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# They start training processes and train nothing.
LAUNCHERS = {
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed",
    "accelerate.commands.launch", "horovodrun", "composer", "iobench", "torchx",
}  # fmt: skip
HELPERS = ("resource_tracker", "semaphore_tracker")
SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "popen_loky_posix")

# After which import what is done: what ``after`` of iobench.launch.hooks takes.
AFTER = {
    "numpy": "begin",
    "iobench.recording": "begin",
    "multiprocessing.util": "",
    "torch": "torch",
    "torch.utils.data": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "grain": "grain",
    "jax": "jax",
    "horovod": "horovod",
}

_due: list[str] = []
_file = ""
_pid = 0

imports: list[tuple[int, int]] = []
"""From when until when the main thread imported, ns of the monotonic clock; the first one is the
start of the interpreter, which began with the process."""
NEXT_NS = 1_000_000
"""Imports that follow each other so closely are one."""
MOST_IMPORTS = 4096


_importing = False
"""Whether the main thread imports, so that what begins now is a part of that."""
_main = get_ident()


def _begin() -> int:
    """Begin to import; return since when, -1 within another import or another thread."""
    global _importing
    if _importing or get_ident() != _main:
        return -1
    _importing = True
    return time.perf_counter_ns()


def _end(began_ns: int) -> None:
    """End what began then, and note it."""
    global _importing
    if began_ns < 0:
        return
    _importing = False
    now_ns = time.perf_counter_ns()
    if imports and began_ns - imports[-1][1] < NEXT_NS:
        imports[-1] = (imports[-1][0], max(now_ns, imports[-1][1]))
    elif len(imports) < MOST_IMPORTS:
        imports.append((began_ns, now_ns))


def start() -> None:
    """Make this process a part of the run that the environment names."""
    global _file, _pid
    _pid = os.getpid()
    now_ns = time.perf_counter_ns()
    imports.append((now_ns, now_ns))
    host = "".join(sign if sign.isalnum() or sign in "._" else "_" for sign in os.uname().nodename)
    _file = os.path.join(os.environ["IOBENCH_RUN"], "launch", f"{host}-{_pid}.txt")  # noqa: PTH118
    command = sys.orig_argv
    note("python", {"pid": _pid, "command": _without_secrets(command)})
    if role(command) not in {"helper", "launcher"}:
        sys.meta_path.insert(0, Watcher())


def note(what: str, value: object) -> None:
    """Add a line to what this process tells, whole and at once; survives any end of it."""
    try:
        descriptor = os.open(_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        os.write(descriptor, f"{(what, value)!r}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    finally:
        os.close(descriptor)


def is_own_process() -> bool:
    """Return whether this is the process that was started, and no fork of it."""
    return os.getpid() == _pid


def program(command: Sequence[str]) -> str:
    """Return what an interpreter runs: a script's name, a module's after ``-m``, or ``"-c"``."""
    words = iter(command[1:])
    for word in words:
        if word in {"-m", "-c"}:
            return next(words, "") if word == "-m" else "-c"
        if word in {"-W", "-X", "--check-hash-based-pycs"}:
            next(words, "")
        elif not word.startswith("-") or word == "-":
            return word.rpartition("/")[2]
    return ""


def role(command: Sequence[str]) -> str:
    """Return what a process is by its command: script, spawned, launcher or helper."""
    name = program(command)
    if name in LAUNCHERS:
        return "launcher"
    text = "" if name.endswith(".py") else name  # one of the user's may be called like these
    if name == "-c" and len(command) > 2:
        text = command[command.index("-c") + 1].partition("import")[0]  # "from ... import main"
    if any(each in text for each in HELPERS):
        return "helper"
    if "--multiprocessing-fork" in command or any(each in text for each in SPAWNED):
        return "spawned"
    return "script"


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command without values, unless asked, and without credentials."""
    if os.environ.get("IOBENCH_RUN_KEEP_COMMAND") != "1":
        words = _of_file("command_words").drop_values(words)
    text = " ".join(words).lower()
    signs = (
        "://|@| -u |--user|token|pass|pw|secret|key|credential|auth|bearer|basic"
        "|hf_|gh|akia|asia|sk-|xox|glpat|eyj|sig="
    )
    if not any(sign in text for sign in signs.split("|")):
        return list(words)
    result: list[str] = _of_file("masking").mask_words(words)
    return result


_loaded: dict[str, Any] = {}


def _of_file(name: str) -> Any:
    """Return a module of iobench loaded from its file, once: its package would bring NumPy."""
    if name in _loaded:
        return _loaded[name]
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    spec = spec_from_file_location(f"_iobench_{name}", os.path.join(folder, f"{name}.py"))  # noqa: PTH118
    assert spec is not None
    assert spec.loader is not None
    module = _loaded[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- what is imported ---------------------------------------------------------------------


class Watcher:
    """First of the finders: lets the others find a module, and adds to what its loading does."""

    def __init__(self) -> None:
        self._asking: set[tuple[str, int]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of a module that is waited for, else None."""
        began_ns = _begin()
        asking = (name, get_ident())
        if (began_ns < 0 and name not in AFTER) or asking in self._asking:
            return None  # another finder of this kind asks all finders, as this one does
        self._asking.add(asking)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = (
                    None if finder is self or find is None else find(name, path, target)
                )
                if spec is not None:
                    _watch(name, spec)
                    return spec
        finally:
            self._asking.discard(asking)
            _end(began_ns)  # a name may be looked for in many folders, far away
        return None


def _watch(name: str, spec: ModuleSpec) -> None:
    """Time a module's loading, and act when it has been loaded; its loader is as it was."""
    loader: Any = spec.loader
    load: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
    # One loader may be of several modules, of which one was looked for and not loaded.
    load = getattr(load, "__dict__", {}).get("iobench_load", load)
    awaited = name in AFTER
    if load is None or (not awaited and isinstance(loader, type)):
        return

    def load_and_act(module: ModuleType) -> None:
        load(module)
        # It is whole, and adapters that are told of it ask; the import system says so next.
        spec._initializing = False  # type: ignore[attr-defined]
        _act(name)

    exec_module = _once(loader, "exec_module", load_and_act if awaited else load)
    exec_module.__dict__["iobench_load"] = load
    try:
        loader.exec_module = exec_module
    except AttributeError:
        if awaited:
            note("unseen", f"{name}: its loader {type(loader).__name__} cannot be watched")
        return
    if type(loader).__name__ == "ExtensionFileLoader":  # it loads the library, nearly all of that
        loader.create_module = _once(loader, "create_module", loader.create_module)


def _once(loader: Any, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a loader's method that is timed and in its place for one call."""

    def call(argument: Any) -> Any:
        # First: a loader that is somebody's proxy would else come back here.
        try:  # noqa: SIM105 - nothing is imported for it
            delattr(loader, name)
        except AttributeError:  # one of several modules, and restored already
            pass
        began_ns = _begin()
        try:
            return method(argument)
        finally:
            _end(began_ns)

    return call


def _act(name: str) -> None:
    """Do what follows an import; nothing that goes wrong there may reach the user's code."""
    if name == "multiprocessing.util":
        _close_forks()
        return
    if AFTER[name] == "torch" and name != "torch" and _is_loading("torch"):
        return  # torch imports parts of itself: its own end counts
    if name != "iobench.recording" and _is_loading("iobench.recording"):
        return  # the user's own import of iobench has asked for numpy: its end counts
    _due.append(AFTER[name])
    if _is_loading("iobench.launch.hooks"):
        return  # these are being imported further up, and go on with it
    # What is made meanwhile stays: looking for garbage among all of the user's objects is in vain.
    began_ns, collects = time.perf_counter_ns(), gc.isenabled()
    gc.disable()
    try:
        hooks = __import__("iobench.launch.hooks", fromlist=["hooks"])
        while _due:
            hooks.after(_due.pop())
        hooks.count_once(time.perf_counter_ns() - began_ns)
    except Exception as error:  # noqa: BLE001 - the import the user asked for has worked
        note("unseen", f"{name}: {type(error).__name__}: {error}")
    finally:
        if collects:
            gc.enable()


def _is_loading(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _close_forks() -> None:
    """Let the span files of processes that multiprocessing forks be closed when they end."""
    util: Any = sys.modules["multiprocessing.util"]

    def in_child(_: object) -> None:
        # After the user's own finalisers, which may still read.
        util.Finalize(None, _close_recorders, exitpriority=-100)

    util.register_after_fork(note, in_child)


def _close_recorders() -> None:
    recorders: Any = sys.modules.get("iobench.recording.recorder")
    if recorders is not None:
        recorders.close_recorders()
