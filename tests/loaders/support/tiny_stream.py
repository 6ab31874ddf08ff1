"""In-memory streams: items that are numbers, stages that say where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from iobench.datasets.own_pipelines import Stream, StreamStage
from iobench.samples import SampleSpec, Variable

SPEC = SampleSpec((Variable("field", (2,), "<f4", ("x",)), Variable("number", (), "<i8", ())))


def read(item: int) -> list[bytes]:
    return [np.full(2, item, "<f4").tobytes(), np.full(1, item, "<i8").tobytes()]


def decode(raw: list[bytes]) -> dict[str, Any]:
    return {"field": np.frombuffer(raw[0], "<f4"), "number": np.frombuffer(raw[1], "<i8")[0]}


def shift(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "field": sample["field"] + np.float32(0.5)}


def spread(item: tuple[int, ...]) -> Any:
    return (decode(read(number)) for number in item)


def numbers_of(epoch: int, n_samples: int) -> range:
    return range(1000 * epoch, 1000 * epoch + n_samples)


def chain(n_all: int = 10, *, threads: int = 1, ahead: int = 1, **how: Any) -> Stream:
    """Return three stages, one sample an item."""
    stages = tuple(
        StreamStage(name, run, threads=threads, ahead=ahead)
        for name, run in (("read", read), ("decode", decode), ("preprocess", shift))
    )
    options: dict[str, Any] = {
        "spec": SPEC,
        "items": lambda epoch: numbers_of(epoch, n_all),
        "stages": stages,
        "n_samples": lambda item: 1,
        "n_samples_all": n_all,
    }
    if "batches_ahead" in how:  # as ``ahead`` is the stages'
        how["ahead"] = how.pop("batches_ahead")
    return Stream(**{**options, **how})


def files(sizes: tuple[int, ...], *, threads: int = 1, ahead: int = 1, **how: Any) -> Stream:
    """Return a stream whose items are files of so many samples, read, then spread."""

    def items(epoch: int) -> Any:
        numbers = iter(numbers_of(epoch, sum(sizes)))
        return [tuple(next(numbers) for _ in range(size)) for size in sizes]

    stages = (
        StreamStage("read", lambda item: item, threads=threads, ahead=ahead),
        StreamStage("decode", spread, threads=threads, ahead=ahead, spreads=True),
        StreamStage("preprocess", shift, threads=threads, ahead=ahead),
    )
    return chain(sum(sizes), items=items, stages=stages, n_samples=len, **how)


def generator(n_samples: int = 10, **how: Any) -> Stream:
    """Return a stream without stages: the items are samples, made by the generator."""

    def items(epoch: int) -> Any:
        for number in numbers_of(epoch, n_samples):
            yield shift(decode(read(number)))

    return chain(n_samples, items=items, stages=(), makes="read+decode+preprocess", **how)


def batches(n_samples: int, batch_size: int, **how: Any) -> Stream:
    """Return a stream of whole batches, the last of a pass short."""

    def items(epoch: int) -> Any:
        numbers = numbers_of(epoch, n_samples)
        return [numbers[low : low + batch_size] for low in range(0, n_samples, batch_size)]

    def make(item: range) -> dict[str, Any]:
        return {
            "field": np.array([[n, n] for n in item], "<f4") + np.float32(0.5),
            "number": np.array(item, "<i8"),
        }

    stage = StreamStage("read+decode", make)
    return chain(n_samples, items=items, stages=(stage,), n_samples=len, batched=True, **how)


def with_stage(stream: Stream, position: int, **changes: Any) -> Stream:
    stages = list(stream.stages)
    stages[position] = replace(stages[position], **changes)
    return replace(stream, stages=tuple(stages))
