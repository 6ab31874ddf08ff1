"""A loader that reads a staged copy: the same batches, one copy a node, cleaned up."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import iobench
from iobench.errors import OptionError, StorageError
from iobench.samples import SampleSpec, Variable
from iobench.staging import copying
from iobench.staging.local_disk import choose_local_disk
from iobench.staging.stage import stage
from iobench.staging.staged_copy import staged_copy
from iobench.storage import file_systems
from iobench.testing import flip_bit, random_sample, write_store
from iobench_converters import numpy_records, tfrecord
from iobench_converters.zarr_groups import FORMAT as ZARR

SPEC = SampleSpec((Variable("T", (40, 50), "f4", ("y", "x"), "K"),))
pytestmark = pytest.mark.timeout(100)
FORMATS = [numpy_records.FORMAT, tfrecord.FORMAT, ZARR]


@pytest.fixture
def local(tmp_path, monkeypatch):
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    return folder


def make(path, fmt=numpy_records.FORMAT, n_samples=24, shard_n_samples=3):
    samples = [random_sample(SPEC, seed) for seed in range(n_samples)]
    return write_store(path, fmt, SPEC, samples, shard_n_samples=shard_n_samples)


def digests(loader):
    return [hashlib.sha256(batch["T"].tobytes()).hexdigest() for batch in loader]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_staged_store_gives_the_same_batches_and_is_cleaned_up(tmp_path, local, framework):
    if framework == "torch":
        pytest.importorskip("torch", reason="tensors are torch's")
    store = make(tmp_path / "store")
    how = {"shuffle": True, "framework": framework}
    plain = iobench.loader(store.path, 4, **how)
    staged = iobench.loader(store.path, 4, stage="node", **how)
    for _ in range(2):
        for one, other in zip(plain, staged, strict=True):
            np.testing.assert_array_equal(np.asarray(one["T"]), np.asarray(other["T"]))
    assert str(local) in staged.choice
    assert "$TMPDIR is" in staged.choice
    assert str(staged.dataset.path).startswith(str(local))
    staged.close()
    plain.close()
    assert list(local.iterdir()) == []


def test_a_copy_below_a_folder_the_user_named_stays_and_is_taken_again(tmp_path):
    store = make(tmp_path / "store")
    for done in (f"copied {store.manifest.nbytes // 1000}", "was there"):
        loader = iobench.loader(store.path, 4, stage=tmp_path / "node")
        assert done[:6] in loader.choice
        loader.close()
    assert staged_copy(tmp_path / "node/store").state == "complete"


def test_auto_stages_only_what_is_not_on_this_node_already(tmp_path, local, monkeypatch, caplog):
    store = make(tmp_path / "store")
    with iobench_loader(store.path, 4, stage="auto") as loader:
        assert loader.dataset.path == store.path
    if file_systems.file_system_of(tmp_path).reach in ("local", "memory"):
        assert "is a disk of this node, or memory" in caplog.text
    over_network(monkeypatch, tmp_path / "store")
    with iobench_loader(store.path, 4, stage="auto") as loader:
        assert loader.dataset.path.is_relative_to(local)


def iobench_loader(*given, **options):
    import contextlib

    return contextlib.closing(iobench.loader(*given, **options))


def over_network(monkeypatch, *folders):
    """Let folders lie on a file system over a network, as far as anybody can tell."""
    from iobench.loaders import staged_store
    from iobench.storage import near_places

    real = file_systems.file_system_of

    def told(path):
        if any(path.is_relative_to(folder) for folder in folders):
            return file_systems.FileSystem("lustre", reach="network")
        return real(path)

    monkeypatch.setattr(near_places, "file_system_of", told)
    monkeypatch.setattr(staged_store, "file_system_of", told)


def test_what_is_no_disk_of_this_node_is_refused_with_the_reason(tmp_path, monkeypatch):
    for name in ("slurm", "tmp"):
        (tmp_path / name).mkdir()
    told = {"SLURM_TMPDIR": str(tmp_path / "slurm"), "TMPDIR": str(tmp_path / "tmp")}
    over_network(monkeypatch, tmp_path / "slurm")
    place, why = choose_local_disk("/data/store", 1000, told)
    assert place.is_relative_to(tmp_path / "tmp")
    assert why.startswith("$TMPDIR is ")
    assert "not $SLURM_TMPDIR" in why
    assert "lustre is no disk of this node" in why
    with pytest.raises(StorageError, match=r"\$TMPDIR .* do not fit"):
        choose_local_disk("/data/more", 1 << 60, told)


def test_auto_reads_in_place_what_fits_nowhere_and_node_says_so(tmp_path, monkeypatch, caplog):
    from iobench.loaders import staged_store

    def nowhere(source, nbytes):
        raise StorageError(f"no disk of this node takes a copy of {source}: none")

    store = make(tmp_path / "store")
    over_network(monkeypatch, store.path)
    monkeypatch.setattr(staged_store, "choose_local_disk", nowhere)
    with iobench_loader(store.path, 4, stage="auto") as loader:
        assert loader.dataset.path == store.path
    assert "is read where it is: no disk of this node takes a copy" in caplog.text
    with pytest.raises(StorageError, match="no disk of this node"):
        iobench.loader(store.path, 4, stage="node")


@pytest.mark.parametrize("fmt", FORMATS, ids=["numpy", "tfrecord", "zarr"])
def test_batches_are_the_same_while_the_copy_is_made(tmp_path, fmt, monkeypatch):
    store = make(tmp_path / "store", fmt)
    plain = iobench.loader(store.path, 4, shuffle=True)
    wanted = [digests(plain) for _ in range(3)]
    plain.close()
    loader = iobench.loader(
        store.path, 4, shuffle=True, stage=tmp_path / "node", stage_background=True
    )
    found = [digests(loader)]
    assert loader._copy.wait(60)
    assert "staged to" in loader.choice
    # From here on the copy is read: what is in the source is of no account any more.
    for file in store.manifest.files:
        if file.nbytes > 1000:
            flip_bit(store.path / file.name, 500)
    found += [digests(loader), digests(loader)]
    assert found == wanted
    loader.close()


def test_a_file_is_read_from_its_copy_once_that_is_verified_and_not_before(tmp_path, monkeypatch):
    store = make(tmp_path / "store", n_samples=8, shard_n_samples=4)
    # One thread copies the first shard, and waits with the second.
    import threading

    go_on, real = threading.Event(), copying._pieces
    names = [file.name for shard in store.manifest.shards for file in shard.files]

    def held_up(wanted, *more):
        if wanted.name == names[-1]:
            go_on.wait(30)
        return real(wanted, *more)

    monkeypatch.setattr(copying, "_pieces", held_up)
    opened = iobench.open_store(store.path)
    loader = iobench.loader(opened, 4, stage=tmp_path / "node", stage_background=True)
    before = digests(loader)
    files = opened.files
    deadline = threading.Event()
    for _ in range(300):
        if files.opened(0).path.startswith(str(tmp_path / "node")):
            break
        deadline.wait(0.1)
    assert files.opened(0).path == str(tmp_path / "node/store" / names[0])
    assert files.opened(1).path == str(store.path / names[-1])
    assert digests(loader) == before
    go_on.set()
    assert loader._copy.wait(60)
    assert files.opened(1).path == str(tmp_path / "node/store" / names[-1])
    assert digests(loader) == before
    loader.close()


def test_a_disk_that_fills_beside_the_training_does_not_stop_it(tmp_path, monkeypatch, caplog):
    store = make(tmp_path / "store")
    plain = iobench.loader(store.path, 4)
    real, left = os.posix_fallocate, [3]

    def fill(descriptor, start, nbytes):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(descriptor, start, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", fill)
    loader = iobench.loader(store.path, 4, stage=tmp_path / "node", stage_background=True)
    assert not loader._copy.wait(60)
    assert digests(loader) == digests(plain)
    assert "the disk is full" in caplog.text
    loader.close()
    plain.close()


def test_a_loader_that_is_closed_ends_the_copying(tmp_path, local, monkeypatch):
    store = make(tmp_path / "store")
    monkeypatch.setattr(copying, "PIECE_NBYTES", 100)
    loader = iobench.loader(store.path, 4, stage="node", stage_background=True)
    next(iter(loader))
    loader.close()
    assert list(local.iterdir()) == []


def test_nodes_with_unequal_parts_have_as_many_batches_and_all_samples(tmp_path, monkeypatch):
    store = make(tmp_path / "store", n_samples=25)  # nine shards, the last of one sample
    seen, lengths = [], set()
    for host in range(2):
        for rank in range(2):
            loader = iobench.loader(
                store.path, 3, shuffle=True, stage=tmp_path / f"node{host}",
                stage_part=(host + 1, 2), rank=rank, world_size=2,
            )  # fmt: skip
            lengths.add(len(loader))
            assert "shuffled within this node's" in loader.choice
            for batch in loader:
                seen += [sample.tobytes() for sample in batch["T"]]
            loader.close()
    assert len(lengths) == 1
    assert set(seen) == {sample["T"].tobytes() for sample in store}
    dropped = {
        len(
            iobench.loader(
                store.path, 3, stage=tmp_path / f"node{host}", stage_part=(host + 1, 2),
                rank=0, world_size=2, drop_last=True,
            )
        )
        for host in range(2)
    }  # fmt: skip
    assert dropped == {12 // 3 // 2}


def test_ranks_of_a_node_find_their_part_and_place(tmp_path, local, monkeypatch):
    store = make(tmp_path / "store")
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**told, "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with iobench_loader(store.path, 3, stage="node", stage_part="node") as loader:
        assert (loader.order.rank, loader.order.world_size, loader.order.n_samples) == (1, 2, 12)
        assert len(list(loader)) == 2


def test_options_that_cannot_be_met_are_refused(tmp_path):
    store = make(tmp_path / "store")
    node = tmp_path / "node"
    for options, why in [
        ({"stage_part": "node"}, 'go with stage="auto"'),
        ({"stage": node, "stage_part": (3, 2)}, "1 <= k <= n"),
        ({"stage": node, "stage_part": (1, 20)}, "no sample"),
        ({"stage": node, "stage_part": (1, 2), "window": "0:1"}, "no window goes"),
        ({"stage": node, "stage_part": (1, 2), "stage_background": True}, "stage_background"),
    ]:
        with pytest.raises(OptionError, match=why):
            iobench.loader(store.path, 4, **options)
    assert not node.exists()


RANK = """
    import hashlib, os, signal, sys
    import iobench
    from iobench.staging import copying, stage as staging

    copying.STRETCH_NBYTES, copying.PIECE_NBYTES = 1 << 12, 1 << 10
    if sys.argv[3] == "killed":
        real = staging.copy_files
        def copy_files(*given, moved, **more):
            told = []
            def die(nbytes):
                moved(nbytes)
                told.append(nbytes)
                if len(told) > 20:
                    print("copying", flush=True)
                    sys.stdin.readline()
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, moved=die, **more)
        staging.copy_files = copy_files
    loader = iobench.loader(sys.argv[1], 4, stage=sys.argv[2])
    digests = [hashlib.sha256(b["T"].tobytes()).hexdigest() for b in loader]
    print(hashlib.sha256("".join(digests).encode()).hexdigest(), loader._copy.copy.was_there)
    loader.close()
