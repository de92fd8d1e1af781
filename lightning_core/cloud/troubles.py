"""What people are told of a cloud's trouble: that there is some at once, other words for it seldom, and its end."""

from __future__ import annotations

from lightning_core.core.control import CloudPart, CloudTrouble
from lightning_core.core.limits import MAX_TEXT

# Seconds for which the words of a trouble stay, though others would be newer: an error may differ each time.
STAY = 60.0


class Troubles:
    """Troubles as they are, and as people were told of them.

    What an earlier provisioner told is not known: each part is told of once, even that it has no trouble.
    """

    def __init__(self) -> None:
        self._are: dict[CloudPart, str] = {}
        self._told: dict[CloudPart, tuple[str, float]] = {}

    def set(self, part: CloudPart, words: str) -> None:
        """Take note of a trouble; empty: it is over."""
        words = " ".join(words.split())
        self._are[part] = words if len(words) <= MAX_TEXT else f"{words[: MAX_TEXT - 3]}..."

    def news(self, now: float) -> list[CloudTrouble]:
        """Return what people must be told."""
        news = []
        for part, words in self._are.items():
            told, since = self._told.get(part, (None, now))
            if words != told and not (words and told and now < since + STAY):
                news.append(CloudTrouble(part, words))
        return news

    def tell(self, trouble: CloudTrouble, now: float) -> None:
        """Take note that people were told."""
        self._told[trouble.part] = trouble.words, now
