"""How large the page of a report is, and how long it takes: python tests/benchmarks/html_size.py.

Writes run directories of a made-up training (torch's loader with four workers, read, decode and
preprocess for every sample, times that vary, 40 files) and makes pages of them: at most 3 MB for
100,000 spans are asked for. Above 500,000 spans a page holds a choice of them, so it grows no more.
With a browser (``--open``) it also says how long the page takes until its timeline is drawn.

``--spans 10000,100000`` are others than the default; one million takes about a minute.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from iobench.analysis.run import open_runs
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.report.report_document import report_document
from iobench.testing import FakeClock

LARGEST_NBYTES = 3_000_000
OF_SPANS = 100_000
WORKERS, PREFETCH, BATCH_SIZE, N_FILES = 4, 2, 8, 40
US = 1_000
STAGES = ((Kind.READ, 900), (Kind.DECODE, 1500), (Kind.PREPROCESS, 600))
STEP_NS = 3_000 * US
SPANS_A_BATCH = len(STAGES) * BATCH_SIZE + 1 + 2


def write_training(path: Path, n_spans: int) -> None:
    """Write a run of about so many spans, loaded by workers that take turns."""
    n_batches = n_spans // SPANS_A_BATCH
    config = {
        "dataset": "made-up",
        "format": "source",
        "framework": "torch",
        "workers": WORKERS,
        "prefetch": PREFETCH,
        "batch_size": BATCH_SIZE,
        "stand_in": False,
        "compute": {"forward_ns": STEP_NS, "backward_ns": 0, "source": "--compute 3ms"},
        "expected_workers": [f"worker-{number}" for number in range(WORKERS)],
    }
    run = RunDirectory.create(path, config)
    random = np.random.default_rng(0)
    loop = run.recorder(role="consumer", clock=FakeClock(1000))
    workers = [
        run.recorder(role="worker", worker=number, clock=FakeClock(1000))
        for number in range(WORKERS)
    ]
    files = [[each.string(f"/data/fields/{n:04d}.nc") for n in range(N_FILES)] for each in workers]
    makers = [loop.string(f"worker-{number}") for number in range(WORKERS)]
    free, now = [5_000] * WORKERS, 5_000
    delivered = [5_000] * n_batches
    for batch in range(n_batches):
        number = batch % WORKERS
        begun = delivered[batch - WORKERS * PREFETCH] if batch >= WORKERS * PREFETCH else 5_000
        at, recorder = max(free[number], begun), workers[number]
        for sample in range(BATCH_SIZE):
            file = files[number][(batch * BATCH_SIZE + sample) // 100 % N_FILES]
            for kind, typical in STAGES:
                long = int(typical * US * random.gamma(4.0, 0.25))
                recorder.emit(
                    kind, at, at + long, nbytes=1_500_000, sample=batch * BATCH_SIZE + sample,
                    batch=batch, epoch=batch // 500, detail=file,
                )  # fmt: skip
                at += long
        recorder.emit(Kind.COLLATE, at, at + 200 * US, nbytes=12_000_000, batch=batch)
        free[number] = at + 200 * US
        held = max(now + 20 * US, free[number])
        loop.emit(
            Kind.WAIT, now, held, nbytes=12_000_000, batch=batch, epoch=batch // 500,
            detail=makers[number],
        )  # fmt: skip
        delivered[batch] = held
        now = held + STEP_NS
        loop.emit(Kind.FORWARD, held, now, batch=batch, epoch=batch // 500)
    loop.emit(Kind.WAIT, now, now + US, label=loop.string("shutdown"))
    loop.emit(Kind.OTHER, 5_000, now + US, sample=0, label=loop.string("round"))
    for recorder in (loop, *workers):
        recorder.close()


def seconds_to_draw(path: Path) -> float:
    """Return how long a browser takes from opening the page to a drawn timeline."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        before = time.perf_counter()
        page.goto(path.as_uri())
        page.locator(".timeline canvas").first.wait_for()
        spent = time.perf_counter() - before
        browser.close()
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", default="10000,100000,1000000")
    parser.add_argument("--open", action="store_true", help="open each page in a browser, too")
    asked = parser.parse_args()
    good = True
    for n_spans in map(int, asked.spans.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            run, path = Path(folder) / "run", Path(folder) / "page.html"
            write_training(run, n_spans)
            before = time.perf_counter()
            runs = open_runs(run)
            path.write_text(HtmlRenderer().render(report_document(runs)), "utf-8")
            spent = time.perf_counter() - before
            nbytes, n_read = path.stat().st_size, sum(len(each.spans) for each in runs)
            sampled = re.search(r"this page holds [^.<]*", path.read_text("utf-8"))
            drawn = f", drawn after {seconds_to_draw(path):.2f} s" if asked.open else ""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{n_read:>9,} spans: {nbytes / 1e6:.2f} MB ({nbytes / n_read:.1f} bytes a span), "
            f"made in {spent:.1f} s, at most {peak:.0f} MiB{drawn}"
            f"{f'; {sampled[0]}' if sampled else ''}"
        )
        if n_read <= OF_SPANS * 1.05 and nbytes > LARGEST_NBYTES:
            print(f"  more than {LARGEST_NBYTES / 1e6:.0f} MB", file=sys.stderr)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
