from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from iobench.errors import StoreClaimedError
from iobench.files.claims import CLAIM_NAME, STALE_S, Holder, claim, find_holder


def leave_claim(path, holder, *, age_s=0.0, name=CLAIM_NAME):
    """Put somebody's claim there, last touched so long ago."""
    file = path / name
    file.write_text(json.dumps(msgspec.structs.asdict(holder)))
    seen_ns = file.stat().st_mtime_ns - int(age_s * 1e9)
    os.utime(file, ns=(seen_ns, seen_ns))
    return file


def dead_holder():
    """A process of this host that has ended."""
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        check=True,
        capture_output=True,
        text=True,
    )
    return replace(Holder.here(), pid=int(ended.stdout), token="dead")


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

ELSEWHERE = replace(Holder.here(), host="elsewhere", pid=7, token="other")


def claims(path):
    return sorted(file.name for file in path.iterdir())


def test_claim_is_held_and_given_back(tmp_path):
    with claim(tmp_path) as held:
        assert find_holder(tmp_path) == held.holder
        held.check()
    assert claims(tmp_path) == []


def test_error_gives_the_claim_back(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim(tmp_path):
        raise KeyboardInterrupt
    assert claims(tmp_path) == []


def test_live_claim_is_refused_by_name(tmp_path):
    leave_claim(tmp_path, ELSEWHERE)
    with (
        pytest.raises(StoreClaimedError, match="process 7 on elsewhere"),
        claim(tmp_path, wait_s=0),
    ):
        pass
    assert claims(tmp_path) == [CLAIM_NAME]


def test_waiting_is_told_once_and_ends(tmp_path):
    file = leave_claim(tmp_path, ELSEWHERE)
    lines = []

    def told(line):
        lines.append(line)
        file.unlink()

    with claim(tmp_path, notice=told):
        pass
    assert len(lines) == 1
    assert "process 7 on elsewhere" in lines[0]


def test_claim_of_a_dead_process_is_taken_over(tmp_path):
    leave_claim(tmp_path, dead_holder())
    with claim(tmp_path, wait_s=0):
        assert claims(tmp_path) == [f"{CLAIM_NAME}.1"]
    assert claims(tmp_path) == []


def test_claim_of_another_process_with_the_same_number_is_taken_over(tmp_path):
    leave_claim(tmp_path, replace(Holder.here(), process_started="1", token="before reboot"))
    with claim(tmp_path, wait_s=0):
        pass


def test_silent_claim_is_taken_over_and_its_holder_notices(tmp_path):
    with claim(tmp_path) as first:
        os.utime(first.file, ns=(0, 0))
        with claim(tmp_path, wait_s=0) as second:
            second.check()
            with pytest.raises(StoreClaimedError, match="took over"):
                first.check()
    assert claims(tmp_path) == []


@pytest.mark.parametrize("age_s", [0, STALE_S - 10])
def test_claim_with_a_heartbeat_is_not_taken_over(tmp_path, age_s):
    leave_claim(tmp_path, ELSEWHERE, age_s=age_s)
    with pytest.raises(StoreClaimedError), claim(tmp_path, wait_s=0):
        pass


def test_unreadable_claim_is_left_until_it_is_old(tmp_path):
    file = tmp_path / CLAIM_NAME
    file.write_text("not JSON")
    os.utime(file, ns=(0, 0))
    with claim(tmp_path, wait_s=0):
        pass


def test_generations_go_on_from_the_newest(tmp_path):
    leave_claim(tmp_path, ELSEWHERE, age_s=100)
    leave_claim(tmp_path, ELSEWHERE, age_s=90, name=f"{CLAIM_NAME}.9")
    with claim(tmp_path, wait_s=0):
        assert claims(tmp_path) == [f"{CLAIM_NAME}.10"]


@pytest.mark.timeout(60)
def test_forked_child_gives_nothing_back(tmp_path):
    with claim(tmp_path) as held:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=held.release)
        child.start()
        child.join()
        assert child.exitcode == 0
        held.check()


def count_up(path, n_rounds):
    """Add one to a number in a file, without any lock but the claim."""
    for _ in range(n_rounds):
        with claim(path):
            number = path.parent / "number"
            number.write_text(str(int(number.read_text()) + 1))


@pytest.mark.quick_cases(1)
@pytest.mark.timeout(90)
@pytest.mark.parametrize("left_behind", [False, True])
def test_only_one_process_at_a_time(tmp_path, left_behind):
    (tmp_path / "number").write_text("0")
    folder = tmp_path / "store"
    folder.mkdir()
    if left_behind:
        leave_claim(folder, dead_holder())
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count_up, args=(folder, 5)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "number").read_text() == "20"
