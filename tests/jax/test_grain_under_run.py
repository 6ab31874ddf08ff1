"""A script with worker processes of grain under ``iobench run``."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grain", reason="its worker processes are what is followed")
from reference import without_cpu_waits

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

RUN = [sys.executable, "-c", "from iobench.cli import main; raise SystemExit(main())", "run"]
SCRIPT = """
    import sys

    import grain
    import numpy as np
    from absl import flags

    class Files:
        def __len__(self):
            return 12

        def __getitem__(self, number):
            return {"x": np.load(f"{sys.argv[1]}/{number}.npy"), "number": np.int64(number)}

        def __repr__(self):
            return "Files()"

    if __name__ == "__main__":
        flags.FLAGS.mark_as_parsed()
        sampler = grain.samplers.IndexSampler(
            num_records=12, num_epochs=1, shuffle=True, seed=5,
            shard_options=grain.sharding.NoSharding(),
        )
        loader = grain.DataLoader(
            data_source=Files(), sampler=sampler, worker_count=2,
            operations=[grain.transforms.Batch(3)],
        )
        for batch in loader:
            print(batch["number"].tolist(), batch["x"].sum())
"""


@pytest.mark.long  # grain is imported by four processes
@pytest.mark.timeout(300)
def test_waits_and_what_adapters_see_in_workers(tmp_path):
    for number in range(12):
        np.save(tmp_path / f"{number}.npy", np.full(1000, number, np.float32))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(tmp_path)]
    out = ["--out", str(tmp_path / "run"), "--no-report"]
    recorded, plain = (
        subprocess.run(each, capture_output=True, text=True, check=True, timeout=140).stdout
        for each in ([*RUN, *out, "--", *command], command)
    )
    assert recorded == plain
    assert len(plain.splitlines()) == 4
    profile = without_cpu_waits(open_profile(tmp_path / "run"))
    waits = profile.spans[(profile.spans["kind"] == Kind.WAIT) & (profile.spans["batch"] >= 0)]
    assert waits["nbytes"].tolist() == [3 * (1000 * 4 + 8)] * 4
    (loader,) = next(each.loaders for each in profile.facts if each.loaders)
    facts = (loader.framework, loader.name, loader.workers, loader.batch_size)
    assert facts == ("grain", "Files", 2, 3)
    exposed_ns = exposure(profile).whole.exposed_ns
    assert exposed_ns["opaque:grain"] == (waits["end_ns"] - waits["start_ns"]).sum()
    # Every file was read once, in one of the two processes, for a batch that nobody knows.
    names = [Path(str(profile.strings[each])).name for each in profile.spans["detail"]]
    is_read = (profile.spans["kind"] == Kind.READ) & (profile.spans["nbytes"] > 0)
    reads = profile.spans[is_read & np.array([each.endswith(".npy") for each in names])]
    assert len(reads) == len({*reads["detail"].tolist()}) == 12
    assert {profile.processes[each].role for each in reads["process"]} == {"child"}
    assert (reads["batch"] == -1).all()
