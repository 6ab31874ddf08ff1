"""``instrument``: one dataset of a script that is recorded, without a hook on all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

from iobench.errors import OptionError
from iobench.tensorflow import hooks
from iobench.tensorflow.datasets_told import MARK, DatasetMark
from iobench.tensorflow.operation_kinds import checked_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.recording.kinds import Kind

D = TypeVar("D", bound=tf.data.Dataset)


def instrument(dataset: D, *, name: str = "", kinds: Mapping[str, Kind | str] | None = None) -> D:
    """Return the dataset, recorded wherever a recording goes on: ``for x in instrument(ds)``.

    Its elements and their order are the same, also under ``model.fit``, and so is what is made of
    it (``.take``, ``.prefetch``). The dataset that was given is left as it is.

    Parameters
    ----------
    name : str, optional
        What reports call it; by default its operations.
    kinds : mapping of str to Kind or str, optional
        What its operations are, before `OPERATION_KINDS`: ``{"ParallelMap": "decode"}``.

    Raises
    ------
    OptionError
        If it is no ``tf.data.Dataset``, or a kind is none of loading.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise OptionError(
            f"instrument: {type(dataset).__name__} given, expected a tf.data.Dataset; its "
            "iterators are recorded by themselves"
        )
    marked: D = dataset.with_options(tf.data.Options())
    setattr(marked, MARK, DatasetMark(name, checked_kinds(kinds)))
    hooks.see_marked()
    return marked
