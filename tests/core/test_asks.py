"""What controllers may ask, and whose word stands first, by values worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.core.commands import Pause, Resume, SetDevices, SetLocation, level_after
from lightning_core.core.control import NOTHING, RIGHTS, Ask, Asked, Asker
from lightning_core.core.control.asks import WITHDRAWN, check_devices, first
from lightning_core.core.reasons import Reason
from tests.builders import PLANNER, SIZER

WHY = Reason("part", text="planned for the morning")
ANN = Asked(devices=2, location="cloud", held_by="ann", placed_by="ann", sized_by="ann")


def test_the_table_says_who_may_ask_what_and_who_stands_first() -> None:
    # Holds, places, sizes; rank.
    assert [(str(by), *rights[1:5]) for by, rights in RIGHTS.items()] == [
        ("person", True, True, True, 0),
        ("calendar", True, False, False, 20),
    ]
    words = ["a person", "the calendar"]
    assert [by.words for by in RIGHTS] == words


@pytest.mark.parametrize(
    ("by", "asked", "words"),
    [
        (SIZER, {"hold": True}, "a: the sizer may not hold a job, got True"),
        (SIZER, {"hold": False}, "a: the sizer may not hold a job, got False"),
        (SIZER, {"location": ""}, "a: the sizer may not choose its location, got "),
        (Asker.CALENDAR, {"location": "edge"}, "a: the calendar may not choose its location, got edge"),
        (Asker.CALENDAR, {"devices": 0}, "a: the calendar may not choose the number of devices, got 0"),
        (Asker.PERSON, {"devices": 1}, "a: a person asks by commands, got person"),
        (PLANNER, {"devices": -1}, "devices must be at least 0, got -1"),
        (PLANNER, {"devices": 1025}, "devices must be at most 1,024, got 1025"),
    ],
)
def test_what_a_controller_may_not_ask_is_refused(by: Asker, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        Ask("a", by, **asked)


def test_what_each_may_ask_it_can_ask() -> None:
    assert Ask("a", Asker.CALENDAR, hold=True, release=True, reason=WHY).asked == Asked(True, True, reason=WHY)
    plan = Ask("a", PLANNER, hold=False, location="", devices=1024, reason=WHY)
    assert plan.asked == Asked(False, False, "", 1024, WHY)
    assert Ask("a", SIZER, devices=0, reason=WHY).asked == Asked(devices=0, reason=WHY)
    assert Ask("a", SIZER).asked == NOTHING
    check_devices(0)
    check_devices(1024)


def test_what_is_asked_in_words() -> None:
    assert Ask("a", Asker.CALENDAR, hold=True, release=True, reason=WHY).words == (
        "hold, and free its memory: planned for the morning"
    )
    assert Ask("a", Asker.CALENDAR, hold=True, reason=WHY).words == "hold: planned for the morning"
    assert Ask("a", PLANNER, hold=False, location="", devices=2, reason=WHY).words == (
        "train, location any, devices 2: planned for the morning"
    )
    assert Ask("a", PLANNER, location="edge", reason=WHY).words == "location edge: planned for the morning"
    assert Ask("a", PLANNER).words == str(WITHDRAWN) == "request withdrawn"


def test_the_first_that_asks_has_its_way() -> None:
    levels = {
        SIZER: Asked(devices=3),
        PLANNER: Asked(hold=False, location="edge"),
        Asker.CALENDAR: Asked(hold=True),
    }
    assert first(levels, "devices") == (3, SIZER)
    assert first(levels, "location") == ("edge", PLANNER)
    assert first(levels, "hold") == (True, Asker.CALENDAR)
    assert first(levels | {Asker.PERSON: Asked(hold=False)}, "hold") == (False, Asker.PERSON)
    assert first({}, "hold") == (None, None)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (NOTHING, Pause("a"), Asked(hold=True)),
        (Asked(devices=2), Pause("a", release=True), Asked(hold=True, release=True, devices=2)),
        (Asked(hold=True, release=True, devices=2), Resume("a"), Asked(devices=2)),
        (NOTHING, Resume("a"), Asked(hold=False)),
        (Asked(hold=False), Resume("a"), Asked(hold=False)),
        (Asked(location="edge"), SetDevices("a", 3), Asked(location="edge", devices=3)),
        (Asked(hold=True, location="edge", devices=3), SetDevices("a", None), Asked(hold=True)),
        (Asked(devices=3), SetLocation("a", "cloud"), Asked(location="cloud", devices=3)),
        (Asked(devices=3), SetLocation("a", "cloud", 0), Asked(location="cloud", devices=0)),
        (Asked(hold=True), Ask("a", PLANNER, devices=1, reason=WHY), Asked(devices=1, reason=WHY)),
        # Who asked for what: a word that is taken back is of no person any more.
        (ANN, Pause("a", who="bob"), ANN._replace(hold=True, held_by="bob")),
        (ANN, Pause("a", by=Asker("search")), ANN._replace(hold=True, held_by="")),
        (ANN._replace(hold=True), Resume("a", who="bob"), ANN._replace(hold=None, held_by="")),
        (ANN, Resume("a", who="bob"), ANN._replace(hold=False, held_by="bob")),
        (ANN, SetDevices("a", 3, who="bob"), ANN._replace(devices=3, sized_by="bob")),
        (ANN, SetDevices("a", None, who="bob"), Asked(held_by="ann")),
        (ANN, SetLocation("a", "edge", who="bob"), ANN._replace(location="edge", placed_by="bob")),
        (ANN, SetLocation("a", "edge", 3, who="bob"),
         ANN._replace(location="edge", devices=3, placed_by="bob", sized_by="bob")),
    ],
)  # fmt: skip
def test_a_command_changes_one_thing_of_a_level_and_an_ask_all(before: Asked, event: Any, after: Asked) -> None:
    assert level_after(event, before) == after
