"""The conformance suites of lightning_core, run on the parts of this package."""

import my_part

from lightning_core import register
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.controller_conformance import check_controller
from lightning_core.testing.policy_conformance import check_policy
from lightning_core.testing.target_conformance import check_target

register("my_part", my_part.part)


def test_the_policy() -> None:
    """It plans, and is found by its name."""
    check_policy(my_part.HeaviestFirst)
    Settings(policy="heaviest").make_policy()


def test_the_target() -> None:
    """It is read in every form, and met when it should be."""
    check_target(my_part.Perplexity(20.0))


def test_the_controller() -> None:
    """It asks only for what it may, and is found by its name."""
    check_controller(my_part.Pausing, own=[my_part.Maintenance(on=True), my_part.Maintenance(on=False)])
    Settings(controllers={"maintenance": {"except_for": "a"}}).make_controllers()
