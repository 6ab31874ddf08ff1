from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import MissingFileError
from iobench.stores.plan import fingerprint, probe_samples


@given(st.integers(0, 500), st.integers(0, 500))
def test_probe_takes_no_sample_twice(n_available, n_wanted):
    chosen = probe_samples(n_available, n_wanted)
    assert len(set(chosen)) == len(chosen) == min(n_available, n_wanted)
    assert all(0 <= number < n_available for number in chosen)


@given(st.integers(1, 500), st.integers(1, 500))
def test_probe_leaves_no_wide_gap(n_available, n_wanted):
    chosen = sorted(probe_samples(n_available, n_wanted))
    gaps = [
        after - before for before, after in zip(chosen, [*chosen[1:], n_available], strict=True)
    ]
    assert max(gaps) <= -(-n_available // len(chosen))


def test_beginning_of_a_probe_is_spread_as_well():
    assert probe_samples(100, 8)[:4] == [0, 50, 25, 75]


def test_fingerprint_sees_size_first_and_last_bytes(tmp_path):
    file = tmp_path / "a"
    found = []
    for data in (b"a" * 300_000, b"a" * 300_001, b"b" + b"a" * 299_999, b"a" * 299_999 + b"b"):
        file.write_bytes(data)
        found.append(str(fingerprint(file)))
    assert len(set(found)) == 4


def test_fingerprint_of_a_folder_sees_names_sizes_and_some_bytes(tmp_path):
    folder = tmp_path / "own.zarr"
    (folder / "v").mkdir(parents=True)
    found = [fingerprint(folder)]
    for name, data in (("0", b"a"), ("1", b"a"), ("1", b"ab"), ("1", b"bb"), ("2", b"bb")):
        (folder / "v" / name).write_bytes(data)
        found.append(fingerprint(folder))
    assert [each["nbytes"] for each in found] == [0, 1, 2, 3, 3, 5]
    assert len({str(each) for each in found}) == 6
    assert found[-1] == fingerprint(folder)


def test_fingerprint_of_a_file_that_went_names_it(tmp_path):
    with pytest.raises(MissingFileError, match="gone"):
        fingerprint(tmp_path / "gone")
