"""What the link to a device carries, measured over a stand-in of known rates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stand-in's memory is torch's")
sys.path.append(str(Path(__file__).parents[1] / "support"))
from fake_accelerator import FakeAccelerator, Faults

from iobench.profiling import device_link
from iobench.profiling.device_link import measure_link

MIB = 1 << 20


@pytest.mark.thorough
def test_both_rates_are_found_at_the_size_of_a_batch() -> None:
    with FakeAccelerator(
        pinned_bytes_per_s=4e8, pageable_bytes_per_s=1e8, latency_ns=1_000_000
    ) as device:
        found = measure_link(device, MIB, limit_s=20)
    assert found is not None
    assert found["nbytes"] == MIB
    # No copy is faster than the stand-in lets it be, and a loaded machine makes some slower.
    for key, nbytes, rate in (
        ("pinned_bytes_per_s", MIB, 4e8),
        ("pageable_bytes_per_s", MIB, 1e8),
    ):
        most = nbytes * 1e9 / (1_000_000 + nbytes * 1e9 / rate)
        assert 0.5 * most < found[key] <= most
    assert found["pinned_bytes_per_s"] > found["pageable_bytes_per_s"]
    assert found["n"] >= 1
    assert not device.pinned  # given back


def test_the_first_copy_of_each_sort_is_not_counted() -> None:
    with FakeAccelerator() as device:
        found = measure_link(device, MIB)
        own = [piece for piece in device.pieces if piece.nbytes == MIB]
    assert found is not None
    assert sum(piece.pinned for piece in own) == found["n"] + 1


@pytest.mark.parametrize("limit_s", [0.0, 1e-9])
def test_no_time_is_no_answer(limit_s: float) -> None:
    with FakeAccelerator() as device:
        assert measure_link(device, MIB, limit_s=limit_s) is None
        assert device.n_copies == 0


def test_a_slow_link_is_measured_by_few_copies() -> None:
    with FakeAccelerator(pinned_bytes_per_s=1e7, pageable_bytes_per_s=1e7) as device:
        found = measure_link(device, MIB, limit_s=0.3)
    assert found is not None
    assert 1 <= found["n"] < device_link.MOST_COPIES


@pytest.mark.parametrize("faults", [Faults(pinning=True), Faults(allocation=0), Faults(copy=0)])
def test_a_driver_that_refuses_is_no_error_of_the_probe(faults: Faults) -> None:
    with FakeAccelerator(faults=faults) as device:
        assert measure_link(device, MIB) is None


def test_a_large_batch_is_measured_by_as_much_as_tells_its_rate(monkeypatch) -> None:
    monkeypatch.setattr(device_link, "MOST_NBYTES", MIB)
    with FakeAccelerator() as device:
        found = measure_link(device, 1 << 40)
    assert found is not None
    assert found["nbytes"] == MIB
    assert {piece.nbytes for piece in device.pieces} == {MIB}
