"""A small language model is taught, with LoRA, to tell whether people liked a film."""

from examples.reviews.data import Reviews
from examples.reviews.model import Reader

__all__ = ["Reader", "Reviews"]
