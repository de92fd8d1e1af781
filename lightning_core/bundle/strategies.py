"""Strategies of launched jobs: which a config may name, what each can do, and what the launcher adds to it.

A config names a strategy as Lightning does, by a short name or a class path with arguments. Without one, a job on
several devices trains with DDP. The launcher says how many ranks there are, and how they speak to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from lightning_core.bundle.problems import Problems
from lightning_core.core.jobs import OnHold

PACKAGE = "lightning.pytorch.strategies"
DDP, FSDP, MODEL_PARALLEL = "DDPStrategy", "FSDPStrategy", "ModelParallelStrategy"
# Short names, each with its class and arguments.
SHORT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddp": (DDP, {}),
    "ddp_find_unused_parameters_false": (DDP, {"find_unused_parameters": False}),
    "ddp_find_unused_parameters_true": (DDP, {"find_unused_parameters": True}),
    "fsdp": (FSDP, {}),
    "fsdp_cpu_offload": (FSDP, {"cpu_offload": True}),
}
EXPECTED = f"expected {', '.join(SHORT)}, or the class path of {DDP}, {FSDP} or {MODEL_PARALLEL}"
# Arguments that only the launcher knows.
OF_LAUNCHER = ("accelerator", "parallel_devices", "cluster_environment", "process_group_backend", "timeout")
_STARTS_PROCESSES = "starts processes of its own, and the launcher has started one for each device; use ddp"
# Why a strategy cannot be that of a launched job, by a part of its name.
REFUSED_STRATEGIES = {
    "deepspeed": "DeepSpeed unpickles whatever is in its checkpoints, and loads them on as many ranks only; "
    f"use fsdp or {MODEL_PARALLEL}",
    **dict.fromkeys(("spawn", "fork", "notebook"), _STARTS_PROCESSES),
}


class JobStrategy(NamedTuple):
    """The strategy of a launched job."""

    name: str
    """Name of its class in Lightning."""
    arguments: Mapping[str, Any]
    """Arguments that the config gives it."""

    @property
    def shards(self) -> bool:
        """Whether it spreads the parameters over the ranks; it then needs a process group even for one."""
        return self.name != DDP

    @property
    def saves_shards(self) -> bool:
        """Whether its checkpoints are folders of shards, rather than files."""
        if self.name == MODEL_PARALLEL:
            return self.arguments.get("save_distributed_checkpoint", True) is not False
        return self.name == FSDP and self.arguments.get("state_dict_type") == "sharded"

    @property
    def tensor_parallel(self) -> int:
        """Number of ranks that train on the same samples, each with a part of every layer."""
        size = self.arguments.get("tensor_parallel_size", "auto") if self.name == MODEL_PARALLEL else 1
        return 1 if size == "auto" else int(size)

    def for_ranks(self, ranks: int, backend: str, timeout: timedelta) -> dict[str, Any]:
        """Return the strategy as an argument of a Trainer that is one of several ranks.

        Args:
            ranks: Number of ranks.
            backend: Name of the backend by which they speak.
            timeout: Time for which a rank waits for the others in a collective.
        """
        arguments = {**self.arguments, "process_group_backend": backend, "timeout": timeout}
        if self.name == MODEL_PARALLEL:  # Lightning's "auto" counts the devices of a node, which has one here
            alike = self.tensor_parallel
            arguments |= {"data_parallel_size": ranks // alike, "tensor_parallel_size": alike}
        return {"class_path": f"{PACKAGE}.{self.name}", "init_args": arguments}


def read_strategy(value: Any) -> JobStrategy:
    """Read the strategy of a config.

    Args:
        value: What the config says; None for DDP.

    Raises:
        ValueError: If a launched job cannot have it; the message says why.

    Example::

        >>> read_strategy("fsdp").saves_shards
        False
        >>> sizes = {"tensor_parallel_size": 2}
        >>> read_strategy({"class_path": "ModelParallelStrategy", "init_args": sizes}).tensor_parallel
        2
    """
    if value is None:
        return JobStrategy(DDP, {})
    path: Any = value
    arguments: Any = {}
    if isinstance(value, Mapping):
        path, arguments = value.get("class_path"), value.get("init_args") or {}
    if not isinstance(path, str) or not isinstance(arguments, Mapping):
        raise ValueError(f"{EXPECTED}, got {value!r}")
    for part, reason in REFUSED_STRATEGIES.items():
        if part in path.lower():
            raise ValueError(f"{path}: {reason}")
    if path in SHORT:
        name, known = SHORT[path]
        arguments = {**known, **arguments}
    else:
        package, _, name = path.rpartition(".")
        if name not in (DDP, FSDP, MODEL_PARALLEL) or package not in ("", PACKAGE):
            raise ValueError(f"{EXPECTED}, got {path!r}")
    for key in OF_LAUNCHER:
        if key in arguments:
            raise ValueError(f"{key} of {name} is set by the launcher; remove it")
    for key in ("data_parallel_size", "tensor_parallel_size") if name == MODEL_PARALLEL else ():
        size = arguments.get(key, "auto")
        if size != "auto" and not (type(size) is int and size >= 1):
            raise ValueError(f"{key} must be auto or a positive whole number, got {size!r}")
    return JobStrategy(name, arguments)


def strategy_of(config: Mapping[str, Any]) -> JobStrategy:
    """Return the strategy that a config names, DDP if it names none.

    Raises:
        ValueError: If a launched job cannot have it.
    """
    trainer = config.get("trainer")
    return read_strategy(trainer.get("strategy") if isinstance(trainer, Mapping) else None)


def without_strategy(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without its strategy, which the launcher sets as it has read it."""
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key != "strategy"}
    return {**config, "trainer": trainer}


