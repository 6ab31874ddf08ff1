"""Two libraries for object stores, and iobench, against one S3 server on loopback, in turns.

    python tests/benchmarks/object_stores.py

Per GB are the seconds of CPU of this process; the server's are another's. Best of a few turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
BUCKET = "bucket"
AT_ONCE = 64
OBJECT_NBYTES = 64 << 20
RANGES = ((4 << 10, 512), (1 << 20, 64), (8 << 20, 16))
"""Bytes of a range, and how many are read."""
UPLOADS = ((4 << 10, 64), (64 << 20, 2))


class S3fs:
    """Through fsspec: how `iobench.files` writes."""

    name = "s3fs"

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self._fs = s3fs.S3FileSystem(
            endpoint_url=endpoint, config_kwargs={"max_pool_connections": AT_ONCE}
        )
        if not self._fs.exists(BUCKET):
            self._fs.mkdir(BUCKET)

    def read(self, starts: list[int], nbytes: int) -> int:
        """Read ranges of the large object, `AT_ONCE` at a time."""
        ends = [start + nbytes for start in starts]
        found = self._fs.cat_ranges([f"{BUCKET}/large"] * len(ends), starts, ends, batch_size=64)
        return sum(map(len, found))

    def put(self, key: str, data: bytes) -> None:
        """Write an object; a large one in parts, as they come."""
        if len(data) < 8 << 20:
            self._fs.pipe_file(f"{BUCKET}/{key}", data)
            return
        with self._fs.open(f"{BUCKET}/{key}", "wb", block_size=8 << 20) as stream:
            for start in range(0, len(data), 8 << 20):
                stream.write(data[start : start + (8 << 20)])

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one."""
        try:
            self._fs.pipe_file(f"{BUCKET}/{key}", data, mode="create")
        except OSError:
            return False
        return True


class Obstore:
    """Through the crate object_store."""

    name = "obstore"

    def __init__(self, endpoint: str) -> None:
        from obstore.store import S3Store

        self._store = S3Store(
            BUCKET,
            endpoint=endpoint,
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )

    def read(self, starts: list[int], nbytes: int) -> int:
        """Read ranges of the large object, `AT_ONCE` at a time."""
        from obstore import get_range_async

        async def all_of_them() -> int:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(start: int) -> int:
                async with room:
                    return len(
                        await get_range_async(self._store, "large", start=start, length=nbytes)
                    )

            return sum(await asyncio.gather(*map(one, starts)))

        return asyncio.run(all_of_them())

    def put(self, key: str, data: bytes) -> None:
        """Write an object; a large one in parts."""
        from obstore import put

        put(self._store, key, data, chunk_size=8 << 20)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one."""
        from obstore import put
        from obstore.exceptions import AlreadyExistsError

        try:
            put(self._store, key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True


class Iobench:
    """As loaders read: into memory that is used again."""

    name = "iobench"

    def __init__(self, endpoint: str) -> None:
        from iobench.files.objects import objects_at
        from iobench.files.urls import URL

        os.environ["AWS_ENDPOINT_URL"] = endpoint
        self._objects, self._path = objects_at(URL(f"s3://{BUCKET}/large"))
        self._memory = memoryview(bytearray(2 * OBJECT_NBYTES))

    def read(self, starts: list[int], nbytes: int) -> int:
        """Read ranges of the large object, `AT_ONCE` at a time."""
        views = [[self._memory[n * nbytes : (n + 1) * nbytes]] for n in range(len(starts))]
        paths = [self._path] * len(starts)
        return sum(self._objects.fill(paths, starts, views, AT_ONCE))


def measured(act: Callable[[], int]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of one call, each per GB."""
    wall, cpu = time.perf_counter(), time.process_time()
    nbytes = act()
    return (
        (time.perf_counter() - wall) / nbytes * 1e9,
        (time.process_time() - cpu) / nbytes * 1e9,
    )


def main() -> None:
    """Print a table: what was done, MB/s and CPU seconds per GB of each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        host, port = server.stdout.readline().split()
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        endpoint = f"http://{host}:{port}"
        libraries: list[Any] = [S3fs(endpoint), Obstore(endpoint)]
        libraries[0].put("large", os.urandom(OBJECT_NBYTES))
        jobs: dict[str, Callable[[Any], int]] = {}
        for nbytes, count in RANGES:
            starts = [number * 7919 * 4096 % (OBJECT_NBYTES - nbytes) for number in range(count)]
            jobs[f"{count} ranges of {nbytes >> 10} KiB"] = (
                lambda library, starts=starts, nbytes=nbytes: library.read(starts, nbytes)
            )
        for nbytes, count in UPLOADS:
            data = os.urandom(nbytes)

            def put(library: Any, data: bytes = data, count: int = count) -> int:
                for number in range(count):
                    library.put(f"put-{number}", data)
                return len(data) * count

            jobs[f"{count} uploads of {nbytes >> 10} KiB"] = put
        readers = [*libraries, Iobench(endpoint)]
        print(f"{'':28}" + "".join(f"{one.name:>24}" for one in readers))
        for what, job in jobs.items():
            able = readers if "ranges" in what else libraries
            best = {one.name: [float("inf")] * 2 for one in able}
            for _ in range(turns):
                for one in able:
                    found = measured(lambda one=one, job=job: job(one))  # type: ignore[misc]
                    best[one.name] = list(map(min, best[one.name], found))
            print(
                f"{what:28}"
                + "".join(f"{1e3 / wall:8.0f} MB/s {cpu:5.2f} s/GB" for wall, cpu in best.values())
            )
        for one in libraries:
            made = [one.create(f"only-{one.name}", data) for data in (b"1", b"2")]
            print(f"{one.name}: a second create of one key is refused: {made == [True, False]}")
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(10)


if __name__ == "__main__":
    main()
