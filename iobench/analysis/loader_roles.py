"""Which loaders train and which evaluate, by what a run tells; most often nobody says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.recording.kinds import Kind, Trait, is_one_of, kinds_that

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.profiles.contents import Profile

__all__ = ["EVALUATION", "TRAINING", "by_importance", "roles_of_loaders"]

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
TRAINS: Final = kinds_that(Trait.TRAINS)


def roles_of_loaders(
    profile: Profile, loop: TrainingLoop, deliveries: Deliveries
) -> dict[int, str]:
    """Return `TRAINING` or `EVALUATION` by number of loader, for those of which it is known.

    A batch that a backward pass or a step follows trains. A loader evaluates if only evaluations
    follow its batches, or if it was asked with gradients switched off alone.
    """
    spans = profile.spans
    spans = spans[
        (spans["process"] == loop.process) & is_one_of(spans["kind"], TRAINS | {Kind.EVALUATE})
    ]
    place = deliveries.at(spans["start_ns"].astype(np.int64))
    spans, loader = spans[place >= 0], deliveries.loader[place[place >= 0]]
    trains = is_one_of(spans["kind"], TRAINS)
    roles = {number: EVALUATION for number, each in loop.loaders.items() if each.gradients is False}
    roles |= dict.fromkeys(np.unique(loader[~trains]).tolist(), EVALUATION)
    # Of a loader that does both, what trains counts.
    return roles | dict.fromkeys(np.unique(loader[trains]).tolist(), TRAINING)


def by_importance(deliveries: Deliveries, roles: Mapping[int, str]) -> list[int]:
    """Return the numbers of the loaders that brought batches: the one that a report is about first.

    Those that train come before those of which nobody knows, and those that evaluate come last;
    of each sort the one with most batches is first.
    """
    numbers, counts = np.unique(deliveries.loader[deliveries.batch >= 0], return_counts=True)
    rank = {TRAINING: 0, EVALUATION: 2}
    return sorted(
        numbers.tolist(),
        key=lambda number: (
            rank.get(roles.get(number, ""), 1),
            -counts[numbers == number][0],
            number,
        ),
    )
