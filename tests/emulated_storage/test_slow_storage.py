"""The emulation waits as it says, is a folder like another, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
from typing import Any

import pytest

from tests.emulated_storage.slow_server import Slowness

KIB = 1 << 10


@pytest.mark.parametrize(
    ("settings", "requests", "waits_s"),
    [
        ({"latency_s": 0.02}, [{}, {}], [0.02, 0.02]),
        ({"nbytes_per_s": 1000}, [{"nbytes": 500}, {"nbytes": 250}, {"opens": 1}], [0.5, 0.75, 0]),
        ({"opens_per_s": 50}, [{"opens": 1}, {"opens": 1}, {"nbytes": 9}], [0.02, 0.04, 0]),
    ],
)
def test_requests_that_arrive_together_wait_as_long_as_is_said(
    monkeypatch: pytest.MonkeyPatch, settings: Any, requests: Any, waits_s: list[float]
) -> None:
    waits: list[float] = []
    slow_server = "tests.emulated_storage.slow_server.time"
    monkeypatch.setattr(f"{slow_server}.sleep", waits.append)
    monkeypatch.setattr(f"{slow_server}.monotonic", lambda: 7.0)
    slowness = Slowness(**settings)
    for request in requests:
        slowness.delay(7.0, **request)
    assert waits == pytest.approx(waits_s)


def test_it_is_a_folder_like_another(slow_storage: Any) -> None:
    """Written, renamed, mapped, listed and removed; a file removed while open is readable still."""
    folder = slow_storage()
    (folder / "a").mkdir()
    (folder / "a" / "part").write_bytes(b"12345678" * KIB)
    (folder / "a" / "part").replace(folder / "a" / "whole")
    (folder / "a").rename(folder / "b")
    os.link(folder / "b" / "whole", folder / "b" / "other")
    assert sorted(each.name for each in (folder / "b").iterdir()) == ["other", "whole"]
    with (folder / "b" / "whole").open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[8:16] == b"12345678"
        file.truncate(8)
        (folder / "b" / "whole").unlink()
        (folder / "b" / "other").unlink()
        assert os.fstat(file.fileno()).st_size == 8
        assert file.read() == b"12345678"
    (folder / "times").touch()
    os.utime(folder / "times", (5, 7))
    assert (folder / "times").stat().st_mtime == 7
    assert os.statvfs(folder).f_blocks > 0
    with pytest.raises(FileNotFoundError):
        (folder / "b" / "whole").stat()
