"""Requests that are sent again: done once, also while the first is being done, or after who asked has hung up."""

from __future__ import annotations

import asyncio

import pytest

from lightning_core.parts.web.api import repeats
from lightning_core.parts.web.api.repeats import Repeats


def test_a_request_that_comes_again_while_it_is_being_done_is_done_once() -> None:
    async def story() -> None:
        done, may_end, known = list[str](), asyncio.Event(), Repeats()

        async def do() -> str:
            done.append("a")
            await may_end.wait()
            return "answer"

        first = asyncio.create_task(known.once("ann", "1", "pause", do))
        second = asyncio.create_task(known.once("ann", "1", "pause", do))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()  # who asked first hangs up
        may_end.set()
        assert await second == "answer"
        assert await known.once("ann", "1", "pause", do) == "answer"
        assert done == ["a"]

    asyncio.run(story())


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_REMEMBERED", 2)

    async def story() -> None:
        done, known = list[str](), Repeats()

        async def ask(number: str) -> None:
            async def do() -> None:
                done.append(number)

            await known.once("ann", number, "pause", do)

        for number in ("1", "2", "3", "3", "1"):
            await ask(number)
        assert done == ["1", "2", "3", "1"]

    asyncio.run(story())
