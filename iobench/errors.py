"""Every error iobench raises on purpose, in one tree.

Each message is one line: which file or name, what was expected, what to do. The command line
prints it and exits 1 (75 where the work can be resumed, 69 where a package or device is not here);
any other exception is a bug and keeps its traceback.

::

    IobenchError
    ├── UnknownNameError      (LookupError)   no dataset, format or option of that name
    ├── OptionError           (ValueError)    an option's value cannot be used
    │   └── MissingDeviceError                a device that is named is not here
    ├── MissingExtraError     (ImportError)   an optional library is not installed
    ├── MissingFileError      (FileNotFoundError)  a source file is not where it was looked for
    ├── FileFormatError       (ValueError)    a file is cut short, corrupt or of another schema
    ├── SampleError           (ValueError)    a sample is not what the spec says
    ├── StoreError            (ValueError)    a store is unfinished, damaged or of another plan
    │   └── StoreClaimedError                 another process is writing this store
    ├── StorageError          (OSError)       disk full, read-only, unreadable
    ├── ProfileError          (ValueError)    a run directory cannot be read as a profile
    ├── DeviceError           (RuntimeError)  a device refuses memory or a copy, or is gone
    ├── TrackingError         (RuntimeError)  a tracking server cannot be told of a run
    ├── TrialError            (RuntimeError)  one of several things run in turns failed
    └── WorkerError           (RuntimeError)  a loading process died or raised
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from iobench.extras import install_command
from iobench.masking import mask_text, printable

__all__ = [
    "DeviceError",
    "FileFormatError",
    "IobenchError",
    "MissingDeviceError",
    "MissingExtraError",
    "MissingFileError",
    "OptionError",
    "ProfileError",
    "SampleError",
    "StorageError",
    "StoreClaimedError",
    "StoreError",
    "TrackingError",
    "TrialError",
    "UnknownNameError",
    "WorkerError",
    "in_one_line",
]

UNAVAILABLE: Final = 69
"""Exit code of what a package or a device is missing for, as sysexits.h has it."""
_FLAGS: Final = {"download", "tiny"}
_PARAMETERS: Final = {
    "data_dir", "option", "sample_dim", "scale", "seed", "split", "split_by", "store_dir",
    "target_variables", "variables", "window",
}  # fmt: skip
_OPTION: Final = re.compile(
    r"--([a-z][a-z-]*)(?:[ =](\w+://[^\s;,]*[^\s;,:]|[^\s;]+?(?=:\s|:?$)))?"
)


class IobenchError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one line for the user.

    ``exit_code`` is what the command line exits with: 1, 75 where the same command resumes, or
    69 where something is not here that can be installed or put in.
    No message holds a credential, nor what a terminal would obey, though names of files and of
    what is in them may: texts are masked and spelled out when the error is made.
    """

    exit_code: int = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shown(each) if isinstance(each, str) else each for each in args))


def _shown(text: str) -> str:
    return printable(" ".join(mask_text(text).splitlines()))


@contextmanager
def parameters_named() -> Iterator[None]:
    """Name the parameters of a Python call where an error names options of commands."""
    try:
        yield
    except IobenchError as error:
        error.args = (with_parameters(str(error)), *error.args[1:])
        raise


def with_parameters(text: str) -> str:
    """Return a text with parameters of `iobench.open_dataset` for the options that it names."""
    return _OPTION.sub(_parameter, text)


def _parameter(option: re.Match[str]) -> str:
    name, text = option[1].replace("-", "_"), option[2] or ""
    if name in _FLAGS:
        return f"{name}=True{option[0][len(name) + 2 :]}"
    if name not in _PARAMETERS:
        return option[0]
    spelled = repr(tuple(text.split(",")) if "variables" in name else text)
    if name == "option":
        name, spelled = "options", "{{{0!r}: {2!r}}}".format(*text.partition("="))
    return f"{name}={spelled if text else '...'}"


class UnknownNameError(IobenchError, LookupError):
    """No dataset, format or option has that name; the message lists the nearest ones."""


class OptionError(IobenchError, ValueError):
    """An option has a value that cannot be used."""


class MissingDeviceError(OptionError):
    """A device that is named is not here, or its driver refuses it to us."""

    exit_code = UNAVAILABLE


class MissingExtraError(IobenchError, ImportError):
    """An optional library is missing; the message ends with the line that installs it.

    ``extra`` names the extra of iobench that the library belongs to.
    """

    exit_code = UNAVAILABLE

    def __init__(self, text: str, *, extra: str = "") -> None:
        super().__init__(f"{text} (extra {extra}): {install_command(extra)}" if extra else text)


def import_extra(name: str, text: str, *, extra: str) -> Any:
    """Return a module; raise MissingExtraError with this text where it cannot be imported."""
    try:
        return import_module(name)
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingExtraError(f"{text}{why}", extra=extra) from error


class MissingFileError(IobenchError, FileNotFoundError):
    """A source file is missing; the message says where it was looked for and how to get it."""


class FileFormatError(IobenchError, ValueError):
    """A file is cut short, corrupt, of another format or of another schema."""


class SampleError(IobenchError, ValueError):
    """A sample does not have the names, shapes or dtypes its spec promises."""


class StoreError(IobenchError, ValueError):
    """A store is unfinished, damaged, or was made from something else than asked for."""


class StoreClaimedError(StoreError):
    """Another process is writing this store; the message names its host and pid."""


class StorageError(IobenchError, OSError):
    """The file system refused: full, read-only, or not permitted."""


class DeviceError(IobenchError, RuntimeError):
    """A device's driver refuses memory or a copy, or the device is gone."""


class ProfileError(IobenchError, ValueError):
    """A run directory holds no profile, or one this version cannot read."""


class TrackingError(IobenchError, RuntimeError):
    """A tracking server is down or refuses; the run is kept, the message says how to go on."""

    exit_code = 75


class TrialError(IobenchError, RuntimeError):
    """One of the things that were run in turns failed; the message names it and the round."""


class WorkerError(IobenchError, RuntimeError):
    """A loading process died or raised; the message names it, the sample and the reason."""


_REASON_LIMIT: Final = 500
_OWN_CODE: Final = f"{Path(__file__).parent}/"


def failure_text(error: BaseException) -> str:
    """Return an error of somebody else's code in one line, with the line of theirs it is from."""
    import sysconfig
    import traceback

    paths = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
    not_theirs = (_OWN_CODE, "<", *(f"{path}/" for path in paths))
    reason = (str(error).strip().splitlines() or [""])[0][:_REASON_LIMIT]
    text = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if not each.filename.startswith(not_theirs)]
    return f"{text} ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else text


@contextmanager
def in_one_line(
    what: str, kind: type[IobenchError] = OptionError, advice: str = "mend it"
) -> Iterator[None]:
    """Make whatever the user's or a plugin's code raises an error of one line.

    Memory that is refused is nobody's mistake.
    """
    try:
        yield
    except (IobenchError, MemoryError):
        raise
    except Exception as error:
        raise kind(f"{what} {failure_text(error)}; {advice}") from error
