"""Damaged span files: an answer whose parts add up, or a refusal; never a crash."""

from __future__ import annotations

import json
import zlib
from random import Random

import numpy as np
import pytest
from invariants import check
from schedules import Script, pool, stream

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import IobenchError
from iobench.recording import span_file as layout
from iobench.runs.reading import open_profile

N_DAMAGED = 150
RECORD = layout.RECORD_NBYTES
HUGE = (2**31 - 1, 2**31, 2**40, 2**53, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63))
ODD = (None, True, -1, 0, 3, 10**30, 1.5, float("nan"), "two", "", [], ["a"], [[]], {}, {"a": "b"})


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


def records(data):
    """Return where the records are that hold spans or texts; the first one if none does."""
    n_rows = len(data) // RECORD
    used = np.frombuffer(data, np.uint8, n_rows * RECORD).reshape(-1, RECORD).any(axis=1)
    starts = np.flatnonzero(used) * RECORD
    inside = (starts - layout.HEADER_NBYTES) % layout.CHUNK_NBYTES != 0
    return starts[inside & (starts > layout.HEADER_NBYTES)].tolist() or [0]


def used(data, random):
    """Return a place where something is written: mostly in a record, else in a head."""
    if random.random() < 0.7:
        return random.choice(records(data)) + random.randrange(RECORD)
    heads = range(layout.HEADER_NBYTES, len(data) - RECORD, layout.CHUNK_NBYTES)
    place = random.choice((0, *heads))
    return place + random.randrange(RECORD if place else 600)


def absurd(random):
    value = random.choice((*HUGE, None))
    return random.randbytes(8) if value is None else value.to_bytes(8, "little", signed=True)


def flip(data, random):
    for _ in range(random.choice((1, 1, 2, 8, 100))):
        data[used(data, random)] ^= 1 << random.randrange(8)


def cut(data, random):
    del data[random.choice((random.randrange(len(data)), used(data, random))) :]


def overwrite(data, random):
    low = used(data, random)
    high = min(low + random.choice((1, 8, RECORD, 300, 5000, 70_000)), len(data))
    length = high - low
    data[low:high] = random.choice((bytes(length), random.randbytes(length)))


def misplace(data, random):
    """Write a record over others, or swap them; mostly with the sequence numbers that hide it."""
    length, swaps = random.choice((RECORD, RECORD - 4)), random.random() < 0.5
    for _ in range(random.choice((1, 5, 20))):
        one, other = (random.choice(records(data)) for _ in range(2))
        first, second = (bytes(data[place : place + length]) for place in (one, other))
        data[other : other + length] = first
        if swaps:
            data[one : one + length] = second


def misfit(data, random):
    """Give some fields of some records values that they cannot have; times also others."""
    names = random.sample(layout.SPAN_DTYPE.names, k=random.choice((1, 2)))
    by = random.choice((1, 100, 10**6, 10**12, 2**50, 2**61)) * random.choice((1, -1))
    for place in random.choices(records(data), k=random.choice((1, 1, 5, 40))):
        for name in names:
            dtype, offset = layout.SPAN_DTYPE.fields[name][:2]
            at, value = place + offset, absurd(random)
            if name in ("start_ns", "end_ns"):
                was = int.from_bytes(data[at : at + 8], "little", signed=True)
                moved = max(min(was + by, 2**63 - 1), -(2**63))
                value = moved.to_bytes(8, "little", signed=True)
            data[at : at + dtype.itemsize] = value[: dtype.itemsize]


def misname(data, random):
    """Change the header's fields; mostly with the checksum that makes them believed."""
    field = random.choice((8, 16, 24, 32, 40, 48, 56, 64, 96, 352, 512, 520, 528, 536, 544))
    small = random.randrange(4).to_bytes(8, "little")
    data[field : field + 8] = random.choice((absurd(random), small))
    if random.random() < 0.8:
        crc = zlib.crc32(data[: layout.IDENTITY.size])
        layout.IDENTITY_CRC.pack_into(data, layout.IDENTITY_CRC_OFFSET, crc)


DAMAGES = (flip, cut, overwrite, misplace, misfit, misname)


def distort(document, random):
    """Return a JSON document one of whose values, keys included, is another."""
    if isinstance(document, dict) and document and random.random() < 0.9:
        key = random.choice(sorted(document))
        changed = {**document}
        if random.random() < 0.1:
            del changed[key]
        else:
            changed[key] = distort(document[key], random)
        return changed
    if isinstance(document, list) and document and random.random() < 0.7:
        place = random.randrange(len(document))
        return [distort(each, random) if i == place else each for i, each in enumerate(document)]
    return random.choice(ODD)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run directories of several kinds, and their span files."""
    folder = tmp_path_factory.mktemp("runs")
    return [(folder / name, write_run(folder / name, make())) for name, make in RUNS.items()]


def write_run(path, sketch):
    """Write a run directory; return its span files, by process."""
    sketch.write(path)
    return sorted(path.glob("spans/*.spans"))


def outcome(path):
    """Open a run and use all that is told of it; return it, or the error that refuses it."""
    try:
        profile = open_profile(path)
        check(profile)
        for rank in Run(profile):
            diagnose(rank.exposure)
            for run in recorded_runs(rank):
                assert len(run) <= rank.exposure.whole.n_batches
                assert not run.can_replay or replay(run).wall_ns >= 0
    except IobenchError as error:
        return error
    return profile


def damaged(runs, seed):
    """Damage one span file of one run, and return what comes of it; the file is mended."""
    random = Random(seed)
    path, files = random.choice(runs)
    file = random.choice(files)
    sound = file.read_bytes()
    data = bytearray(sound)
    for _ in range(random.choice((1, 1, 2))):
        if len(data) > layout.HEADER_NBYTES + RECORD:
            random.choice(DAMAGES)(data, random)
    file.write_bytes(data)
    result = outcome(path)
    file.write_bytes(sound)
    if isinstance(result, IobenchError):
        assert str(path) in str(result)
        assert "\n" not in str(result)
    return result


@pytest.mark.long
def test_of_damaged_span_files_an_answer_that_adds_up_or_a_refusal(runs):
    results = [damaged(runs, seed) for seed in range(N_DAMAGED)]
    answered = [profile for profile in results if not isinstance(profile, IobenchError)]
    # Neither all refused nor all taken as they are.
    assert 0.5 * N_DAMAGED < len(answered) < 0.99 * N_DAMAGED
    assert sum(profile.lost_spans > 0 for profile in answered) > 0.3 * N_DAMAGED


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
        result = outcome(file.parent if file.name == "run.json" else file.parents[1])
        file.write_text(sound)
        refused += isinstance(result, IobenchError)
    assert 0 < refused < 120


@pytest.mark.parametrize("name", RUNS)
def test_what_is_not_damaged_comes_back_as_it_was(tmp_path, name):
    whole = RUNS[name]()
    write_run(tmp_path / "run", whole)
    profile = open_profile(tmp_path / "run")
    assert profile.lost_spans == 0
    assert exposure(profile) == exposure(whole.data())


@pytest.mark.parametrize("name", ["pool", "script"])
def test_of_a_training_process_that_left_nothing_nothing_is_said_to_be_exposed(tmp_path, name):
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
    figures, expected = exposure(open_profile(tmp_path / "run")), exposure(whole.data())
    assert figures.whole.exposed_ns == expected.whole.exposed_ns
    assert (figures.whole.n_samples, figures.workers) == (None, 2)
