"""``metric``: a script's own figures, such as its loss, in the recording of what it loads."""

from __future__ import annotations

from typing import Final, SupportsFloat

from iobench.errors import OptionError
from iobench.recording.session import current_recording

LONGEST_NAME: Final = 100


def metric(name: str, value: SupportsFloat) -> None:
    """Keep a figure of the script, such as its loss, with the epoch that the training is in.

    Reports have the mean of each epoch, over all ranks; ``iobench compare``, suites and the
    quarterly table have the last epoch's beside speed and energy. Without a recording the call does
    nothing.

    Parameters
    ----------
    name : str
        1 to 100 printable characters, such as ``"validation loss"``.
    value : float
        Or what ``float()`` takes, such as a tensor of one element, which waits for its device. An
        epoch with NaN or an infinity has no mean.

    Raises
    ------
    OptionError
        If the name or the value is none of these.
    """
    if not isinstance(name, str) or not (name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise OptionError(
            f"metric {name!r}: expected a name of 1 to {LONGEST_NAME} printable characters"
        )
    if not hasattr(value, "__float__"):
        raise OptionError(f"metric {name!r}: {type(value).__name__} is no number, expected a float")
    recording = current_recording()
    if recording is None:
        return
    try:
        item = getattr(value, "item", None)  # by which a tensor with gradients does not warn
        recording.add_metric(name, float(value if item is None else item()))
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"metric {name!r}: expected a float ({error})") from error
