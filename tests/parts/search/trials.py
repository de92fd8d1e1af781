"""Made-up trials of a search."""

import numpy as np

from benchmarks.searches.play import RecordedTrial


def table(many: int = 60) -> list[RecordedTrial]:
    """Trials of 27 epochs of a second: each falls by a slope of its own from a level that tells; each tenth is good."""
    rng = np.random.default_rng(0)
    trials = []
    for number in range(many):
        slope = 0.7 if number % 10 == 4 else rng.uniform(0.05, 0.4)
        noise = np.exp(rng.normal(0, 0.02, 27))
        trials.append(RecordedTrial(tuple((2.3 - slope) * np.arange(1, 28) ** -slope * noise), 1.0))
    return trials
