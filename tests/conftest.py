"""Shared fixtures: a clean place for what iobench makes, and the command line as a process."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from iobench.cli import main
from iobench.datasets.contract import Progress, make_sample, no_progress
from iobench.datasets.user_files import UserFiles

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset

Completed = subprocess.CompletedProcess[str]
RunIobench = Callable[..., Completed]

# Where a test does not say how many examples it tries.
# .ci/run takes ci: as many, the same each time, so that what fails is of the change; and an
# example that fails is told as it was found, since to shrink one takes minutes: it is printed with
# what makes it fail again, here, where it is shrunk. .ci/run --all takes full: more, and new ones.
# No test is about time: machines may be as busy as they like.
_unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _unhurried, max_examples=12)
settings.register_profile("full", _unhurried, max_examples=40)
settings.register_profile(
    "ci",
    _unhurried,
    max_examples=12,
    phases=set(Phase) - {Phase.shrink},
    print_blob=True,
    derandomize=True,
    database=None,
)
settings.load_profile(os.environ.get("IOBENCH_TESTS_PROFILE", "quick"))

# Hundreds of processes are started: each would compile what it imports of iobench once more, and
# pytest all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts pytest in the background has it, and all that it starts, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A child that a test forks must not collect what TensorFlow, torch and gRPC left in the process of
# all the tests before: their destructors crash where their threads are gone.
os.register_at_fork(after_in_child=gc.freeze)


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases after the quick ones."""
    n_cases = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            n_cases[test] += 1
            if n_cases[test] > mark.args[0]:
                item.add_marker("long")


def pytest_collection_finish() -> None:
    """Leave what collecting imported (TensorFlow, torch: a million objects) to no collection more.

    Tests that wait for what is forgotten collect garbage themselves: a second each, through all of
    that.
    """
    gc.collect()
    gc.freeze()


COMMAND = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]


@pytest.fixture(scope="session")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for stores and stand-ins that all tests share, so that each is made once.

    Stand-ins are shared with the other processes of pytest-xdist, too: who comes first makes one,
    and the others wait for it, as processes of ``iobench`` do.
    """
    folder, base = tmp_path_factory.mktemp("stores"), tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "stand-ins-of-all"
    shared.mkdir(exist_ok=True)
    (folder / "stand-ins").symlink_to(shared, target_is_directory=True)
    return folder


@pytest.fixture(scope="session")
def tiny_root(store_dir: Path) -> Callable[[Dataset], Path]:
    """Return a function that gives a dataset's tiny stand-in, made once for all; read-only."""
    from iobench.datasets.locate import ensure_stand_in, stand_in_folder

    def made(dataset: Any) -> Path:
        root = stand_in_folder(dataset, store_dir, tiny=True)  # where --tiny has it
        return ensure_stand_in(dataset, root, tiny=True)

    return made


@pytest.fixture(autouse=True)
def no_places_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep tests out of the user's caches, mirrors and stores."""
    folder = tmp_path_factory.getbasetemp() / "home"
    folder.mkdir(exist_ok=True)
    (folder / "cache" / "iobench" / "finished").unlink(missing_ok=True)  # of other tests
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("IOBENCH_LIMITS", "0.01")  # of each of hundreds of profiles
    for name in ("IOBENCH_STORE_DIR", "SCRATCH", "CLIMETLAB_MIRROR", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def iobench(tmp_path: Path) -> RunIobench:
    """Run the command line in a process of its own, in an empty folder; workers fork from it."""

    def run(*arguments: str | Path, **more: object) -> Completed:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
            check=False,
            **more,  # type: ignore[call-overload]
        )

    return run


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run an object store in memory, in this process, on loopback; return its address."""
    moto_server = pytest.importorskip("moto.server", reason="moto stands for S3")
    pytest.importorskip("obstore", reason="obstore asks S3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


_BUCKETS = itertools.count()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make an empty bucket of the test's own and return its name; the environment leads there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    from iobench.files.objects import forget_stores

    forget_stores()  # of other environments
    name = f"iobench-{next(_BUCKETS)}"
    s3_client().create_bucket(Bucket=name)
    return name


def s3_client() -> Any:
    """Return a client of the server that the environment names, of another library than ours."""
    return pytest.importorskip("boto3", reason="moto comes with boto3").client("s3")


@pytest.fixture
def begun_uploads(bucket: str) -> Callable[[], list[str]]:
    """Return what lists the keys that were begun to be uploaded, and neither ended nor dropped."""

    def listed() -> list[str]:
        answer = s3_client().list_multipart_uploads(Bucket=bucket)
        return [one["Key"] for one in answer.get("Uploads", ())]

    return listed


@pytest.fixture
def put_files(bucket: str) -> Callable[..., str]:
    """Return what puts a file or folder into the bucket, of which it returns the URL."""
    from iobench.files.urls import URL

    def put(path: Path, name: str = "") -> str:
        url = URL(f"s3://{bucket}/{name or path.name}")
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file():
                inside = file.relative_to(path).as_posix()
                (url if file == path else url / inside).write_bytes(file.read_bytes())
        return url.with_secrets()

    return put


@pytest.fixture
def iobench_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunIobench:
    """Run the command line in this process, in an empty folder: no second spent on a start.

    For what needs no process of its own: no signals, no variables read at the start, no import
    that has to be the first.
    """
    from iobench.files.ranges import forget_source_files

    monkeypatch.chdir(tmp_path)
    forget_source_files()  # other tests may have left files of the same relative path open

    def run(*arguments: str | Path) -> Completed:
        capsys.readouterr()
        told = list(map(str, arguments))
        code = main(told)
        said = capsys.readouterr()
        return Completed(told, code, said.out, said.err)

    return run


DATA = Path(__file__).parent / "data"


@dataclass
class LocalFiles:
    """A locator of users' own files."""

    cache_dir: Path
    stand_in: bool = False
    progress: Progress = field(default=no_progress)

    def find(self, urls: Sequence[str]) -> list[Path | None]:
        """Return that none is found."""
        return [None for _ in urls]

    def searched(self) -> str:
        """Return where."""
        return "nowhere"


@pytest.fixture
def real(tmp_path: Path) -> Callable[[str], Path]:
    """Copy a file of tests/data to a folder of the test's own."""

    def copy(name: str) -> Path:
        folder = tmp_path / "real"
        folder.mkdir(exist_ok=True)
        return Path(shutil.copy(DATA / name, folder))

    return copy


@pytest.fixture
def yr_files(real: Callable[[str], Path]) -> list[Path]:
    """Return two published files of A1."""
    days = ("20200301T03Z", "20200302T09Z")
    return [real(f"maelstrom-yr/air_temperature/5GB/{day}.nc") for day in days]


@pytest.fixture
def locator(tmp_path: Path) -> LocalFiles:
    """Return a locator for files of one's own."""
    return LocalFiles(cache_dir=tmp_path / "cache")


@pytest.fixture
def open_user_files(locator: LocalFiles) -> Callable[..., SimpleNamespace]:
    """Make a dataset of files; return its index and a function that makes sample i."""

    def open_files(*paths: Path | str, **options: Any) -> SimpleNamespace:
        dataset = UserFiles(paths, **options)
        index = dataset.samples(dataset.files(locator), locator)

        def sample(i: int) -> Any:
            made = make_sample(dataset, index.where[i])
            index.spec.check(made, where=str(i))
            return made

        return SimpleNamespace(dataset=dataset, index=index, sample=sample)

    return open_files
