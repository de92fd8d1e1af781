"""Finds out within seconds why the pool at an address cannot be joined, where Ray itself takes 20 s.

The caller checks that a Ray listens at the address and that there is a token to show (:func:`check`). The proxy, which
imports Ray, checks that the token is accepted, and that this machine is a node of that Ray (:func:`ask`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import read_text

# Seconds within which a Ray answers.
ANSWER_TIMEOUT = 5.0
# Beginning of an HTTP/2 connection, Ray's protocol, and the type of the first frame of the answer (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = 4
# State of a node that lives, in Ray's protocol (GcsNodeInfo.GcsNodeState).
ALIVE = 0
# Exit codes of the proxy if the pool cannot be reached, and if retrying will not help.
UNREACHABLE, UNUSABLE = 2, 3
TOKEN_FILE = Path(".ray") / "auth_token"
MAX_TOKEN_BYTES = 2**16


class PoolUnavailableError(LightningCoreError, ConnectionError):
    """This process cannot join the pool, and retrying will not help; the message names the remedy."""


def check(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Check that a Ray listens at an address, and that there is a token to show.

    Args:
        address: Address, ``host:port``.
        environment: Environment in which Ray will look for the token.

    Raises:
        PoolUnavailableError: If another program listens there, or there is no token, or Ray is not installed.
        ConnectionError: If nothing listens there, or nothing answers.
    """
    if find_spec("ray") is None:
        raise PoolUnavailableError(
            f"{address}: joining a pool by its address needs Ray, which is not installed; "
            "run pip install -c constraints.txt '.[ray]' in the clone"
        )
    if environment.get("RAY_AUTH_MODE", "token") == "token":
        token_source(address, environment)
    _check_listener(address, encrypted=environment.get("RAY_USE_TLS", "0") == "1")


def token_source(address: str, environment: Mapping[str, str]) -> str:
    """Return where Ray finds the token that it shows: a variable or a file.

    Raises:
        PoolUnavailableError: If there is no token.
    """
    if environment.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    told = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(told) if told else Path(environment.get("HOME") or "/") / TOKEN_FILE
    try:
        if read_text(path, MAX_TOKEN_BYTES).strip():
            return str(path) if not told else f"{path} (RAY_AUTH_TOKEN_PATH)"
        words = f"{path} is empty"
    except FileNotFoundError:
        words = f"{path} does not exist" if told else "RAY_AUTH_TOKEN is not set"
    except (OSError, UnicodeDecodeError) as error:
        words = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not a text file'}"
    raise PoolUnavailableError(f"{address}: there is no token to show to the pool: {words}; {_what_to_do()}")


def ask(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Ask the Ray at an address whether it accepts the token, and has this machine as a node; this imports Ray.

    Raises:
        PoolUnavailableError: If it does not. Of a process on another machine, Ray would end it.
    """
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # private; all public ways retry

    try:
        client = GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        source = token_source(address, environment)
        raise PoolUnavailableError(
            f"{address}: the pool refuses the token in {source}: it is another pool's token, or an old one; "
            + _what_to_do()
        ) from None

    nodes = client.get_all_node_info(timeout=ANSWER_TIMEOUT).values()
    if not _has_us(node.node_manager_address for node in nodes if node.state == ALIVE):
        raise PoolUnavailableError(
            f"{address}: this machine is no node of that Ray: run `ray start --address={address} --num-cpus=0 "
            "--num-gpus=0` on it first, with the same token; nothing is trained on such a node"
        )


def _has_us(addresses: Iterable[str]) -> bool:
    """Return whether one of some addresses is of this machine: only to those can a socket be bound."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    return False


def _what_to_do() -> str:
    return (
        "`lightning-core up` printed the path of the token's file on the pool's machine: set RAY_AUTH_TOKEN to its "
        "content, or RAY_AUTH_TOKEN_PATH to the path of a copy"
    )


def no_answer(address: str) -> str:
    """Return the reason why the Ray at an address does not answer, and the remedy; empty if it does.

    Args:
        address: Address, ``host:port``.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT).close()
    except (OSError, ValueError) as error:
        return (
            f"the Ray at {address} does not answer ({error}); if its head has another address now, or is gone, end "
            "the remains of Ray on all nodes and start it again"
        )
    return ""


def _check_listener(address: str, encrypted: bool) -> None:
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 65536:
        raise PoolUnavailableError(f"{address}: a port must be 1 to 65535, got {port}")
    question = "is this the address of the Ray that `lightning-core up` printed"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT) as connection:
            if encrypted:  # it asks for a certificate first
                return
            connection.sendall(PREFACE)
            frame = connection.recv(9)
    except TimeoutError:
        raise ConnectionError(
            f"{address}: no answer within {ANSWER_TIMEOUT:.0f} s; {question}, and can its machine be reached?"
        ) from None
    except ConnectionResetError:
        frame = b""
    except socket.gaierror:
        raise ConnectionError(f"{address}: there is no machine named {host}; {question}?") from None
    except OSError as error:
        words = "nothing listens there" if isinstance(error, ConnectionRefusedError) else error.strerror or str(error)
        raise ConnectionError(f"{address}: {words}; is the pool up, and {question}?") from None
    if frame[3:4] != bytes((SETTINGS,)):
        raise PoolUnavailableError(f"{address}: the program that listens there is not Ray; {question}?")
