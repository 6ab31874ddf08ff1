"""Claims on stores in a bucket: objects that one process creates, renews and loses."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from iobench.errors import StorageError, StoreClaimedError
from iobench.files import claims as claims_module
from iobench.files.claims import (
    CLAIM_NAME,
    claim,
    find_claim_files,
    find_holder,
    renew_claim_file,
    time_ns_at,
    try_claim,
)
from iobench.files.urls import as_path
from iobench.stores.places import make_item


@pytest.fixture
def place(bucket):
    return as_path(f"s3://{bucket}/some folder/store")


def test_a_claim_is_held_renewed_and_taken_over(place, monkeypatch):
    with claim(place) as held:
        assert find_holder(place) == held.holder
        assert try_claim(place) is None
        (found,) = find_claim_files(place)
        assert abs(time_ns_at(place) - found.beat_ns) < 30e9  # both are times of the server
        renew_claim_file(held.file)
        held.check()
        written = held.file.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(claims_module, "STALE_S", -1.0)
            other = try_claim(place)
        assert other.file.name == f"{CLAIM_NAME}.1"
        with pytest.raises(FileNotFoundError):
            renew_claim_file(held.file)
        # A heartbeat that brings the old one back does not bring the claim back.
        held.file.write_bytes(written)
        with pytest.raises(StoreClaimedError, match="took over"):
            held.check()
        other.check()
        other.release()


def test_a_claim_of_a_process_that_ended_is_free(place):
    held = try_claim(place)
    gone = replace(held.holder, process_started="long ago", token="gone")
    held.release()
    (place / CLAIM_NAME).write_bytes(json.dumps(msgspec.structs.asdict(gone)).encode())
    with claim(place, wait_s=0) as again:
        again.check()


def test_a_folder_of_others_is_refused(place):
    (place / "precious.nc").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"precious\.nc, which iobench did not make"):
        make_item(place, kind="store", title="x")
