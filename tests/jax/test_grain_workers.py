"""Worker processes of grain under ``iobench run``: which of them did what for which batch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
pytest.importorskip("grain", reason="its worker processes are what is recorded")

from reference import reference

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.replay import replay, replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.profiles.reading import open_profile
from iobench.recording.kinds import Kind

pytestmark = pytest.mark.timeout(300)
NS = 1_000_000_000
RUN = [sys.executable, "-c", "from iobench.cli import main; raise SystemExit(main())", "run"]
SCRIPT = """
    import sys
    import time
    import grain
    import numpy as np
    from absl import flags

    class Fields:
        def __len__(self):
            return 30

        def __getitem__(self, number):
            time.sleep(0.004)
            return {"x": np.full((64, 64), number, np.float32), "number": np.int64(number)}

        def __repr__(self):
            return "Fields()"

    class Scale(grain.transforms.Map):
        def map(self, element):
            time.sleep(0.001)
            return {**element, "x": 2 * element["x"]}

    class Jitter(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return {**element, "noise": rng.normal()}

    IN_LOOP = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    WORKERS = grain.multiprocessing.MultiprocessingOptions(num_workers=2)

    def loader(epochs=1):
        sampler = grain.samplers.IndexSampler(
            num_records=30, num_epochs=epochs, shuffle=True, seed=5,
            shard_options=grain.sharding.NoSharding(),
        )
        return grain.DataLoader(
            data_source=Fields(), sampler=sampler, worker_count=2, read_options=IN_LOOP,
            operations=[Scale(), Jitter(), grain.transforms.Batch(3)],
        )

    def told(batch):
        print(batch["number"].tolist(), batch["x"].sum(), np.sum(batch.get("noise", 0)))
"""
WHOLE = """
    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        for batch in loader():
            told(batch)
            time.sleep(0.04)
"""
JOINED = """
    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        data = grain.MapDataset.source(Fields()).shuffle(seed=3).map(Scale()).to_iter_dataset()
        for batch in data.mp_prefetch(WORKERS).batch(3):
            told(batch)
"""
OWN = """
    class Numbers(grain.DatasetIterator):
        def __init__(self):
            super().__init__()
            self.next = 0

        def __next__(self):
            if self.next == 6:
                raise StopIteration
            time.sleep(0.004)
            self.next += 1
            return np.full((64, 64), self.next)

        def get_state(self):
            return {"next": self.next}

        def set_state(self, state):
            self.next = state["next"]

    class OwnData(grain.IterDataset):
        def __iter__(self):
            return Numbers()

    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        data = OwnData().batch(2)
        one = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
        for batch in data.mp_prefetch(one):
            print([int(batch.sum())])
"""
FASTER = """
    class Slow(Fields):
        def __getitem__(self, number):
            time.sleep({read_s})
            return {{"x": np.full(4, number)}}

        def __len__(self):
            return 480

    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        sampler = grain.samplers.IndexSampler(
            num_records=480, num_epochs=1, shard_options=grain.sharding.NoSharding()
        )
        data = grain.DataLoader(
            data_source=Slow(), sampler=sampler, worker_count=2, read_options=IN_LOOP,
            operations=[grain.transforms.Batch(4)],
        )
        for batch in data:
            time.sleep(0.005)
"""
RESUMED = """
    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        first = iter(loader(2))
        for _ in range(3):
            next(first)
        state = first.get_state()
        again = iter(loader(2))
        again.set_state(state)
        for batch in again:
            told(batch)
"""


def run(tmp_path: Path, rest: str, *, plainly: bool = False) -> tuple[Any, list[str]]:
    """Return what a script did and printed: the same as without iobench."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT) + textwrap.dedent(rest))
    command = [sys.executable, str(script)]
    out = ["--out", str(tmp_path / "run"), "--no-report"]
    printed = [
        subprocess.run(each, capture_output=True, text=True, check=True).stdout.splitlines()
        for each in ([*RUN, *out, "--", *command], *([command] if plainly else []))
    ]
    lines = [[line for line in each if line.startswith("[")] for each in printed]
    assert lines[0] == lines[-1]
    return open_profile(tmp_path / "run"), lines[0]


def of_workers(profile: Any, kind: Kind, label: str = "") -> Any:
    workers = [index for index, each in enumerate(profile.processes) if each.role == "worker"]
    spans = profile.spans[np.isin(profile.spans["process"], workers)]
    spans = spans[spans["kind"] == kind]
    return spans[spans["label"] == profile.string_number(label)] if label else spans


def delivered(profile: Any) -> Any:
    waits = profile.spans[(profile.spans["kind"] == Kind.WAIT) & (profile.spans["batch"] >= 0)]
    return waits[np.argsort(waits["start_ns"])]


def test_workers_that_make_whole_batches(tmp_path: Path) -> None:
    profile, batches = run(tmp_path, WHOLE, plainly=True)
    waits = delivered(profile)
    assert len(waits) == len(batches) == 10
    assert (np.diff(waits["batch"]) > 0).all()
    made = of_workers(profile, Kind.FUSED)
    scaled = of_workers(profile, Kind.PREPROCESS, "Scale")
    (loader,) = next(each.loaders for each in profile.facts if each.loaders)
    ahead: list[int] = []
    for number, maker in zip(waits["batch"], waits["detail"], strict=True):
        own = made[made["batch"] == number]
        assert len(own) == len(scaled[scaled["batch"] == number]) == 3
        # By one process, which the loop says has made it; a sleep takes no less than it is told.
        (process,) = np.unique(own["process"])
        assert f"worker-{profile.processes[process].worker}" == profile.strings[maker]
        assert (own["end_ns"] - own["start_ns"]).sum() >= 3 * 0.004 * NS
        # It was begun when the batch 2 * 1 + 2 before it, of the same worker, had been taken.
        before = waits[waits["detail"] == maker]
        n_taken = (before["end_ns"] < own["start_ns"].min()).sum()
        ahead.append(int((before["batch"] < number).sum() - n_taken))
    assert max(ahead) == loader.prefetch - 1 == 3
    assert set(waits["nbytes"].tolist()) == {3 * (64 * 64 * 4 + 8 + 8)}
    assert (loader.workers, loader.batch_size, loader.start_method) == (2, 3, "spawn")
    assert len(loader.worker_pids) == 2
    assert loader.unseen == []
    (recorded,) = recorded_runs(Run.open(tmp_path / "run").of_rank())
    assert (recorded.rule, recorded.workers, recorded.reason) == (LoaderRule.POOL, 2, "")
    assert recorded.in_order
    whole = exposure(profile).whole
    assert reference(profile) == pytest.approx(
        {stage: ns for stage, ns in whole.exposed_ns.items() if ns}, abs=len(waits), rel=0.01
    )


def test_workers_whose_samples_are_joined_later(tmp_path: Path) -> None:
    profile, batches = run(tmp_path, JOINED)
    waits = delivered(profile)
    assert len(waits) == len(batches) == 10
    made = of_workers(profile, Kind.FUSED)  # by threads of each worker
    for number in waits["batch"]:
        assert (made["batch"] == number).sum() == 3
    joined = profile.spans[profile.spans["kind"] == Kind.COLLATE]
    assert np.isin(joined["batch"], waits["batch"]).all()
    assert len(joined) == 10
    (recorded,) = recorded_runs(Run.open(tmp_path / "run").of_rank())
    assert recorded.rule is LoaderRule.OPAQUE
    assert (
        recorded.reason == "its workers make samples, which the training process joins to batches"
    )


@pytest.mark.long
def test_a_dataset_of_the_scripts_own_goes_to_a_worker_as_it_is(tmp_path: Path) -> None:
    profile, batches = run(tmp_path, OWN)
    assert batches == [f"[{64 * 64 * each}]" for each in (3, 7, 11)]
    waits, made = delivered(profile), of_workers(profile, Kind.FUSED)
    for number in waits["batch"]:
        own = made[made["batch"] == number]
        assert (own["end_ns"] - own["start_ns"]).sum() >= 2 * 0.004 * NS
    assert {profile.strings[each] for each in waits["detail"].tolist()} == {"worker-0"}


@pytest.mark.long
def test_a_state_that_was_set_moves_no_batch_to_another(tmp_path: Path) -> None:
    profile, batches = run(tmp_path, RESUMED)
    waits = delivered(profile)
    assert len(batches) == 17
    assert len(waits) == 20
    assert len(np.unique(waits["batch"])) == 20
    assert (np.diff(waits["batch"][3:]) > 0).all()
    made = of_workers(profile, Kind.FUSED)
    for number, maker in zip(waits["batch"], waits["detail"], strict=True):
        own = made[made["batch"] == number]
        (process,) = np.unique(own["process"])
        assert f"worker-{profile.processes[process].worker}" == profile.strings[maker]
        assert len(own) == 3
    (loader, again) = next(each.loaders for each in profile.facts if each.loaders)
    told = "epochs: a pass of this loader goes over its samples 2 times; it counts as one"
    assert loader.unseen == again.unseen == [told]


@pytest.mark.long
def test_a_replay_foretells_what_faster_reading_gains(tmp_path: Path) -> None:
    def recorded(read_s: float) -> Any:
        folder = tmp_path / f"{read_s}"
        folder.mkdir()
        run(folder, FASTER.format(read_s=read_s))
        (found,) = recorded_runs(Run.open(folder / "run").of_rank())
        return found

    slow, fast = recorded(0.010), recorded(0.005)
    assert max(abs(replay_error(each)) for each in (slow, fast)) < 0.02
    took_ns, obtained_ns = (int(replay(each).judged_ns.sum()) for each in (slow, fast))
    # By as much as reading was faster, which is half only where sleeps take what they are told.
    slow_ns, fast_ns = (
        each.work_ns[each.judged, each.stages.index("fused")].sum() for each in (slow, fast)
    )
    faster = Change(stage_factors={"fused": float(fast_ns / slow_ns)})
    predicted_ns = int(replay(slow, faster).judged_ns.sum())
    assert took_ns - predicted_ns == pytest.approx(took_ns - obtained_ns, rel=0.15)
