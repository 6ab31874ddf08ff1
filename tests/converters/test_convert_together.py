"""Many processes, one store: claims of shards, processes that die, come late or wake up."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal

import msgspec
import pytest
from converting import content, convert
from msgspec.structs import replace

from iobench.errors import OptionError, StoreClaimedError, StoreError
from iobench.files.claims import CLAIM_NAME, JOURNAL_NAME, STALE_S, Holder, try_claim
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.stores.places import list_items, remove_item
from iobench.stores.tally import Tally
from iobench.stores.verification import verify_store
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord

SPEC = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))
N_SAMPLES = 24
INDEX = MadeUpDataset(SPEC).index(N_SAMPLES)
FORK = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(params=[tfrecord.FORMAT, numpy_records.FORMAT], ids=["tfrecord", "numpy"])
def fmt(request):
    return request.param


class Watched(MadeUpDataset):
    """Notes each read in a file shared by processes, and may do something at one of them."""

    def __init__(self, log=None, number=-1, action=None):
        super().__init__(SPEC)
        self.log, self.number, self.action = log, number, action

    def read(self, where):
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(f"{where}\n")
        if where == self.number:
            self.action()
        return super().read(where)


def run(path, *, dataset=None, fmt=tfrecord.FORMAT, **more):
    arguments = {"shard_nbytes": 2 * SPEC.nbytes, "workers": 2, "together": True} | more
    return convert(dataset or Watched(), INDEX, fmt, path, **arguments)


def start(function, *args, **more):
    process = FORK.Process(target=function, args=args, kwargs=more)
    process.start()
    return process


def held_shard(path, number, *, host=None, age_s=0.0):
    """Claim a shard of a store that was begun, as a process of another host would."""
    folder = path / JOURNAL_NAME / f"shard-{number:05d}"
    folder.mkdir()
    holder = replace(Holder.here(), host=host or "elsewhere")
    file = folder / CLAIM_NAME
    file.write_text(json.dumps(msgspec.structs.asdict(holder)))
    beat = file.stat().st_mtime - age_s
    os.utime(file, (beat, beat))
    return folder


def begun(path, **more):
    """Begin a store and end before its last shards."""

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(path, dataset=Watched(number=20, action=fail), **more)


@pytest.mark.quick_cases(0, thorough=1)
def test_of_several_processes_each_writes_other_shards(tmp_path, fmt):
    log = tmp_path / "log"
    barrier = FORK.Barrier(4)

    def at_once():
        barrier.wait()
        run(tmp_path / "store", dataset=Watched(log), fmt=fmt)

    processes = [start(at_once) for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(map(int, log.read_text().split())) == list(range(N_SAMPLES))
    run(tmp_path / "alone", fmt=fmt, together=False)
    assert content(tmp_path / "store") == content(tmp_path / "alone")
    assert verify_store(open_store(tmp_path / "store")) is not None


@pytest.mark.quick_cases(1)
def test_one_is_killed_and_one_comes_late(tmp_path, fmt):
    path, dead = tmp_path / "store", tmp_path / "dead"

    def die():
        try:
            dead.touch(exist_ok=False)
        except FileExistsError:
            return  # another process has died here
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        run(path, dataset=Watched(number=9, action=die), fmt=fmt)

    first = [start(work) for _ in range(3)]
    multiprocessing.connection.wait([process.sentinel for process in first])
    late = start(work)
    for process in [*first, late]:
        process.join()
    codes = sorted(process.exitcode for process in [*first, late])
    assert codes == [-signal.SIGKILL, 0, 0, 0]
    run(tmp_path / "alone", fmt=fmt, together=False)
    assert content(path) == content(tmp_path / "alone")


def test_alone_and_together_agree_on_the_shards(tmp_path):
    barrier, log = FORK.Barrier(2), tmp_path / "log"

    def at_once(together):
        barrier.wait()
        run(tmp_path / "store", dataset=Watched(log), together=together)

    processes = [start(at_once, together) for together in (True, False)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(map(int, log.read_text().split())) == list(range(N_SAMPLES))


def test_another_plan_is_refused_naming_the_plan_and_who_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    path, told = tmp_path / "store", []

    def look():
        with pytest.raises(StoreError) as caught:
            run(path, samples=[1])
        told.append(str(caught.value))

    run(path, dataset=Watched(number=5, action=look))
    me = f"process {os.getpid()} on {Holder.here().host} (job 4711)"
    assert f"made-up as tfrecord, begun by {me}; {me} is writing it now" in told[0]
    with pytest.raises(StoreError, match=r"made from something else.*made-up as tfrecord"):
        run(path, samples=[1])


def test_a_shard_of_a_process_elsewhere_is_left_alone(tmp_path):
    path = tmp_path / "store"
    begun(path)
    folder = held_shard(path, 11)
    (folder / "room").mkdir()
    lines = []
    with pytest.raises(StoreClaimedError, match=r"on elsewhere, which writes shard 11"):
        run(path, wait_s=0, notice=lines.append)
    assert (folder / "room").is_dir()
    assert any("waiting for process" in line for line in lines)
    assert not (path / "iobench.json").exists()


def test_a_shard_of_a_process_that_is_silent_is_taken_over(tmp_path):
    path = tmp_path / "store"
    begun(path)
    folder = held_shard(path, 11, age_s=STALE_S + 1)
    (folder / "room").mkdir()
    run(path, wait_s=0)
    run(tmp_path / "alone", together=False)
    assert content(path) == content(tmp_path / "alone")


def test_a_store_whose_shards_are_written_is_not_removed(tmp_path):
    path = tmp_path / "store"
    begun(path)
    held_shard(path, 11)
    (item,) = list_items([tmp_path])
    with pytest.raises(StoreClaimedError, match="on elsewhere"):
        remove_item(item)


def test_who_wakes_up_after_losing_a_shard_goes_on_with_the_others(tmp_path):
    path, lines = tmp_path / "store", []

    def lose():
        folder = path / JOURNAL_NAME / "shard-00003"
        dataset.number = -1
        (folder / CLAIM_NAME).unlink()
        gone = replace(Holder.here(), process_started="long ago")
        (folder / f"{CLAIM_NAME}.1").write_text(json.dumps(msgspec.structs.asdict(gone)))

    dataset = Watched(number=6, action=lose)
    run(path, dataset=dataset, notice=lines.append)
    assert any("took over" in line for line in lines)
    run(tmp_path / "alone", together=False)
    assert content(path) == content(tmp_path / "alone")


def test_what_was_done_here_and_elsewhere_is_tallied(tmp_path):
    path, tally = tmp_path / "store", Tally()
    begun(path)
    store = run(path, tally=tally)
    assert (tally.n_resumed, tally.n_written, tally.n_elsewhere) == (10, 2, 0)
    nbytes = sum(file.nbytes for shard in store.manifest.shards[10:] for file in shard.files)
    assert tally.nbytes["write"] == nbytes


def test_a_journal_that_is_removed_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "store"

    def remove():
        while (path / JOURNAL_NAME).exists():  # other threads still write in it
            shutil.rmtree(path / JOURNAL_NAME, ignore_errors=True)

    with pytest.raises(StoreError, match="its journal was removed"):
        run(path, dataset=Watched(number=6, action=remove))
    assert not (path / "iobench.json").exists()


def test_a_limit_of_time_is_for_one_process(tmp_path):
    with pytest.raises(OptionError, match="limit of time"):
        run(tmp_path / "store", limit_s=1.0)


def test_the_folder_of_a_shard_that_is_done_is_gone(tmp_path):
    path = tmp_path / "store"
    begun(path)
    assert not list((path / JOURNAL_NAME).glob("shard-*/"))
    held = try_claim(path)
    assert held is not None  # nobody holds the store between its shards
    held.release()
