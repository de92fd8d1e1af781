"""Fixtures of all tests: one Ray for the session, and pools of warm workers, which take long to start."""

from __future__ import annotations

import gc
import os
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.examples import examples
from tests.faults.promises import Promises

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster
    from tests.cluster.test_pool import Shell
    from tests.matrix.forks import Forks

ROOT = Path(__file__).resolve().parent.parent
# A process started in the background of a shell ignores Ctrl-C, and so do its children: scripts would not leave.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="file for what the tests say of the promises (docs/reliability.json)")


# What is drawn at random is the same in each run; a test that does not say how many examples it tries has 100.
hypothesis.settings.register_profile("seeded", derandomize=True, max_examples=examples(100))
hypothesis.settings.load_profile("seeded")


# Journals commit to the disk thousands of times, and what the tests ask holds on any file system: their files are in
# memory where this many bytes are free and programs may be run from.
MEMORY, ROOM = Path("/dev/shm"), 2 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if usable and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # pytest's name for where its folders are made
    config.pluginmanager.register(Promises(config.getoption("--record", None)))
    gc.disable()  # there is no garbage among what is imported: looking for it takes a tenth of the collection


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU here")


# Fixtures that take long to start, and are shared by tests of several files, as these take them.
SHARED = {"local_ray": r"\b(local_ray: None|(cluster|three|four): Cluster)\b", "pool_shell": r"\bpool_shell: Shell\b"}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup``, files that share a live pool run in one process, and no file is divided."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group_of(nodeid.partition("::")[0])

    return Together(config, log)


@cache
def _group_of(file: str) -> str:
    text = (ROOT / file).read_text()
    return next((name for name, taken in SHARED.items() if re.search(taken, text)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` collects some parts from the files with their marker: a test marked elsewhere would not run.

    Those with a live pool come first, for they take longest; by file: the README takes the pool of the others down.
    """
    for item in items:
        for part in ("cluster", "stories"):
            if item.get_closest_marker(part) and f"mark.{part}" not in item.path.read_text():
                raise pytest.UsageError(f"{item.nodeid}: write pytest.mark.{part} in the test's own file")
    items.sort(key=lambda item: (0, str(item.path)) if item.get_closest_marker("cluster") else (1, ""))


def debian(program: str) -> str:
    """Return the path of a program of a Debian package; skip the test that needs it where it is not installed.

    Where the packages are installed for the tests (``LC_CI_PACKAGES=1``), a missing one is a failure.
    """
    path = shutil.which(program)
    if path is None:
        words = f"needs {program}: apt-get install {program}"
        if os.environ.get("LC_CI_PACKAGES") == "1":
            pytest.fail(words)
        pytest.skip(words)
    return path


@pytest.fixture(scope="session", autouse=True)
def no_pool_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tests from joining the pool of the user who runs them."""
    for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
        del os.environ[name]
    os.environ["LIGHTNING_CORE_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process that has imported all that a training needs, and forks."""
    from tests.matrix.forks import Forks

    with Forks() as made:
        yield made


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray with more logical devices than any pool of the tests needs."""
    # Without one in the environment, Ray writes a token into the home of the user who runs the tests.
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    from lightning_core.cluster.ray_cluster import start_local_ray

    temp = Path(tempfile.mkdtemp(prefix="lc-"))
    start_local_ray(temp, devices=8)
    yield
    ray.shutdown()
    shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(local_ray: None) -> Iterator[Cluster]:
    """Three warm workers on one device."""
    from lightning_core.cluster.cluster import Cluster

    with Cluster(workers=3) as made:
        yield made


@pytest.fixture(scope="session")
def pool_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A terminal; the pool is brought up in it by the first test that needs it."""
    from tests.cluster.test_pool import Shell

    made = Shell(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def gpu_cluster(local_ray: None) -> Iterator[Cluster]:
    """Three warm workers on one GPU."""
    from lightning_core.cluster.cluster import Cluster

    with Cluster(workers=3, kind="gpu") as made:
        yield made


@pytest.fixture(scope="session")
def three(local_ray: None) -> Iterator[Cluster]:
    """Three logical devices, one warm worker on each."""
    from lightning_core.cluster.cluster import Cluster

    with Cluster(workers=3, devices=3) as made:
        yield made


@pytest.fixture(scope="session")
def four(local_ray: None) -> Iterator[Cluster]:
    """Four logical devices, one warm worker on each."""
    from lightning_core.cluster.cluster import Cluster

    with Cluster(workers=4, devices=4) as made:
        yield made
