"""iobench against obstore alone, on one server on loopback, in turns.

    python tests/benchmarks/object_stores.py

Reads come from a server that sends files as they lie (the S3 server of the tests cuts each range
out of the whole object, which is what would be measured); uploads go to that S3 server. Per GB are
the seconds of CPU of this process; the servers' are others'. Medians of the rounds, with their
range.

The first row holds: at most 1 second of CPU for each GB, and at least 85 % of obstore's throughput
in the same round, at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from harness import print_goal, rotated, spread

FILE_SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        with open(self.path.lstrip("/"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, _, last = self.headers.get("Range", "bytes=0-")[6:].partition("-")
            start, end = int(first), min(size, int(last or size) + 1)
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT")
            self.send_header("ETag", '"1"')
            self.end_headers()
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

class Server(ThreadingHTTPServer):
    request_queue_size = 128

server = Server(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
S3_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
"""
BUCKET = "bucket"
N_OBJECTS = 8
OBJECT_NBYTES = 64 << 20
PART_NBYTES = 4 << 20
"""Of a request for part of an object; in parts of 8 MiB both read two thirds as fast."""
RANGES = ((1 << 20, 128), (4 << 10, 512))
"""Bytes of a range, and how many are read."""
MOST_CPU_S = 1.0
LEAST_RATIO = 0.85
Range = tuple[str, int, int]
"""Key, first byte, bytes."""


class Obstore:
    """obstore by itself: what comes is counted, not kept."""

    name = "obstore"

    def __init__(self) -> None:
        from obstore.store import S3Store

        self._store = S3Store(BUCKET, client_options={"allow_http": True})

    def read(self, ranges: Sequence[Range]) -> int:
        """Read ranges, all at once."""
        from obstore import get_range_async

        async def all_of_them() -> int:
            limit = asyncio.Semaphore(64)

            async def one(key: str, start: int, nbytes: int) -> int:
                async with limit:
                    found = await get_range_async(self._store, key, start=start, length=nbytes)
                    return len(found)

            return sum(await asyncio.gather(*(one(*each) for each in ranges)))

        return asyncio.run(all_of_them())

    def put(self, key: str, data: bytes) -> None:
        """Write an object in parts."""
        from obstore import put

        put(self._store, key, data, chunk_size=16 << 20, max_concurrency=4)


class Iobench:
    """As loaders read and conversions write: into memory that is used again."""

    name = "iobench"

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(N_OBJECTS * OBJECT_NBYTES))

    def read(self, ranges: Sequence[Range]) -> int:
        """Read ranges, all at once."""
        from iobench.files.objects import fill_remote

        filled, at = [], 0
        for key, start, nbytes in ranges:
            filled.append((self._url(key), start, self._memory[at : at + nbytes]))
            at += nbytes
        fill_remote(filled)
        return at

    def put(self, key: str, data: bytes) -> None:
        """Write an object in parts, as they are made."""
        from iobench.files.objects import Upload

        upload = Upload(self._url(key))
        for start in range(0, len(data), 1 << 20):
            upload.write(memoryview(data)[start : start + (1 << 20)])
        upload.commit()

    def _url(self, key: str) -> Any:
        from iobench.files.urls import URL

        return URL(f"s3://{BUCKET}/{key}")


@contextmanager
def serving(code: str, folder: str) -> Iterator[None]:
    """Start a server and let the environment lead to it."""
    from iobench.files.objects import forget_stores

    server = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().strip()
        forget_stores()
        yield
    finally:
        server.terminate()
        server.wait(10)


def measured(act: Callable[[], int]) -> tuple[float, float]:
    """Return MB/s of one call, and its seconds of CPU for each GB."""
    wall, cpu = time.perf_counter(), time.process_time()
    nbytes = act()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return nbytes / wall / 1e6, cpu / nbytes * 1e9


def compared(what: str, job: Callable[[Any], int], rounds: int) -> tuple[float, float]:
    """Print a row; return iobench's throughput by obstore's and its CPU, medians of the rounds."""
    libraries = [Obstore(), Iobench()]
    speeds: dict[str, list[float]] = {one.name: [] for one in libraries}
    cpus: dict[str, list[float]] = {one.name: [] for one in libraries}
    for number in range(rounds + 1):
        for one in rotated(libraries, number):
            speed, cpu = measured(lambda one=one: job(one))  # type: ignore[misc]
            if number:  # the first round is for what is made once
                speeds[one.name].append(speed)
                cpus[one.name].append(cpu)
    told = [
        f"{name} {spread(speeds[name], '5.0f')} MB/s, {spread(cpus[name])} s/GB" for name in speeds
    ]
    ratios = [a / b for a, b in zip(speeds["iobench"], speeds["obstore"], strict=True)]
    print(f"{what:26} {'; '.join(told)}; iobench by obstore {spread(ratios)}", flush=True)
    return statistics.median(ratios), statistics.median(cpus["iobench"])


def main() -> None:
    """Print a row for each job; exit 1 if the first does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    keys = [f"object-{number}" for number in range(N_OBJECTS)]
    whole = [(key, at, PART_NBYTES) for key in keys for at in range(0, OBJECT_NBYTES, PART_NBYTES)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, BUCKET).mkdir()
        for key in keys:
            Path(folder, BUCKET, key).write_bytes(os.urandom(OBJECT_NBYTES))
        with serving(FILE_SERVER, folder):
            what = f"{N_OBJECTS} objects of 64 MiB"
            ratio, cpu_s = compared(what, lambda library: library.read(whole), rounds)
            for nbytes, count in RANGES:
                last = OBJECT_NBYTES - nbytes
                some = [(keys[n % 8], n * 7919 * 4096 % last, nbytes) for n in range(count)]
                what = f"{count} ranges of {nbytes >> 10} KiB"
                compared(what, lambda library, some=some: library.read(some), rounds)
        with serving(S3_SERVER, folder):
            import boto3

            boto3.client("s3").create_bucket(Bucket=BUCKET)
            data = os.urandom(OBJECT_NBYTES)

            def put(library: Any) -> int:
                library.put("put", data)
                return len(data)

            compared("an upload of 64 MiB", put, rounds)
    holds = [
        print_goal("reading objects, s of CPU for a GB", cpu_s, MOST_CPU_S, at_most=True),
        print_goal("reading objects, throughput by obstore's", ratio, LEAST_RATIO),
    ]
    sys.exit(not all(holds))


if __name__ == "__main__":
    main()
