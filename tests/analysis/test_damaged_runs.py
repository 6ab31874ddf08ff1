"""Damaged span files: an answer whose parts add up, or a refusal; never a crash."""

from __future__ import annotations

import json
from random import Random

import pytest
from invariants import check
from run_files import DAMAGES, distort
from schedules import Script, pool, stream

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import IobenchError
from iobench.recording import span_file as layout
from iobench.runs.reading import open_profile

N_QUICK, N_ALL = 25, 10_000


def script():
    result = Script()
    train, other = result.loader(2, 2, start_ns=7), result.loader(0, 0, (5, 5, 1))
    for step in range(30):
        result.train(train, 1, 9, end=False)
        if step % 4 == 0:
            other.next()
    train.end()
    other.end()
    return result


RUNS = {
    "pool": lambda: pool(
        [(30 + 7 * (n % 5), 20, 10) for n in range(40)],
        workers=2, step_ns=25, handover_ns=2, drain_ns=3,
    ),
    "out of order": lambda: pool(
        [(10 + 90 * (n % 7 == 0), 20, 0) for n in range(40)], workers=3, step_ns=15, in_order=False
    ),
    "serial": lambda: pool([(6, 5, 4)] * 30, workers=0, step_ns=3),
    "stream": lambda: stream(
        [(10, 4 + n % 3, 3) for n in range(60)], [8] * 30, batch_size=2, collate_ns=2
    ),
    "script": script,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run directories of several kinds, and their span files."""
    folder = tmp_path_factory.mktemp("runs")
    return [(folder / name, write_run(folder / name, make())) for name, make in RUNS.items()]


def write_run(path, sketch):
    """Write a run directory; return its span files, by process."""
    sketch.write(path)
    return sorted(path.glob("spans/*.spans"))


def examine(path):
    """Open a run and use all that is told of it."""
    profile = open_profile(path)
    check(profile)
    for rank in Run(profile):
        diagnose(rank.exposure)
        for run in recorded_runs(rank):
            assert len(run) <= rank.exposure.whole.n_batches
            assert not run.can_replay or replay(run).wall_ns >= 0
    return profile


def outcome(path):
    """Return the profile, examined, or the error that refuses it."""
    try:
        return examine(path)
    except IobenchError as error:
        return error


def damaged(runs, seed):
    """Damage one span file of one run, and return what comes of it; the file is mended."""
    random = Random(seed)
    path, files = random.choice(runs)
    file = random.choice(files)
    sound = file.read_bytes()
    data = bytearray(sound)
    for _ in range(random.choice((1, 1, 2))):
        if len(data) > layout.HEADER_NBYTES + layout.RECORD_NBYTES:
            random.choice(DAMAGES)(data, random)
    file.write_bytes(data)
    found = outcome(path)
    file.write_bytes(sound)
    if isinstance(found, IobenchError):
        assert str(path) in str(found)
        assert "\n" not in str(found)
    return found


def test_of_damaged_span_files_an_answer_that_adds_up_or_a_refusal(runs):
    for seed in range(N_QUICK):
        damaged(runs, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_ten_thousand_damaged_span_files_as_well(runs):
    found = [damaged(runs, seed) for seed in range(N_ALL)]
    answered = [profile for profile in found if not isinstance(profile, IobenchError)]
    # Neither all refused nor all taken as they are.
    assert 0.5 * N_ALL < len(answered) < 0.99 * N_ALL
    assert sum(profile.lost_spans > 0 for profile in answered) > 0.3 * N_ALL


@pytest.mark.long
def test_documents_that_say_what_cannot_be(runs):
    documents = [
        file for path, _ in runs for file in (path / "run.json", *path.glob("processes/*.json"))
    ]
    refused = 0
    for seed in range(120):
        random = Random(seed)
        file = random.choice(documents)
        sound = file.read_text()
        file.write_text(json.dumps(distort(json.loads(sound), random)))
        found = outcome(file.parent if file.name == "run.json" else file.parents[1])
        file.write_text(sound)
        refused += isinstance(found, IobenchError)
    assert 0 < refused < 120


@pytest.mark.parametrize("name", RUNS)
def test_what_is_not_damaged_comes_back_as_it_was(tmp_path, name):
    whole = RUNS[name]()
    write_run(tmp_path / "run", whole)
    found = open_profile(tmp_path / "run")
    assert found.lost_spans == 0
    assert exposure(found) == exposure(whole.data())


@pytest.mark.parametrize("name", ["pool", "script"])
def test_a_training_process_that_left_nothing_is_missing_and_nothing_is_said_to_be_exposed(
    tmp_path, name
):
    files = write_run(tmp_path / "run", RUNS[name]())
    files[0].unlink()
    figures = exposure(open_profile(tmp_path / "run"))
    assert figures.missing_workers[0] == "training process 0"
    assert figures.has_consumer
    assert (figures.whole.n_batches, figures.whole.wait) == (0, None)
    assert diagnose(figures).verdict is Verdict.NO_BATCH


def test_a_configuration_that_says_little_is_enough(tmp_path):
    """As of profiles older than what is written today: what is not told is as it was seen."""
    whole = RUNS["pool"]()
    write_run(tmp_path / "run", whole)
    (tmp_path / "run" / "run.json").write_text('{"version": 1}')
    found, expected = exposure(open_profile(tmp_path / "run")), exposure(whole.data())
    assert found.whole.exposed_ns == expected.whole.exposed_ns
    assert found.whole.n_samples is None
    assert found.workers == 2
