"""The user's samplers, each draw of them recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _InfiniteConstantSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.torch.observation import WorkersObservation


def observed_sampler(sampler: Any, observation: WorkersObservation) -> Any:
    """Return what iterates, counts and saves its state as the sampler does.

    The one of iterable datasets stays as it is: drawing from it takes no time, and it is looked
    for by its class.
    """
    if isinstance(sampler, _InfiniteConstantSampler):
        return sampler
    return (_StatefulSampler if _saves_state(sampler) else _Sampler)(sampler, observation)


def _saves_state(what: Any) -> bool:
    return hasattr(what, "state_dict") and hasattr(what, "load_state_dict")


class _Before:
    """Stands before an object of the user's, and has what that has."""

    def __init__(self, behind: Any, observation: WorkersObservation) -> None:
        self._behind = behind
        self._observation = observation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


class _Saving:
    """What a StatefulDataLoader looks for on the class of a sampler or its iterator."""

    _behind: Any

    def state_dict(self) -> Any:
        return self._behind.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._behind.load_state_dict(state)


class _Sampler(_Before):
    def __iter__(self) -> Iterator[Any]:
        drawing = iter(self._behind)
        return (_StatefulDraws if _saves_state(drawing) else _Draws)(drawing, self._observation)

    def __len__(self) -> int:
        return len(self._behind)


class _StatefulSampler(_Saving, _Sampler):
    pass


class _Draws(_Before):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        observation = self._observation
        start_ns = observation.recorder.clock.now_ns()
        index = next(self._behind)
        observation.draw(start_ns)
        return index


class _StatefulDraws(_Saving, _Draws):
    pass
