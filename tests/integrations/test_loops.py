"""Each loop that has an adapter keeps what the conformance suite asks, but for what it says it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.testing.loop_conformance import LOOP_CHECKS
from tests.conftest import ROOT
from tests.integrations.loops import CANNOT_OF_TRANSFORMERS, loops

CASES = [pytest.param(loop, name, id=f"{type(loop).__name__}-{name}") for loop in loops() for name in LOOP_CHECKS]


HEADS = {
    "PlainBatches": "`run.batches`", "PlainSteps": "`run.step`", "FabricTracked": "`track(fabric=)`",
    "FabricHooks": "`CoreFabricCallback`", "HuggingFace": "`transformers`", "LightningTrainer": "Lightning",
}  # fmt: skip


def conformance_table() -> str:
    """Return what each loop can do, as the page of loops has it."""
    known = {type(loop).__name__: loop.cannot for loop in loops()} | {"HuggingFace": CANNOT_OF_TRANSFORMERS}
    lines = [
        "| check | " + " | ".join(HEADS.values()) + " |",
        "|---" * (len(HEADS) + 1) + "|",
    ]
    reasons: list[str] = []
    for name, check in LOOP_CHECKS.items():
        first = (check.__doc__ or "").splitlines()[0].removeprefix("Check that ").rstrip(".")
        cells = []
        for loop in HEADS:
            reason = known[loop].get(name)
            if reason is not None and reason not in reasons:
                reasons.append(reason)
            cells.append("yes" if reason is None else f"no ({reasons.index(reason) + 1})")
        lines.append(f"| {first} | {' | '.join(cells)} |")
    notes = [f"({number}) {reason}." for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes])


def test_the_page_of_loops_says_what_each_can_do() -> None:
    text = (ROOT / "docs/how-to/any-loop.md").read_text()
    _, _, rest = text.partition("<!-- loops: begin -->\n")
    assert rest.partition("<!-- loops: end -->")[0].strip() == conformance_table()


@pytest.mark.parametrize(("loop", "name"), CASES)
def test_a_loop_keeps_what_the_suite_asks(loop: Any, name: str) -> None:
    if name in loop.cannot:
        pytest.skip(loop.cannot[name])
    LOOP_CHECKS[name](loop)