"""


@pytest.mark.thorough
def test_a_rank_that_is_killed_while_it_stages_is_followed_by_another(tmp_path):
    store = make(tmp_path / "store")
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))

    def start(how):
        command = [sys.executable, "rank.py", str(store.path), str(tmp_path / "node"), how]
        return subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    first = start("killed")
    assert first.stdout.readline() == "copying\n"
    others = [start("rank") for _ in range(3)]
    first.communicate("go on\n", timeout=60)
    assert first.returncode == -signal.SIGKILL
    told = [other.communicate(timeout=60) for other in others]
    assert [other.returncode for other in others] == [0, 0, 0], told
    lines = [said.split() for said, _ in told]
    assert len({digest for digest, _ in lines}) == 1
    assert sorted(was_there for _, was_there in lines) == ["False", "True", "True"]


@pytest.mark.thorough
def test_a_profile_loads_the_copy_and_has_the_time_it_took(tmp_path, iobench_here):
    from iobench.profiles.reading import open_profile
    from iobench.recording.kinds import Kind

    store = make(tmp_path / "store")
    how = ("--batch-size", "4", "--epochs", "2", "--compute", "1ms", "--workers", "1", "--digests")
    plain = iobench_here("profile", store.path, *how, "--out", "plain")
    ran = iobench_here("profile", store.path, *how, "--out", "staged", "--stage", "node")
    assert (plain.returncode, ran.returncode) == (0, 0), ran.stderr
    assert "the copy" in ran.stderr
    profile = open_profile(tmp_path / "staged")
    copy = staged_copy(tmp_path / "node/store")
    staged = profile.spans[profile.spans["kind"] == Kind.STAGE_IN]
    assert staged["nbytes"].tolist() == [copy.copied_nbytes]
    assert int(staged["end_ns"][0] - staged["start_ns"][0]) >= copy.seconds * 1e9
    told = json.loads((tmp_path / "staged/run.json").read_text())
    assert told["store"]["path"] == str(copy.path)
    (figures,) = json.loads(iobench_here("report", "staged", "--json").stdout)["runs"]
    assert figures["staging"]["nbytes"] == copy.copied_nbytes
    compared = json.loads(iobench_here("compare", "plain", "staged", "--json").stdout)
    assert compared["samples"][0]["verdict"] == "identical samples, same order"
    refused = iobench_here("profile", "maelstrom-ens10", "--stage", "node", "--tiny")
    assert "--stage node: copies stores" in refused.stderr


@pytest.mark.long
def test_storage_that_is_slow_is_read_by_several_and_staged_by_auto(tmp_path, local, slow_storage):
    latency_s, mib = 0.05, 1 << 20
    slow = slow_storage(latency_s=latency_s)
    (slow / "data").mkdir()
    for number in range(8):
        (slow / f"data/{number}.bin").write_bytes(os.urandom(2 * mib))
    # A request has 1 MiB: one thread waits for all of them, one after another.
    one = stage(slow / "data", tmp_path / "one", threads=1)
    four = stage(slow / "data", tmp_path / "four", threads=4)
    assert one.seconds >= 16 * latency_s
    assert one.digest == four.digest
    assert four.seconds < one.seconds
    bounded = slow_storage(nbytes_per_s=16 * mib)
    (bounded / "a.bin").write_bytes(os.urandom(8 * mib))
    assert stage(bounded / "a.bin", tmp_path / "bounded").bytes_per_s <= 1.1 * 16 * mib
    store = make(slow / "store")
    with iobench_loader(store.path, 4, stage="auto") as loader:
        assert loader.dataset.path.is_relative_to(local)


def test_a_quota_that_is_met_is_told_and_nothing_is_left(tmp_path, slow_storage):
    store = make(tmp_path / "store")
    node = slow_storage(quota_nbytes=store.manifest.nbytes // 2)
    with pytest.raises(StorageError, match="what was copied is removed") as caught:
        stage(store.path, node, threads=2)
    assert "\n" not in str(caught.value)
    assert list(node.iterdir()) == []
