"""A small language model that learns, with LoRA, whether a review is positive."""

from examples.reviews.data import Reviews
from examples.reviews.model import Reader

__all__ = ["Reader", "Reviews"]
