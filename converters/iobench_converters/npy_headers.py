"""The header of an ``.npy`` file, as ``numpy.lib.format`` describes it.

Version 1.0 where it can be, as ``np.save`` does: NVIDIA DALI's reader knows no other, and wants the
comma before the closing brace. Version 3.0, whose text is UTF-8 and may be long, where names of
fields need it.
"""

from __future__ import annotations

import ast
import warnings
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["npy_header", "read_npy_header"]

ALIGNMENT: Final = 64
LENGTH_DIGITS: Final = 20
MAGIC_NBYTES: Final = 8
LENGTH_NBYTES: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x03\x00": 4}
"""By magic string and version, how many bytes hold the length of the text."""
VERSION_1, VERSION_3 = LENGTH_NBYTES
SLACK_NBYTES: Final = 4096
"""How much longer than ours a header may be, to be compared rather than refused unread."""
ERRORS: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""What NumPy and Python raise over a header that is none."""


def npy_header(dtype: np.dtype[Any], n_samples: int) -> bytes:
    """Return an ``.npy`` header of the same length for any number of samples.

    Parameters
    ----------
    dtype : dtype
        Of one sample; its shape follows the number of samples.
    n_samples : int
        First length of the array.
    """
    descr, shape = np.lib.format.dtype_to_descr(dtype.base), (n_samples, *dtype.shape)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    room = len(text) + 1 + LENGTH_DIGITS - len(str(n_samples))
    is_plain = text.isascii() and room + ALIGNMENT < 1 << 16
    magic = VERSION_1 if is_plain else VERSION_3
    before = MAGIC_NBYTES + LENGTH_NBYTES[magic]
    nbytes = -(-(before + room) // ALIGNMENT) * ALIGNMENT - before
    length = nbytes.to_bytes(LENGTH_NBYTES[magic], "little")
    return magic + length + text.ljust(nbytes - 1) + b"\n"


def read_npy_header(stream: IO[bytes], name: Path, *, dtype: np.dtype[Any], n_samples: int) -> int:
    """Check the header at the start of a file; return where the data begin.

    The header is compared, not believed: nothing in the file decides what is allocated, and a
    pickled object array is refused like any other dtype.

    Parameters
    ----------
    stream : binary file
        At its start.
    name : Path
        What errors call it.
    dtype : dtype
        Of one sample, as the store's manifest has it.
    n_samples : int
        How many there should be.

    Raises
    ------
    StoreError
        If it is damaged, or that of another array.
    """
    magic = stream.read(MAGIC_NBYTES)
    n_length = LENGTH_NBYTES.get(magic, 0)
    length = stream.read(n_length)
    if not n_length or len(length) < n_length:
        raise StoreError(f"{name}: not an .npy file as iobench writes it")
    nbytes = int.from_bytes(length, "little")
    expected = len(npy_header(dtype, n_samples)) - MAGIC_NBYTES - n_length
    if nbytes > expected + SLACK_NBYTES:
        # Parsing Python's literals takes hundreds of times their memory.
        raise StoreError(
            f"{name}: a header of {nbytes} bytes is announced, expected {expected}; "
            "convert the store again"
        )
    header = stream.read(nbytes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            values = ast.literal_eval(header.decode())
        found = np.lib.format.descr_to_dtype(values["descr"])
        shape, order = values["shape"], values["fortran_order"]
    except ERRORS as error:
        raise StoreError(f"{name}: its header is damaged; convert the store again") from error
    if found != dtype.base or shape != (n_samples, *dtype.shape) or order:
        raise StoreError(
            f"{name}: holds {found} {shape}, its store's manifest says "
            f"{dtype.base} {(n_samples, *dtype.shape)}"
        )
    return MAGIC_NBYTES + n_length + nbytes
