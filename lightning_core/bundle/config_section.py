"""The LightningCLI config of a job in a bundle file: inline, or in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.bundle.class_paths import check_class_paths
from lightning_core.bundle.preflight import check_plain
from lightning_core.bundle.problems import BundleError, Position, Problems, require

CONFIG_KEYS = ("model", "data", "trainer", "seed_everything", "optimizer", "lr_scheduler", "ckpt_path")
# The launcher sets a job's devices and its end; a config that sets them too contradicts it.
REFUSED_TRAINER_KEYS = {
    **dict.fromkeys(("accelerator", "devices", "num_nodes"), "is set by the launcher; remove it"),
    "max_time": "contradicts the job's deadline; remove it and use deadline",
}
# Checkpoints that Lightning looks up by itself.
LIGHTNINGS_CHECKPOINTS = ("last", "best", "hpc", "registry")


def read_config(
    value: Mapping[str, Any], folder: Path, problems: Problems, allow: Sequence[str] | None
) -> tuple[dict[str, Any], Position]:
    """Read the config of a job, and check it without importing anything.

    Args:
        value: Section of the job in the bundle file.
        folder: Folder to which paths are relative.
        problems: Collector at the job.
        allow: Names that class paths may import; None for all that are not refused.

    Returns:
        The config, and its position. It is incomplete if there are problems.
    """
    config = {key: value[key] for key in CONFIG_KEYS if key in value}
    if "config" in value:
        found = _read_config_file(value["config"], config, folder, problems)
        if found is None:
            return config, problems.position
        config, problems = found
    if "model" not in config:
        problems.add("model is missing (inline, or in the file that config names); or script, for a loop of your own")
    for key in ("model", "data"):  # `model: mine.Cnn` is short for a class without arguments
        if isinstance(config.get(key), str):
            config[key] = {"class_path": config[key]}
    check_plain(config, problems)
    check_class_paths(config, problems, allow)
    _check_trainer(config, folder, problems)
    return config, problems.position


def _read_config_file(
    path: Any, inline: Mapping[str, Any], folder: Path, problems: Problems
) -> tuple[dict[str, Any], Problems] | None:
    """Read a config from its file; None, with the problems added, if that fails."""
    if inline:
        problems.at("config").add(f"either config or {', '.join(inline)}, not both")
        return None
    if not isinstance(path, str):
        problems.at("config").add(f"must be the path of a LightningCLI config, got {path!r}")
        return None
    try:
        require("yaml")
        from lightning_core.bundle.yaml_loader import load_yaml

        content, inner = load_yaml(folder / path, "file is empty; expected a LightningCLI config", quoting=False)
    except BundleError as error:
        problems.messages.extend(error.problems)
        return None
    at = problems.within(inner.position)
    if isinstance(content, Mapping) and "fit" in content:  # as for `main.py --config x.yaml fit`
        content, at = content["fit"], at.at("fit")
    if not isinstance(content, Mapping) or not content.keys() & set(CONFIG_KEYS):
        # Any file may be named here, and errors go into logs: nothing is quoted of one that is not a config.
        at.add(f"not a LightningCLI config: expected a mapping with model, found none of {', '.join(CONFIG_KEYS)}")
        return None
    problems.messages.extend(inner.messages)
    problems = at
    problems.check_keys(content, CONFIG_KEYS)
    return {key: content[key] for key in CONFIG_KEYS if key in content}, problems


def _check_trainer(config: dict[str, Any], folder: Path, problems: Problems) -> None:
    """Check the Trainer's arguments, the seed and the checkpoint; the checkpoint's path is made absolute."""
    trainer = config.get("trainer")
    if isinstance(trainer, Mapping):
        for key, message in REFUSED_TRAINER_KEYS.items():
            if key in trainer:
                problems.at("trainer", key).add(message)
    elif trainer is not None:
        problems.at("trainer").add(f"must be a mapping of Trainer's arguments, got {trainer!r}")
    seed = config.get("seed_everything", True)
    if not isinstance(seed, bool | int):
        problems.at("seed_everything").add(f"must be a whole number or a bool, got {seed!r}")
    checkpoint = config.get("ckpt_path")
    if checkpoint is None:
        config.pop("ckpt_path", None)
    elif not isinstance(checkpoint, str) or not checkpoint:
        problems.at("ckpt_path").add(f"must be the path of a checkpoint, got {checkpoint!r}")
    elif is_file_name(checkpoint):
        config["ckpt_path"] = str(folder / checkpoint)


def is_file_name(checkpoint: str) -> bool:
    """Return whether a ``ckpt_path`` names a local file: no URL, and no checkpoint that Lightning looks up."""
    return checkpoint.partition(":")[0] not in LIGHTNINGS_CHECKPOINTS and "://" not in checkpoint
