"""What must hold of the owners of jobs after every event, told by what workers were told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from lightning_core.core.answers import Answer, End, Grant, State
from lightning_core.scheduler.divider import DIVIDERS
from lightning_core.scheduler.scheduler import Scheduler

# Stories with owners: one in so many.
EVERY = 3
EPSILON = 1e-6


def owners_of(story: bytes, devices: int) -> dict[str, dict[str, Any]]:
    """Return what the owners of a story may have, as a divider; empty for a story in which owners are not told apart.

    It is read from the last bytes, and uses up none: the events of a story are as they were without owners.
    """
    if story[-1] % EVERY or not DIVIDERS.has("owners"):
        return {}
    quota, cap, budget = story[-2] % (devices + 1), 1 + story[-3] % devices, story[-4] % 4
    return {"owners": {
        "ann": {"devices": quota, "weight": (1.0, 3.0)[story[-2] % 2]},
        "bob": {"max_devices": cap},
        "*": {"device_hours": (0.0, 0.001, 0.02, 100.0)[budget], "per": (None, 3600.0)[story[-4] // 4 % 2]},
    }}  # fmt: skip


class OwnersWatch:
    """Checks caps, quotas and budgets of a scheduler after each event.

    Args:
        scheduler: The scheduler, before its first event.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._owners = scheduler, cast(Any, scheduler.settings.make_divider())
        self._held: dict[str, tuple[str, float]] = {}
        self._used: dict[str, float] = {}
        self._at = 0.0
        self._has_company = False

    def after(self, answers: Iterable[Answer]) -> None:
        """Check the scheduler after an event.

        Raises:
            AssertionError: If an owner has more than it may, less than its quota, or a budget that was counted wrong.
        """
        scheduler, owners = self._scheduler, self._owners
        if owners is None:
            return
        for owner, devices in self._held.values():
            self._used[owner] = self._used.get(owner, 0.0) + devices * (scheduler.now - self._at)
        self._at = scheduler.now
        for answer in answers:
            if isinstance(answer, End) and answer.version:  # version 0: of a job that has not come in
                self._held.pop(answer.job, None)
            elif isinstance(answer, Grant):
                self._held[answer.job] = scheduler.job(answer.job).owner, answer.share * len(answer.devices)
                self._has_company |= answer.beside > 0
        spent, every = set(), 0.0
        for told in scheduler.shares():
            owner, terms = told["owner"], owners.terms_of(told["owner"])
            every += told["held"]
            assert told["held"] <= terms.cap + EPSILON, f"{owner}: holds {told['held']}, and may have {terms.cap}"
            if not self._has_company:  # the time of jobs that train at once is divided by their work
                held = sum(devices for of, devices in self._held.values() if of == owner)
                assert abs(held - told["held"]) < EPSILON, f"{owner}: holds {held}, and its line says {told['held']}"
            if terms.per is None and not self._has_company:
                used = self._used.get(owner, 0.0) / 3600
                assert abs(used - told["device_hours"]) < EPSILON, f"{owner}: had {used}, and {told['device_hours']}"
            if terms.device_hours is not None and told["device_hours"] >= terms.device_hours:
                spent.add(owner)
        held = sum(devices for _, devices in self._held.values())
        assert abs(held - every) < EPSILON, f"all owners hold {held}, and their lines say {every}"
        for job in scheduler.status():
            if job.state is State.ENDED:
                continue
            code, numbers, terms = job.grant_reason.code, job.grant_reason.numbers, owners.terms_of(job.owner)
            if code.startswith(("owners.budget", "owners.borrows")):
                assert job.owner in spent, f"{job.name}: {job.grant_reason}, and its owner's budget is not spent"
            if code == "owners.fair_share" and not scheduler.unavailable_devices:
                assert numbers[0] >= terms.devices - EPSILON, f"{job.name}: {job.grant_reason}, below its owner's quota"
