from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from iobench.stores.tally import Tally


def test_threads_add_up():
    tally = Tally()

    def work(nbytes):
        with tally.timed("read", nbytes):
            pass
        tally.add_nbytes("decode", 2 * nbytes)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(100)))
    assert tally.nbytes == {"read": 4950, "decode": 9900}
    assert tally.seconds["read"] > 0
    assert "decode" not in tally.seconds


def test_what_failed_took_time_and_gave_nothing():
    tally = Tally()
    with pytest.raises(ValueError, match="no"), tally.timed("read", 5):
        raise ValueError("no")
    assert tally.nbytes == {"read": 0}
    assert tally.seconds["read"] > 0


def test_what_others_tallied_is_added():
    one, other = Tally(), Tally()
    with other.timed("write", 7):
        pass
    other.count(written=1)
    one.count(written=1, resumed=2)
    one.merge(other.to_dict())
    assert one.to_dict()["shards"] == {"written": 2, "resumed": 2}
    assert one.nbytes == {"write": 7}
    assert one.seconds == pytest.approx(other.seconds)
