"""What a child that is forked makes of what its parent has."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from typing import TYPE_CHECKING, Any

from iobench.errors import IobenchError

if TYPE_CHECKING:
    from collections.abc import Callable


def answer_of_fork(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked child; of an error of iobench's, its text."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            answers.put(function())
        except IobenchError as error:
            answers.put(str(error))
        os._exit(0)

    process = context.Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        process.start()
    answer = answers.get()
    process.join(60)
    assert process.exitcode == 0
    return answer
