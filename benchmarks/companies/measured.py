"""Measured paces of trainings beside each other on one GPU.

``gavel_beside.csv`` has the throughputs of 26 trainings on three GPUs, alone and two at once on one, without MPS
(stanford-futuredata/gavel, ``scheduler/simulation_throughputs.json``; its licence is beside it). Pairs in which both
have none did not run together. Constants are chosen on half of the trainings, and figures are of the others.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).parent / "gavel_beside.csv"
GPUS = ("v100", "p100", "k80")
# Trainings of the domains of recorded curves, by the beginning of their names; other domains have any.
OF_DOMAIN = {
    "cv": ("ResNet",),
    "cv-generative": ("CycleGAN", "ResNet"),
    "nlp": ("LM", "Transformer"),
    "audio": ("Transformer", "LM"),
    "rl": ("A3C",),
    "tabular": ("Recommendation",),
}


class Paces:
    """Paces of pairs on one GPU.

    Args:
        gpu: One of :data:`GPUS`.
    """

    def __init__(self, gpu: str) -> None:
        self._of: dict[tuple[str, str], float] = {}
        with FILE.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["gpu"] == gpu:
                    one, two = row["model"], row["other"]
                    # Rates above the lone one are noise.
                    self._of[one, two] = min(float(row["beside"]) / float(row["alone"]), 1.0)
                    self._of[two, one] = min(float(row["other_beside"]) / float(row["other_alone"]), 1.0)
        self.names = sorted({one for one, _ in self._of})

    def pace(self, one: str, other: str) -> float:
        """Return the throughput of a training beside another as a fraction of its throughput alone; 0: did not run."""
        return self._of[one, other]

    def together(self, one: str, other: str) -> float:
        """Return the work that two do at once, as a multiple of turns."""
        return self.pace(one, other) + self.pace(other, one)

    def matched(self, names: Sequence[str]) -> float:
        """Return the work of trainings over turns if all is known: paired greedily, and alone where no pair pays."""
        pairs = [(a, b) for a in range(len(names)) for b in range(a)]
        pairs.sort(key=lambda pair: -self.together(names[pair[0]], names[pair[1]]))
        work = dict.fromkeys(range(len(names)), 1.0)
        paired = set[int]()
        for a, b in pairs:
            together = self.together(names[a], names[b])
            if together > 1.0 and paired.isdisjoint((a, b)):
                paired |= {a, b}
                work[a] = work[b] = together
        return sum(work.values()) / len(names)


def halves() -> tuple[list[str], list[str]]:
    """Return the trainings on which constants were chosen, and those that figures are of."""
    names = Paces(GPUS[0]).names
    random.Random(0).shuffle(names)
    return names[: len(names) // 2], names[len(names) // 2 :]


def of_domain(domain: str, names: Sequence[str], draw: random.Random) -> str:
    """Return one of some trainings that stands for a recorded curve of a domain."""
    return draw.choice([name for name in names if stands_for(name, domain)] or list(names))


def stands_for(name: str, domain: str) -> bool:
    """Return whether a training may stand for recorded curves of a domain."""
    return name.startswith(OF_DOMAIN.get(domain, ("",)))
