"""Tells within seconds, and in words, why a pool at the address of a Ray cannot be joined; Ray itself takes twenty.

The caller looks whether a Ray listens there and whether it has a token to show (:func:`check`); the proxy, which has
Ray, asks whether the token is right (:func:`ask`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from lightning_core.errors import LightningCoreError

# Seconds within which a Ray says that it is one. None answers later unless its machine is in trouble.
ANSWERS = 5.0
# How a connection of HTTP/2 begins, which Ray speaks, and the kind of frame that is answered first (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = 4
# Exit code of the proxy where no further try would help.
UNUSABLE = 3
TOKEN_FILE = Path(".ray") / "auth_token"


class PoolUnavailableError(LightningCoreError, ConnectionError):
    """This process cannot join the pool, and retrying will not help; the message says what to do."""


def check(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """See to it that a Ray listens at an address, and that there is a token to show it.

    Args:
        address: ``host:port``.
        environment: in which Ray will look for the token.

    Raises:
        PoolUnavailableError: if it is no Ray that listens, or no token or no Ray is to be found here.
        ConnectionError: If nothing listens there, or nothing answers.
    """
    if find_spec("ray") is None:
        raise PoolUnavailableError(f"{address}: the address of a pool needs Ray, which is not installed; "
                           "run pip install 'lightning-core-learning[ray]'")  # fmt: skip
    if environment.get("RAY_AUTH_MODE", "token") == "token":
        token_place(address, environment)
    _look(address, encrypted=environment.get("RAY_USE_TLS", "0") == "1")


def token_place(address: str, environment: Mapping[str, str]) -> str:
    """Return where Ray finds the token that it shows, in words.

    Raises:
        PoolUnavailableError: if there is none.
    """
    if environment.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    told = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(told) if told else Path(environment.get("HOME") or "/") / TOKEN_FILE
    try:
        if path.read_text().strip():
            return str(path) if not told else f"{path} (RAY_AUTH_TOKEN_PATH)"
        words = f"{path} is empty"
    except FileNotFoundError:
        words = f"{path} does not exist" if told else "RAY_AUTH_TOKEN is not set"
    except (OSError, UnicodeDecodeError) as error:
        words = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    raise PoolUnavailableError(f"{address}: no token to show to the pool: {words}; {_what_to_do()}")


def ask(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Ask the Ray at an address whether it takes our token. Imports Ray.

    Raises:
        PoolUnavailableError: if it does not.
    """
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # private, as is all that asks once only

    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        place = token_place(address, environment)
        raise PoolUnavailableError(
            f"{address}: the pool there refuses the token in {place}: it is another pool's, or an old one; "
            + _what_to_do()
        ) from None


def _what_to_do() -> str:
    return (
        "`lightning-core up` printed the file of the token on the pool's machine: put its content into RAY_AUTH_TOKEN, "
        "or a copy's path into RAY_AUTH_TOKEN_PATH"
    )


def _look(address: str, encrypted: bool) -> None:
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 65536:
        raise PoolUnavailableError(f"{address}: a port must be 1 to 65535, got {port}")
    right = "is this the address that `lightning-core up` printed as its Ray's"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWERS) as line:
            if encrypted:  # it would want to see a certificate first
                return
            line.sendall(PREFACE)
            said = line.recv(9)
    except TimeoutError:
        raise ConnectionError(f"{address}: no answer within {ANSWERS:.0f} s; {right}, and can its machine be reached?"
                              ) from None  # fmt: skip
    except ConnectionResetError:
        said = b""
    except socket.gaierror:
        raise ConnectionError(f"{address}: there is no machine named {host}; {right}?") from None
    except OSError as error:
        words = "nothing listens there" if isinstance(error, ConnectionRefusedError) else error.strerror or str(error)
        raise ConnectionError(f"{address}: {words}; is the pool up, and {right}?") from None
    if said[3:4] != bytes((SETTINGS,)):
        raise PoolUnavailableError(f"{address}: what listens there is no Ray; {right}?")
