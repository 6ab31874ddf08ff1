"""What is done in a process of a profiled command once it has imported a library.

Called by `iobench_boot`, by name; whatever these raise is noted there and goes no further.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from iobench.recording.activation import activate
from iobench.recording.job import find_job
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import RUN_PATH, Recording, current_recording

logger = logging.getLogger(__name__)

RECORDED_ABOVE: Final = "IOBENCH_RUN_RECORDS"
"""Environment: set where a process above records."""
OBSERVERS: Final = {
    "torch": {
        "loaders": "iobench.torch.hooks",
        "collective operations": "iobench.torch.communication",
    },
    "tensorflow": {"loaders": "iobench.tensorflow.hooks"},
    "grain": {"loaders": "iobench.jax.hooks"},
    "jax": {"transfers": "iobench.jax.device_puts"},
}
"""What is seen of a library, and the module that installs it: by name, as those import launch's."""

_begun = False
_recording: Recording | None = None


def begin() -> None:
    """Record this process, and what libraries read in it; numpy is there by now. Idempotent."""
    global _begun, _recording
    if _begun:
        return
    _begun = True
    if _is_child():
        run = RunDirectory.open(Path(os.environ[RUN_PATH]))
        activate(run.recorder(role="child", rank=find_job().rank, at_first_span=True))
    else:
        _recording = current_recording()
        if _recording is None:
            return
        boot: Any = sys.modules["iobench_boot"]
        _recording.facts.imports_ns = boot.imports  # which grows
        _recording.write_facts()
    os.environ[RECORDED_ABOVE] = "1"
    try:
        from iobench.adapters.installed import install

        install(where="everywhere")
        atexit.register(_add_misfits)
    except Exception as error:  # noqa: BLE001 - any library's own shape may be a surprise
        _add_unseen(f"reads of libraries: {type(error).__name__}: {error}", warn=True)


def count_once(spent_ns: int) -> None:
    """Count what hooks took after an import as what recording takes once in this process."""
    if _recording is not None:
        _recording.recorder.once_ns += spent_ns


def _add_misfits() -> None:
    from iobench.adapters.installed import unseen

    for library, reason in unseen().items():
        _add_unseen(f"reads of {library}: {reason}")


def _is_child() -> bool:
    """Return whether this process works for one that records, until it loads by itself."""
    boot: Any = sys.modules["iobench_boot"]
    if boot.role(sys.orig_argv) == "spawned" or not boot.is_own_process():
        return True
    return RECORDED_ABOVE in os.environ and find_job().world_size == 1


def after(name: str) -> None:
    """Do what follows the import of a library that is whole now; Keras stands for tensorflow."""
    if name == "begin":
        begin()
        return
    if name == "horovod":
        _add_unseen("collective operations of Horovod")
        return
    if name == "torch" and "torch.utils.data" not in sys.modules:
        return
    if name == "tensorflow" and not hasattr(sys.modules.get(name), "__version__"):
        return
    for what, module in OBSERVERS[name].items():
        try:
            importlib.import_module(module).install()
        except Exception as error:  # noqa: BLE001 - an unknown version may do anything
            _add_unseen(f"{what} of {name}: {type(error).__name__}: {error}", warn=True)


def _add_unseen(text: str, *, warn: bool = False) -> None:
    if warn:
        logger.warning("not seen: %s", text)
    if _recording is not None:
        _recording.add_unseen(text)
    else:
        boot: Any = sys.modules["iobench_boot"]
        boot.note("unseen", text)
