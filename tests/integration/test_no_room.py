"""A spool or run directory without room: what is said is that nothing was recorded, and why."""

from __future__ import annotations

import errno
import os

import pytest

import iobench
from iobench.analysis.run import open_runs
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from tests.support.run_json import to_json
from tests.support.spools import on_shared

NO_ROOM = os.strerror(errno.ENOSPC)


def train():
    """A loader of a script, asked for four batches."""
    recording = current_recording()
    log = DeliveryLog(recording, recording.add_loader("own", "a.Loader", "Samples"))
    for batch in range(4):
        log.ask(batch)
        log.deliver(batch, maker="consumer")
    log.end()


def full(monkeypatch, left):
    """Let the disk have so many bytes left, as ``posix_fallocate`` sees it."""
    room, allocate = [left], os.posix_fallocate

    def limited(descriptor, start, nbytes):
        if nbytes > room[0]:
            raise OSError(errno.ENOSPC, NO_ROOM)
        room[0] -= nbytes
        allocate(descriptor, start, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    return room


def said(path):
    profiles = open_runs(path)
    text = TerminalRenderer().render(report_document(profiles))
    return " ".join(text.split()), to_json(profiles)["runs"][0]


@pytest.mark.parametrize("spool", [False, True])
@pytest.mark.parametrize("left", [0, 4096])  # not even a header, or nothing but a header
def test_a_recording_without_room_says_that_nothing_was_recorded(
    tmp_path, monkeypatch, spool, left
):
    full(monkeypatch, left)
    folder = tmp_path / ("spool" if spool else "run")
    if spool:
        on_shared(monkeypatch, tmp_path / "run", folder)
    with iobench.record(tmp_path / "run"):
        train()
    text, document = said(tmp_path / "run")
    assert (
        f"No verdict: nothing was recorded, because recording stopped ({NO_ROOM} in {folder}"
    ) in text
    assert "nothing waits" not in text
    assert document["lost_spans"] > 4
    assert f"Lost spans: {document['lost_spans']}" in text


def test_a_recording_that_stopped_midway_says_so_beside_its_verdict(tmp_path, monkeypatch):
    room = full(monkeypatch, 1 << 40)
    with iobench.record(tmp_path / "run"):
        room[0] = 1 << 20
        train()
        recorder = current_recording().recorder
        for _ in range(20_000):
            recorder.emit(2, 1, 2)
    text, document = said(tmp_path / "run")
    assert document["batches"] == 4
    assert f"Recording stopped before the end ({NO_ROOM} in {tmp_path / 'run'})" in text
    assert document["lost_spans"] > 3000
