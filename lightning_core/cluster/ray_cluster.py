"""Starts a local Ray with a token, and joins an existing cluster."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from lightning_core.bundle.problems import BundleError
from lightning_core.node.signals import descendants, kill_all, protected_from_ray
from lightning_core.server.probe import no_answer
from lightning_core.server.ray_settings import NAMESPACE, OBJECT_STORE_BYTES, PRIVATE_RAY
from lightning_core.storage.private_files import owner_only

log = logging.getLogger(__name__)

# Ray gives the servers of a local instance 30 s, and no setting changes that. On a busy machine another start succeeds.
TRIES = 3


def start_local_ray(temp: Path, kind: str = "cpu", devices: int = 1) -> None:
    """Start a Ray for this process: with a token, without a dashboard, its files in ``temp / "ray"``.

    Ray replaces a loopback address of the node by the machine's own, so its ports can be reached from outside: the
    token is the only protection.

    Raises:
        BundleError: If the environment, or this Ray, uses no token.
    """
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")).lower() != "token":
        raise BundleError([f"RAY_AUTH_MODE is {mode!r}, but a Ray started here needs a token: unset it"])
    os.environ |= PRIVATE_RAY
    _ensure_token()
    for tries_left in reversed(range(TRIES)):
        try:
            # Ray makes its folder readable for all.
            with owner_only(), protected_from_ray():
                ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    resources={"device": devices} if kind == "cpu" and devices else None,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(temp / "ray"),
                )
            break
        except Exception as error:  # of no class of its own
            if not tries_left or "timed out" not in str(error).lower():
                raise
            log.warning("Ray is started again: %s", error)
            ray.shutdown()
            kill_all(descendants(str(temp)))
    if not has_token():  # Ray was imported before, without one
        ray.shutdown()
        raise BundleError(["this Ray started without a token: set RAY_AUTH_MODE=token before Python starts"])


def _ensure_token() -> None:
    """Give this process a token of its own unless it has one.

    Ray itself would write one into the home folder, which may be read-only; and the environment may name the token file
    of a Ray that is gone.
    """
    loader: Any = importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance()
    with suppress(RayError):
        if loader.has_token(ignore_auth_mode=True):
            return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    loader.reset_cache()


def join_ray(address: str) -> None:
    """Join an existing Ray cluster; the pool's folder must be one that all its nodes see.

    Args:
        address: Address of its head, or ``"auto"`` for the one on this machine.

    Raises:
        ValueError: If there is none.
    """
    if address != "auto" and (why := no_answer(address)):  # Ray would look for minutes
        raise ValueError(why)
    try:
        with protected_from_ray():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, RuntimeError, OSError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"the Ray cluster at {address} cannot be joined ({cause})") from None


def has_token() -> bool:
    """Return whether the Ray that this process has started or joined requires a token.

    This asks Ray, not the environment: Ray reads the environment once, when it is imported.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)
