"""Loads all samples of a store or of files twice, with few descriptors; says how many.

``load_all.py LIMIT WAY KIND TARGET``: ``ulimit -n``, ``threads`` or ``processes``, ``store`` or
``files``; of files the target is their folder.
"""

from __future__ import annotations

import resource
import sys
import warnings
from pathlib import Path

import iobench


def main(limit: int, way: str, kind: str, target: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    warnings.simplefilter("ignore")
    if kind == "store":
        samples = iobench.open_store(target)
    else:
        files = sorted(Path(target).iterdir())
        kept = Path(target).with_name("kept")
        samples = iobench.open_dataset(*files, sample_dim="time", store_dir=kept)
    more = {"processes": True} if way == "processes" else {}
    loader = iobench.loader(samples, 16, shuffle=True, threads=2, **more)
    for _epoch in range(2):
        first = [float(row.flat[0]) for batch in loader for row in next(iter(batch.values()))]
        assert sorted(first) == list(range(len(samples))), sorted(first)[:10]
    loader.close()
    print(len(samples))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
