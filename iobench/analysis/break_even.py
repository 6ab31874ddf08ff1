"""When what is spent once before the epochs, converting or staging, has paid for itself."""

from __future__ import annotations

import msgspec


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch."""

    epochs: float | None  # until it has paid; None where it never does, or that is unknown
    never: bool  # whether epochs get no shorter
    staging_to_epoch: float | None

    @classmethod
    def of(
        cls,
        spent_s: float | None,
        epoch_s: float | None,
        saved_s: float | None,
        first_saved_s: float | None = None,
    ) -> BreakEven:
        """Return when it has paid, where an epoch took ``epoch_s`` and now ``saved_s`` less.

        The first epoch may take ``first_saved_s`` less instead.
        """
        first_s = saved_s if first_saved_s is None else first_saved_s
        if spent_s is None or saved_s is None or first_s is None:
            epochs = None
        elif first_s > 0 and spent_s <= first_s:
            epochs = spent_s / first_s
        else:
            epochs = 1 + (spent_s - first_s) / saved_s if saved_s > 0 else None
        never = saved_s is not None and saved_s <= 0 and epochs is None
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        ratio = spent_s / after_s if spent_s is not None and after_s else None
        return cls(epochs, never, ratio)
