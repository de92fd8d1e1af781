"""A data loader with which a training continues on a different number of devices, even in the middle of an epoch.

Rules

1. An optimizer step consists of the same *micro-batches* on any number of devices. Of n ranks, each trains every n-th
   micro-batch and accumulates their gradients.
2. The samples of a micro-batch follow from the seed, the epoch and the number of the step alone.
3. The position in an epoch is counted in steps of the whole training, not in batches of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import override

from .steps import micro_batches_per_step, rank, world_size


class ElasticLoader(DataLoader[Any]):
    """A :class:`~torch.utils.data.DataLoader` that resumes where it stopped, on any number of devices.

    Each sample is seen once an epoch. In a launched job whose number of devices may change, an optimizer step has the
    same samples on any number of devices.

    Args:
        dataset: Map-style dataset with a length.
        batch_size: Samples per micro-batch, which is what one device trains at once.
        shuffle: Whether to draw a new order for each epoch.
        seed: Seed of the orders, at least 0.
        drop_last: Whether to drop the samples at the end of an epoch that do not fill a step. Otherwise they form a
            smaller step or, if there are fewer samples than micro-batches, are added to the last full step.
        **options: Options of :class:`~torch.utils.data.DataLoader`, such as ``num_workers`` and ``collate_fn``.

    Raises:
        ValueError: If a number is out of range. Also raised by ``len()`` and by iterating, if the dataset has fewer
            samples than a step needs.
        TypeError: If ``sampler`` or ``batch_sampler`` is given.

    .. note::
        A step has ``accumulate_grad_batches`` times ``max_devices`` micro-batches. Outside a launched job, or if the
        number of devices of the job cannot change, it has one for each process.

    .. note::
        Random numbers drawn in worker processes (``num_workers``) are not reproduced after a job is resumed.

    Example::

        >>> from lightning_core.callbacks import ElasticLoader
        >>> loader = ElasticLoader(range(10), batch_size=4, shuffle=False)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        >>> batches = iter(loader)
        >>> first, state = next(batches), loader.state_dict()
        >>> resumed = ElasticLoader(range(10), batch_size=4, shuffle=False)
        >>> resumed.load_state_dict(state)
        >>> [batch.tolist() for batch in resumed]
        [[4, 5, 6, 7], [8, 9]]
    """

    any_ranks = True
    """Whether a different number of ranks can load the state. Other loaders may set this attribute too."""

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        # Lightning turns shuffling off by creating the loader again with a SequentialSampler.
        given = options.pop("sampler", None), options.pop("batch_sampler", None)
        if given != (None, None) and not isinstance(given[0], SequentialSampler):
            raise TypeError("ElasticLoader orders the samples itself: remove sampler and batch_sampler")
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        # Attributes named as the arguments: Lightning needs them to create the loader again.
        self.seed, self.shuffle = seed, shuffle
        self._order = _SampleOrder(dataset, batch_size, shuffle, seed, drop_last)
        super().__init__(dataset, batch_size, sampler=self._order, drop_last=drop_last, **options)

    @property
    def _index_sampler(self) -> _SampleOrder:
        return self._order

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._order.begin()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        # Starts with the first batch: Lightning creates the iterator before it sets the epoch.
        order = self._order
        with torch.random.fork_rng(devices=()):  # the workers' seed must not disturb the training's random state
            torch.default_generator.manual_seed(order.draw_seed())
            batches = super().__iter__()
        for batch in batches:
            order.done += 1
            order.used = True
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch, and the steps that are done in it."""
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position.

        Args:
            state: Result of :meth:`state_dict`.

        Raises:
            ValueError: If the position is within an epoch whose steps have another size.
        """
        self._order.load_state_dict(state)


class _StepSize(NamedTuple):
    """Numbers that determine the steps of an epoch; stored in checkpoints as a list."""

    samples: int
    """Samples in the dataset."""
    batch_size: int
    """Samples per micro-batch."""
    micro_batches: int
    """Micro-batches per step."""


class _SampleOrder(DistributedSampler[list[int]]):
    """The samples of this rank, batch by batch, and the position among them.

    It is a DistributedSampler so that Lightning does not replace it, and tells it the epoch.
    """

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        # The base class would ask for the world size, which may not be known yet and may change.
        self.dataset: Dataset[Any] = dataset
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self.again = 0
        """Number of times the loader started over within the epoch."""
        self.done = 0
        """Batches of the epoch that this rank has had."""
        self.used = False
        """Return whether any batch was taken since the last start."""
        self._batch_size = batch_size

    def begin(self) -> None:
        """Start an iteration: at the position, or from the beginning if the loader was iterated before."""
        if self.used:
            self.again, self.done, self.used = self.again + 1, 0, False

    @override
    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.again, self.done, self.used = epoch, 0, 0, False

    def draw_seed(self) -> int:
        """Return a seed for the worker processes, different on each rank and at each start."""
        numbers = (self.seed, self.epoch, self.again, self.done, rank())
        return int(np.random.SeedSequence(numbers).generate_state(1)[0])

    @override
    def __len__(self) -> int:
        step = self._step_size()
        return self._steps(step) * (step.micro_batches // world_size())

    @override
    def __iter__(self) -> Iterator[list[int]]:
        step, own_rank, ranks = self._step_size(), rank(), world_size()
        order: npt.NDArray[np.int64] = np.arange(step.samples)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch, self.again)).permutation(step.samples)
        for batch in range(self.done, len(self)):
            number, own = divmod(batch, step.micro_batches // ranks)
            yield order[self._micro_batch(step, number, own * ranks + own_rank)].tolist()

    def _step_size(self) -> _StepSize:
        ranks, samples = world_size(), len(cast(Sized, self.dataset))
        micro_batches = micro_batches_per_step() or ranks
        if micro_batches % ranks:
            raise ValueError(f"the {micro_batches} micro-batches of a step cannot be divided among {ranks} ranks")
        needed = micro_batches * self._batch_size if self.drop_last else micro_batches
        if samples < needed:
            raise ValueError(
                f"a step needs at least {needed} samples ({micro_batches} micro-batches), the dataset has {samples}"
            )
        return _StepSize(samples, self._batch_size, micro_batches)

    def _steps(self, step: _StepSize) -> int:
        full, left = divmod(step.samples, step.micro_batches * step.batch_size)
        return full + (left >= step.micro_batches and not self.drop_last)

    def _micro_batch(self, step: _StepSize, number: int, index: int) -> list[int]:
        """Return the samples of a micro-batch, as positions in the order of the epoch.

        Args:
            step: Size of the steps.
            number: Number of the step in the epoch.
            index: Number of the micro-batch in the step.
        """
        full, left = divmod(step.samples, step.micro_batches * step.batch_size)
        first_left = step.samples - left
        if number == full:  # the smaller last step: its samples are divided evenly
            each, more = divmod(left, step.micro_batches)
            begin = first_left + index * each + min(index, more)
            return list(range(begin, begin + each + (index < more)))
        begin = (number * step.micro_batches + index) * step.batch_size
        takes_more = number == full - 1 and index < left < step.micro_batches and not self.drop_last
        return [*range(begin, begin + step.batch_size), *([first_left + index] if takes_more else [])]

    def state_dict(self) -> dict[str, Any]:
        step = self._step_size()
        steps, of_next = divmod(self.done * world_size(), step.micro_batches)
        return {"epoch": self.epoch, "again": self.again, "steps": steps, "micro_batches": of_next, "step": list(step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step, ranks = self._step_size(), world_size()
        before, steps, of_next = _StepSize(*state["step"]), state["steps"], state["micro_batches"]
        ended = steps >= self._steps(before)
        if before != step and not ended and (steps or of_next):
            raise ValueError(
                f"the checkpoint is from the middle of an epoch with {_describe(before)}; training cannot resume there "
                f"with {_describe(step)}"
            )
        own = step.micro_batches // ranks
        # Within a step, only the same number of ranks can resume at the exact micro-batch.
        started = of_next // ranks if of_next % ranks == 0 else 0
        self.epoch, self.again = state["epoch"], state["again"]
        self.done, self.used = steps * own + started, ended


def _describe(step: _StepSize) -> str:
    return f"{step.samples} samples and {step.micro_batches} micro-batches of {step.batch_size} in a step"
