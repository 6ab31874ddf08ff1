"""When what is spent once before the epochs, converting or staging, has paid for itself."""

from __future__ import annotations

import msgspec


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch."""

    epochs: float | None  # until it has paid; None where it never does, or that is unknown
    never: bool  # whether epochs get no shorter
    staging_to_epoch: float | None

    @classmethod
    def of(cls, spent_s: float | None, epoch_s: float | None, saved_s: float | None) -> BreakEven:
        """Return when it has paid, where an epoch took ``epoch_s`` and now ``saved_s`` less."""
        never = saved_s is not None and saved_s <= 0
        epochs = None if spent_s is None or saved_s is None or never else spent_s / saved_s
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        ratio = spent_s / after_s if spent_s is not None and after_s else None
        return cls(epochs, never, ratio)
