"""Training on odd machines: whatever folder, descriptor, clock or terminal is missing, it continues as without us."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.machines import why_not
from tests.matrix.collectives import difference
from tests.matrix.forks import Forks
from tests.matrix.odd_machines import MACHINES
from tests.socket_servers import found_pool

TRAIN = "tests.matrix.odd_machines:train"
# Those on which the best model cannot be written.
KEEPS_NOTHING = ("nothing_can_be_written", "no_folder_there", "disk_full", "paths_too_long", "threads_forbidden",
                 "folder_removed")  # fmt: skip
# Those that one of several ranks is on by day, one of each kind; the others are tried with a single process then.
APART = ("nothing_can_be_written", "folder_removed", "threads_forbidden", "no_proc", "few_descriptors",
         "clock_set_forward", "terminal_closed")  # fmt: skip
# Those that only root can make.
NAMESPACES = ("nothing_can_be_written", "disk_full", "shared_memory_full", "no_proc", "no_network")


def by_day(is_wanted: Callable[[str], bool]) -> list[Any]:
    """Return all machines; those that are not wanted are tried at night."""
    return [name if is_wanted(name) else pytest.param(name, marks=pytest.mark.nightly) for name in MACHINES]


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    with found_pool(devices=2) as made:
        yield str(made.path.parent)


@pytest.mark.promise("F37", "F39")
@pytest.mark.parametrize("where", ["pool", pytest.param("alone", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("machine", by_day(lambda name: name not in APART))
def test_a_training_goes_on(machine: str, where: str, forks: Forks, pool: str) -> None:
    if machine in NAMESPACES and (why := why_not()):
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:  # not in shared memory, which may be full
        [without] = forks.run(TRAIN, machine, f"{folder}/without", False)
        [seen] = forks.run(TRAIN, machine, f"{folder}/with", True, pool if where == "pool" else "auto")
    assert (without.code, seen.code) == (0, 0), seen.output[-6000:]
    for name in ("weights", "steps", "random", "ours"):
        assert seen.value[name] == without.value[name], seen.output[-3000:]
    # Without a thread there is no forecast; whether a pool is up is asked of /proc.
    unknown = machine == "threads_forbidden" or (machine, where) == ("no_proc", "pool")
    assert seen.value["verdict"] == (None if unknown else "missed"), seen.output[-3000:]
    if machine in KEEPS_NOTHING:
        assert not seen.value["best"]
    else:
        assert seen.value["best"] == seen.value["weights"]


@pytest.mark.promise("F37", "F39")
@pytest.mark.parametrize("machine", by_day(lambda name: name in APART))
def test_ranks_go_on_if_one_of_them_is_on_such_a_machine(machine: str, forks: Forks, pool: str) -> None:
    if machine in NAMESPACES and (why := why_not()):
        pytest.skip(why)
    if machine == "no_network":
        pytest.skip("the ranks meet there")
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        without = forks.run(TRAIN, machine, f"{folder}/without", False, ranks=2)
        seen = forks.run(TRAIN, machine, f"{folder}/with", True, pool, ranks=2)
    assert [one.code for one in seen] == [one.code for one in without] == [0, 0], seen[0].output[-6000:]
    assert not difference([one.collectives for one in seen])
    for rank in range(2):
        for name in ("weights", "steps", "random", "ours"):
            assert seen[rank].value[name] == without[rank].value[name], seen[rank].output[-3000:]
    assert seen[0].value["verdict"] == "missed", seen[0].output
    assert seen[0].value["best"] == seen[0].value["weights"]
