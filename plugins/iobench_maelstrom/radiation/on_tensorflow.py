"""TensorFlow as the application runs it, on the CPU and without its chatter."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Stream
from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from iobench.samples import Sample, SampleSpec

__all__ = ["TENSORFLOW_INSTALL", "batch_stream", "import_tensorflow"]

TENSORFLOW_INSTALL: Final = "pip install 'iobench[tensorflow]'"
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
MAKES: Final = "read+decode+preprocess+collate"
"""What ``tf.data`` does in threads of its own, none of which can be seen from here."""


def import_tensorflow(who: str) -> Any:
    """Return TensorFlow; it sees no GPU, for batches are made on the CPU.

    Nothing is run yet, so a process may still be forked; one that was after TensorFlow ran cannot
    run it again.

    Parameters
    ----------
    who : str
        Names what needs it, in the error.

    Raises
    ------
    MissingExtraError
        If it cannot be imported; says what installs it.
    """
    with _quiet():
        try:
            import tensorflow
        except ImportError as error:
            raise MissingExtraError(f"{who} needs TensorFlow: {TENSORFLOW_INSTALL}") from error
        # Fails where TensorFlow has run in this process: then it has what it was given.
        with contextlib.suppress(RuntimeError):
            tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep off stderr what TensorFlow says there; its errors are exceptions besides.

    The variable, which it looks at once, does not hold for what it says while it is loaded.
    """
    before = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        if before is None:
            del os.environ[LOG_LEVEL]


def batch_stream(
    make: Callable[[int], Any], *, spec: SampleSpec, n_samples: int, where: str
) -> Stream:
    """Return a stream of the batches of a ``tf.data.Dataset``.

    Parameters
    ----------
    make : callable
        ``make(epoch)`` returns the data set, whose elements are (inputs, targets), of one pass.
    spec : SampleSpec
        Of a sample.
    n_samples : int
        Of one pass.
    where : str
        The files, for messages.
    """

    def batches(epoch: int) -> Iterator[Sample]:
        # The pipeline is built here, not with its first batch: that takes as long as many of them.
        with _errors_of(where):
            taken = make(epoch).as_numpy_iterator()
        return handed_on(taken)

    def handed_on(taken: Iterator[Any]) -> Iterator[Sample]:
        with _errors_of(where):
            for inputs, targets in taken:
                yield _as_specified({**inputs, **targets}, spec)

    return Stream(
        spec=spec,
        items=batches,
        stages=(),
        n_samples=lambda batch: len(next(iter(batch.values()))),
        n_samples_all=n_samples,
        makes=MAKES,
        batched=True,
        ahead=0,
        framework="tensorflow",
    )


@contextlib.contextmanager
def _errors_of(where: str) -> Iterator[None]:
    import tensorflow

    try:
        yield
    except tensorflow.errors.OpError as error:
        reason = _in_words(str(error.message))
        raise FileFormatError(
            f"{where}: TensorFlow cannot read the examples: {reason}; fetch the files again"
        ) from error


def _as_specified(batch: Mapping[str, Any], spec: SampleSpec) -> Sample:
    """Return the arrays without the axis of length 1 that the plugin's norms add to vectors."""
    return {variable.name: batch[variable.name].reshape(-1, *variable.shape) for variable in spec}


def _in_words(message: str) -> str:
    """Return what TensorFlow says, without the names of its functions and devices."""
    said = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", message, flags=re.DOTALL)
    return " ".join(said.split())
