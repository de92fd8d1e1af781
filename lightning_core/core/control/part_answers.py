"""Answers of controllers that are of no kind that the core knows: a note about a job, and whatever a part says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lightning_core.core.control.asks import Asker
from lightning_core.core.parts import message_body, message_name, read_message
from lightning_core.core.reasons import Reason


class Note(NamedTuple):
    """What a controller tells users of a job, in place of what it told before: it changes nothing."""

    job: str
    by: Asker
    reason: Reason


class PartAnswer(NamedTuple):
    """An answer of a part, for what the part carries it out or shows it with; the scheduler journals it."""

    name: str
    """``PART.ANSWER``."""
    body: Mapping[str, Any]
    """Its fields as JSON values."""

    @classmethod
    def of(cls, answer: Any) -> PartAnswer:
        """Return the answer that an object of a class in :attr:`Part.answers <lightning_core.core.parts.Part>` is.

        Raises:
            ValueError: If no registered part brings the class.
        """
        return cls(message_name(type(answer), "answers"), message_body(answer))

    def decoded(self) -> Any:
        """Return the object that the part makes of it; the answer itself where no part knows it.

        Raises:
            ValueError: If its body is of another form.
        """
        return read_message(self, "answers")

    @property
    def job(self) -> str:
        """Empty: the answer is of the pool, and of no job."""
        return ""


def part_objects(answers: Iterable[Any]) -> list[Any]:
    """Return answers, those of parts as their objects."""
    return [answer.decoded() if isinstance(answer, PartAnswer) else answer for answer in answers]
