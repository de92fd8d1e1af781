"""Recordings of training losses: data sets, networks, and the list of runs."""

from benchmarks.recording.data import Pairs
from benchmarks.recording.models import Learner
from benchmarks.recording.runs import RUNS, Run

__all__ = ["RUNS", "Learner", "Pairs", "Run"]
