"""Adapters for loops other than Lightning's: a plain one, Fabric's, and that of Hugging Face's ``transformers``.

Each is a participant of :mod:`lightning_core.agent` and does what its loop's hooks permit. A module imports what its
loop stands on, and nothing here imports Lightning's Trainer.
"""
