"""Adapter to ``torch.load``: reading and unpickling are one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import note_path
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches


def adapt(patches: Patches, torch: Any) -> None:
    """Time ``torch.load``, with the size of the file as its bytes."""
    patches.time(torch, "load", Kind.FUSED, "read+decode", with_cpu=True, note=note_path(0, "f"))