def check_strategy(
    config: Mapping[str, Any],
    problems: Problems,
    *,
    min_devices: int,
    max_devices: int,
    keep_best: bool,
    on_hold: OnHold,
) -> None:
    """Add a problem for each term of a job that its strategy cannot keep, with the reason.

    Args:
        config: LightningCLI config.
        problems: Collector at the job.
        min_devices: Minimum number of its devices.
        max_devices: Maximum number of its devices.
        keep_best: Whether its best model is to be kept.
        on_hold: What becomes of its memory while it is held.
    """
    at = problems.at("trainer", "strategy")
    try:
        strategy = strategy_of(config)
    except ValueError as error:
        at.add(str(error))
        return
    if strategy.name == MODEL_PARALLEL:
        alike, apart = strategy.tensor_parallel, strategy.arguments.get("data_parallel_size", "auto")
        if alike > 1 and min_devices < max_devices:
            at.add(
                f"tensor_parallel_size {alike} needs a number of devices that stays, because the ranks of a tensor "
                f"train on the same samples; got {min_devices} to {max_devices}: set devices"
            )
        elif max_devices % alike or (apart != "auto" and (apart * alike != max_devices or min_devices < max_devices)):
            sizes = f"data_parallel_size {apart} and tensor_parallel_size {alike}"
            at.add(f"{sizes} must multiply to the devices of the job, got {min_devices} to {max_devices}")
    if strategy.saves_shards and keep_best:
        whole = "save_distributed_checkpoint: false" if strategy.name == MODEL_PARALLEL else "state_dict_type: full"
        problems.at("keep_best").add(f"keeps one file, and {strategy.name} saves shards; set {whole}, or remove it")
    if strategy.shards and on_hold is not OnHold.KEEP:
        problems.at("on_hold").add(f"{on_hold} moves the state of one process, and {strategy.name} shards it; use keep")


def refusal_of_kind(config: Mapping[str, Any], kind: str) -> str:
    """Return why a strategy cannot train on a kind of devices; empty if it can.

    Example::

        >>> refusal_of_kind({"trainer": {"strategy": "fsdp"}}, "cpu")
        'FSDPStrategy trains on GPUs only, which Lightning says; use ModelParallelStrategy, or kind: gpu'
    """
    if kind == "cpu" and strategy_of(config).name == FSDP:
        return f"{FSDP} trains on GPUs only, which Lightning says; use {MODEL_PARALLEL}, or kind: gpu"
    return ""
