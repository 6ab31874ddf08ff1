"""Runs on a file system that stands for a shared one, with a spool beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iobench.recording.mounts import file_system_at

if TYPE_CHECKING:
    import pytest


def on_shared(monkeypatch: pytest.MonkeyPatch, shared: Path, spool: Path | None = None) -> None:
    """Let every path under ``shared`` lie on a parallel file system, and ``spool`` on the node."""
    monkeypatch.setattr(
        "iobench.recording.run_directory.read_mounts",
        lambda: [file_system_at(str(shared), "lustre"), file_system_at("/", "ext4")],
    )
    if spool is not None:
        spool.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("SLURM_TMPDIR", str(spool))
