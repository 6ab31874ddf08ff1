"""The command line: one command, one file. ``main`` turns an IobenchError into one line.

Results go to stdout, progress and notes to stderr. Exit 0 done, 1 an error said in one line,
2 usage, 69 a package or device is not here, 75 interrupted and resumable.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import resource
import shlex
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["main"]

INTERRUPTED = 75
COMPLETE: Final = "_IOBENCH_COMPLETE"
"""Environment: set by a shell that completes a command, by click's own means."""
READERS: Final = {"compare", "info", "list", "report"}
"""They leave nothing behind: their memory is given back as they end, not looked through first."""
LOADERS: Final = {"convert", "profile", "synthesize", "verify"}
"""They read and decode, which compressors and OpenBLAS die of, or wait in, where no memory is."""
LEAST_ADDRESSES: Final = 1_000_000 * 1024
OF_MEMORY: Final = ("can't start new thread", "failed to map segment", "annot allocate memory")
"""In what libraries say whose own memory, or a thread, was refused."""
OF_FILES: Final = {errno.ENAMETOOLONG, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN}
"""Of names that cannot be, and of file systems that do not answer."""
LONGEST_REASON: Final = 120
FIRST_STEPS: Final = """\
iobench: where does training on weather and climate data wait for its data, and why?

  your files    iobench profile forecasts/*.nc
  your script   iobench run -- python train.py
  an example    iobench profile maelstrom-ens10
  faster data   iobench convert forecasts/*.nc samples.zarr --to zarr --sample-dim time
  what is here  iobench list; iobench doctor; all commands: iobench --help"""
"""What a user does first; what ``iobench`` alone says."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETE in os.environ:
        return _run(arguments)
    if not arguments:
        print(FIRST_STEPS)
        return 0
    from iobench.cli.own_process import masked_streams

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and arguments[0] in LOADERS:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # others ask for memory without an end
        if limit < LEAST_ADDRESSES:
            least = LEAST_ADDRESSES // 1024
            return _say(f"iobench: ulimit -v is {limit // 1024}: raise it to {least} or more", 1)
    if arguments[0] in READERS:
        atexit.register(gc.freeze)
    with masked_streams(arguments):
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    from iobench.cli.app import make_app
    from iobench.cli.own_process import Interrupted, interruptible
    from iobench.errors import IobenchError

    try:
        with interruptible():
            make_app()(args=arguments, prog_name="iobench")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except IobenchError as error:
        line = "; ".join([" ".join(str(error).split()), *_notes(error)])
        return _say(f"iobench: {line}", error.exit_code)
    except Interrupted as interrupt:
        from iobench.masking import mask_words

        again = shlex.join(["iobench", *mask_words(arguments)])
        retained = "; ".join(_notes(interrupt))
        retained = retained or f"finished work is kept; run it again: {again}"
        return _say(f"iobench: interrupted; {retained}", INTERRUPTED)
    except PermissionError as error:
        return _say(f"iobench: {error}; ask its owner for the right, or name another", 1)
    except BrokenPipeError:
        # Whoever read stdout has seen enough; keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno in OF_FILES:
            return _say(f"iobench: {error.filename}: {error.strerror}; name another", 1)
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in OF_MEMORY):
            raise
        reason = " ".join(str(error).split())[-LONGEST_REASON:].strip()
        return _say(
            f"iobench: not enough memory or threads: {reason or 'an allocation failed'}; take "
            "fewer workers or a smaller batch, or raise the limit (ulimit -v, ulimit -u)",
            1,
        )
    return 0


def _notes(error: BaseException) -> list[str]:
    """Return what those it went through have added: where the work done by then is kept.

    Tracebacks are for those who call from Python.
    """
    return [note for note in getattr(error, "__notes__", []) if "\n" not in note]


def _say(line: str, code: int) -> int:
    from iobench.masking import printable

    print(printable(line), file=sys.stderr)
    return code
