r"""
ElasticLoader
^^^^^^^^^^^^^

A training that goes on with another number of devices, in the middle of an epoch.

Rules

1. A step of the optimiser is made of the same micro-batches on every number of devices: its *slots*. On n devices
   each rank trains every n-th of them, and gathers their gradients.
2. What is in a slot is known from the seed, the epoch and the number of the step alone.
3. A place in an epoch is counted in steps of the whole training, never in batches of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import override

from .steps import _rank, _ranks, slots

# --------------------------------------------------------------------------------------------------- the Trainer's part


# ----------------------------------------------------------------------------------------------------------- the loader


class ElasticLoader(DataLoader[Any]):
    """A :class:`~torch.utils.data.DataLoader` that goes on where it was on any number of devices.

    Every sample is seen once an epoch: none twice, none left out. In a launched job whose number of devices may change,
    a step of the optimiser has the same samples on every number of them.

    Args:
        dataset: with a length, and samples by number.
        batch_size: samples that one device trains at once.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders.
        drop_last: whether what is left at the end of an epoch, less than a step, is left out. Otherwise it is a step of
            its own, or, if that would leave slots empty, part of the step before.
        **options: as of a DataLoader: ``num_workers``, ``collate_fn``, ``pin_memory``, ...

    Raises:
        ValueError: if a number is out of its range; when its length is asked for, or it is iterated, also if there is
            not a sample for each slot of a step.
        TypeError: if there is a ``sampler`` or a ``batch_sampler``.

    .. note::
        A step is ``accumulate_grad_batches`` times ``max_devices`` slots of ``batch_size`` samples. Outside a launched
        job, or if its number of devices cannot change, it is one slot for each process.

    .. note::
        What workers (``num_workers``) draw at random is not drawn again the same way after a return.

    Example::

        >>> from lightning_core.callbacks import ElasticLoader
        >>> loader = ElasticLoader(range(10), batch_size=4, shuffle=False)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        >>> batches = iter(loader)
        >>> place = next(batches), loader.state_dict()
        >>> other = ElasticLoader(range(10), batch_size=4, shuffle=False)
        >>> other.load_state_dict(place[1])
        >>> [batch.tolist() for batch in other]
        [[4, 5, 6, 7], [8, 9]]
    """

    any_ranks = True
    """Whether the state can be loaded by another number of ranks than saved it. Other loaders may say so too."""

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        # Lightning turns the shuffling off by making a loader anew, with such a sampler.
        given = options.pop("sampler", None), options.pop("batch_sampler", None)
        if given != (None, None) and not isinstance(given[0], SequentialSampler):
            raise TypeError("ElasticLoader orders the samples itself, and takes no sampler")
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        self.seed, self.shuffle = seed, shuffle  # under these names it can be made anew
        self._order = _Order(dataset, batch_size, shuffle, seed, drop_last)
        super().__init__(dataset, batch_size, sampler=self._order, drop_last=drop_last, **options)

    @property
    def _index_sampler(self) -> _Order:
        return self._order

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._order.begin()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        # Begun with the first batch and not before: Lightning makes the iterator before it says which epoch it is for.
        order = self._order
        with torch.random.fork_rng(devices=()):  # what torch draws for the workers leaves no trace in the training
            torch.default_generator.manual_seed(order.draw())
            batches = super().__iter__()
        for batch in batches:
            order.done += 1
            order.used = True
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where it is: after which step of which epoch."""
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there.

        Raises:
            ValueError: if that is in the middle of an epoch of other steps.
        """
        self._order.load_state_dict(state)


class _Order(DistributedSampler[list[int]]):
    """Which samples this rank takes, batch by batch, and where it is.

    A DistributedSampler by name: Lightning replaces every other one, and tells it the epoch.
    """

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        # Not the base's, which asks for the ranks: there may be none yet, and other ones later.
        self.dataset: Dataset[Any] = dataset
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self.again = 0
        """How often it has begun anew within the epoch."""
        self.done = 0
        """Batches that this rank has had of the epoch."""
        self.used = False
        """Whether some of them since it began."""
        self._batch_size = batch_size

    def begin(self) -> None:
        """Something will be iterated: from where it is, or anew if it was iterated before."""
        if self.used:
            self.again, self.done, self.used = self.again + 1, 0, False

    @override
    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.again, self.done, self.used = epoch, 0, 0, False

    def draw(self) -> int:
        """A seed for the workers, another one on each rank and whenever they begin."""
        numbers = (self.seed, self.epoch, self.again, self.done, _rank())
        return int(np.random.SeedSequence(numbers).generate_state(1)[0])

    @override
    def __len__(self) -> int:
        step, ranks = self._step(), _ranks()
        return self._steps(step) * (step[2] // ranks)

    @override
    def __iter__(self) -> Iterator[list[int]]:
        step, rank, ranks = self._step(), _rank(), _ranks()
        samples, _, slots = step
        order: npt.NDArray[np.int64] = np.arange(samples)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch, self.again)).permutation(samples)
        for batch in range(self.done, len(self)):
            number, own = divmod(batch, slots // ranks)
            yield order[self._slot(step, number, own * ranks + rank)].tolist()

    def _step(self) -> tuple[int, int, int]:
        """Samples in all, samples of a slot, slots of a step."""
        of, ranks, samples = slots() or _ranks(), _ranks(), len(cast(Sized, self.dataset))
        if of % ranks:
            raise ValueError(f"the {of} slots of a step are not to be shared by {ranks} ranks")
        least = of * self._batch_size if self.drop_last else of
        if samples < least:
            raise ValueError(f"a step takes at least {least} samples ({of} slots), and the data set has {samples}")
        return samples, self._batch_size, of

    def _steps(self, step: tuple[int, int, int]) -> int:
        samples, size, slots = step
        full, left = divmod(samples, slots * size)
        return full + (left >= slots and not self.drop_last)

    def _slot(self, step: tuple[int, int, int], number: int, slot: int) -> list[int]:
        """Which samples, in the order of the epoch, are in a slot of a step."""
        samples, size, slots = step
        full, left = divmod(samples, slots * size)
        first = samples - left
        if number == full:  # what is left, one sample more or less in each slot
            each, more = divmod(left, slots)
            begin = first + slot * each + min(slot, more)
            return list(range(begin, begin + each + (slot < more)))
        begin = (number * slots + slot) * size
        more_here = number == full - 1 and slot < left < slots and not self.drop_last
        return [*range(begin, begin + size), *([first + slot] if more_here else [])]

    def state_dict(self) -> dict[str, Any]:
        step = self._step()
        steps, of_next = divmod(self.done * _ranks(), step[2])
        return {"epoch": self.epoch, "again": self.again, "steps": steps, "slots": of_next, "step": list(step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step, ranks = self._step(), _ranks()
        (samples, size, of), steps = state["step"], state["steps"]
        ended = steps >= self._steps((samples, size, of))
        if (samples, size, of) != step and not ended and (steps or state["slots"]):
            raise ValueError(
                f"it was in the middle of an epoch of {samples} samples, {of} times {size} in a step, and cannot go on "
                f"from there with {step[0]} samples, {step[2]} times {step[1]} in a step"
            )
        own = step[2] // ranks
        # In the middle of a step only as many ranks as were there can go on from where they were.
        started = state["slots"] // ranks if state["slots"] % ranks == 0 else 0
        self.epoch, self.again = state["epoch"], state["again"]
        self.done, self.used = steps * own + started, ended
