"""Names in texts, commands and span files: replaced alike everywhere, and nothing else touched."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.bundling.leftovers import find_leftovers
from iobench.bundling.pseudonyms import Pseudonyms
from iobench.bundling.scrubbing import Scrubber
from iobench.bundling.span_copy import rewritten_spans
from iobench.bundling.vocabulary import is_common, vocabulary
from iobench.bundling.whoami import Whoami
from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock

KNOWN = frozenset(
    ["read", "decode", "wait", "data", "storage", "host", "user", "file", "samples", "train", "s"]
)
ODD = st.text(
    st.characters(categories=["L", "N"], include_characters="-_. "), min_size=1, max_size=14
)
NAMES = st.one_of(
    st.sampled_from(["orage", "ann", "annabel", "data", "read", "p1", "user-1", "Ann Smith"]),
    st.sampled_from(["Gro\N{LATIN SMALL LETTER SHARP S}mann", "\u6c14\u8c61", "a.b-c_d"]),
    ODD.map(str.strip).filter(bool),
)


def scrubber(*users: str, keep: tuple[str, ...] = (), taken: tuple[str, ...] = ()) -> Scrubber:
    names = Pseudonyms(KNOWN, keep, {*taken, *users})
    homes = tuple(f"/home/{user}" for user in users[:1])
    return Scrubber(names, Whoami(users=users, homes=homes))


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/ann/x/data-7.nc", "~/p1/file-1.nc"),
        ("/home/bob/x", "/home/user-2/p1"),
        ("read/decode at 3 samples/s, I/O", "read/decode at 3 samples/s, I/O"),
        ("planning by ann and Ann", "planning by user-1 and user-1"),
        ("/opt/lib/site-packages/torch/a.py", "/opt/lib/site-packages/torch/a.py"),
        ("mail ann@example.org now", "mail mail-1 now"),
        ("s3://bucket/2020/x.zarr/t2m/c/0/1", "s3://host-1/2020/file-1.zarr/p1/c/0/1"),
        ("https://ann:pw@h.example:8/?token=abcdef", "https://user-1:secret-1@host-1:8/?secret-3"),
        ("ssh ann@login01:/x", "ssh user-1@host-1:/p1"),
        ("from fs01.hpc.example:/export/ann", "from host-1:/p1/user-1"),
        ("no data:/x in era5.nc:/wind", "no data:/p1 in file-1.nc:/p2"),
        ("at 10.1.2.3, fe80::1 and 127.0.0.1", "at ip-1, ip-2 and 127.0.0.1"),
        ("C:\\Users\\ann\\x.nc", "C:\\Users\\user-1\\file-1.nc"),
        ("GPU-5c6f0e7a-1111-2222-3333-444455556666", "GPU-id-1"),
        ("on GPU-5c6f3a11aaaa, MIG-5c6f0e7a-11", "on GPU-id-1, MIG-id-2"),
        ("a GPU-decoded JPEG, MIG-backed", "a GPU-decoded JPEG, MIG-backed"),
        ("torch.utils.data.DataLoader, 2.13.0", "torch.utils.data.DataLoader, 2.13.0"),
    ],
)  # fmt: skip
def test_texts(text: str, scrubbed: str) -> None:
    assert scrubber("ann").text(text) == scrubbed


@pytest.mark.parametrize(
    ("command", "scrubbed"),
    [
        ("python train.py --lr 0.1", "python file-1.py --lr 0.1"),
        ("python -m mine --token=abc", "python -m arg-1 --token=arg-2"),
        ("srun X=secret python a.py read,decode", "srun X=arg-1 python file-1.py read,decode"),
        ("python 'unclosed", "python arg-1"),
    ],
)
def test_commands(command: str, scrubbed: str) -> None:
    assert scrubber("ann").command(command).replace("'~", "~") == scrubbed


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), st.data())
def test_no_name_is_left_and_twice_is_once(users: list[str], data: st.DataObject) -> None:
    templates = ["/home/{}/x.nc", "/scratch/{}/{}/y", "by {}, at {}", "{}", "--out {}/z.npy"]
    chosen = data.draw(st.lists(st.sampled_from(templates), min_size=1, max_size=4))
    texts = [text.format(*(users * 2)) for text in chosen]
    words = {word for text in texts for word in text.replace("/", " ").replace(",", " ").split()}
    made = scrubber(*users, taken=(*words, *texts))
    for _ in range(2):
        made.forget()
        done = [made.text(text) for text in texts]
    assert [made.text(text) for text in done] == done
    document = json.dumps(done).encode()
    assert find_leftovers({"x.json": document}, made.names) == []


@given(NAMES, NAMES)
def test_two_names_never_share_a_pseudonym(one: str, two: str) -> None:
    names = Pseudonyms(KNOWN, taken=(one, two))
    assert (names.give("p", one) == names.give("p", two)) is (one == two)


@given(NAMES)
def test_words_of_reports_survive_whatever_a_user_is_called(user: str) -> None:
    text = "read decode wait storage samples"
    assert scrubber(user).text(text) == text or not is_common(user, KNOWN)
    if user.lower() in text.split():
        assert scrubber(user).text(text) == text


def test_the_vocabulary_is_that_of_the_sources() -> None:
    known = vocabulary()
    assert {"exposed", "prefetch", "decode", "tfrecord", "worker"} <= known
    assert is_common("data", known)
    assert not is_common("zaphodb", known)


def written(folder: Path, texts: list[str], *, closed: bool) -> Path:
    run = RunDirectory.create(folder / "run", {})
    recorder = run.recorder(role="consumer", clock=FakeClock(1000))
    for number, text in enumerate(texts):
        label = recorder.string(text)
        recorder.emit(Kind.READ, number, number + 5, nbytes=7, batch=number, label=label)
    if closed:
        recorder.close()
    return run.span_files()[0]


@pytest.mark.thorough
@given(
    st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=8, unique=True),
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(4096, 4096 + 3 * 65536), st.integers(1, 255)), max_size=6),
    st.integers(0, 70_000),
    st.booleans(),
)
def test_a_rewritten_span_file_reads_as_the_same_spans(
    texts: list[str],
    longer: int,
    damage: list[tuple[int, int]],
    cut: int,
    closed: bool,
) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder), texts, closed=closed)
        data = bytearray(path.read_bytes())
        for place, value in damage:
            if place < len(data):
                data[place] ^= value
        kept = bytes(data[: max(4096, len(data) - cut)])
        path.write_bytes(kept)
        before = read_span_file(path)
        path.write_bytes(
            rewritten_spans(kept, lambda text: text + "x" * longer, lambda _: "h", lambda _: "b")
        )
        after = read_span_file(path)
    assert np.array_equal(before.spans, after.spans)
    assert (before.damaged, before.lost, before.closed) == (after.damaged, after.lost, after.closed)
    assert before.missing_nbytes == after.missing_nbytes
    assert (after.host, after.boot_id) == ("h", "b")
    assert before.strings.keys() == after.strings.keys()


def test_texts_that_grow_get_further_chunks(tmp_path: Path) -> None:
    path = written(tmp_path, [f"name-{number}" for number in range(4000)], closed=True)
    before = read_span_file(path)
    path.write_bytes(
        rewritten_spans(
            path.read_bytes(), lambda text: f"{text}{'y' * 90}", lambda _: "h", lambda _: "b"
        )
    )
    after = read_span_file(path)
    assert after.damaged == before.damaged == 0
    assert after.missing_nbytes == 0
    assert {text.rstrip("y") for text in after.strings.values()} == set(before.strings.values())


@pytest.mark.parametrize("data", [b"", b"IOBSPANS", bytes(5000), b"IOBSPANS" + bytes(5000)])
def test_a_file_without_a_sound_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProfileError):
        rewritten_spans(data, str, str, str)


def test_names_are_looked_for_in_the_texts_of_json_not_in_its_escapes() -> None:
    names = Pseudonyms(KNOWN)
    names.give("user", "nation")
    names.give("user", "new\nline")
    documents = {
        "a.json": json.dumps({"x": ["a\nation", {"y": None}]}, indent=1).encode(),
        "b.jsonl": b'{"x": "a\\nation"}\n{"x": 5}\n',
    }
    assert find_leftovers(documents, names) == []
    for data in (
        b'{"x": "\\u006eation"}',
        b'[{"nation": 1}]',
        b'{"a": 1}\n["nation"]',
        b'{"nation',
    ):
        assert find_leftovers({"a.json": data}, names) == [("nation", "a.json")]
    for text in ("a new\nline", json.dumps("a new\nline")):
        (found,) = find_leftovers({"a.json": json.dumps([text]).encode()}, names)
        assert found == ("new\nline", "a.json")
