"""A webhook: a notification is posted, signed, and posted again with growing pauses if it does not arrive.

Headers and signature are those of Standard Webhooks (https://www.standardwebhooks.com), whose libraries verify them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import random
import stat
import time
import uuid
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lightning_core.regular_files import read_regular

# Seconds after which a request is abandoned.
TIMEOUT = 10.0
# Times that a notification is posted, and the seconds before the second one: doubled each time, and drawn between half
# and one and a half of that, so that many pools do not come back at once.
MAX_POSTS, FIRST_PAUSE = 5, 1.0
# Answers that may be others a moment later, beside those above 499.
MAY_CHANGE = {408, 425, 429}
# Bytes of a secret: a shorter one can be guessed.
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 4096
# Prefix of a secret whose rest is base64.
PREFIX = b"whsec_"


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without white space around it; that after ``whsec_`` is base64.

    Raises:
        ValueError: If it is too short or no base64, or others than its user can read the file.
        OSError: If the file cannot be read.
    """
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"must be readable by its user alone (chmod 600), got {path}")
    text = read_regular(path, MAX_SECRET_BYTES).strip()
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else text
    except binascii.Error:
        raise ValueError(f"the secret after whsec_ must be base64, in {path}") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"must hold a secret of at least {MIN_SECRET_BYTES} bytes, got {len(secret)} in {path}")
    return secret


def sign(secret: bytes, number: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request.

    Args:
        secret: The secret.
        number: Id of the notification.
        timestamp: Time of the request, in seconds since the epoch.
        body: Body of the request.

    Example::

        >>> sign(b"0123456789abcdef", "1", "1700000000", b"{}")
        'v1,GYmbZ9luoz0F/ySLEWQh0ohhHAzK15PYs/Np8L+7Yyk='
    """
    signed = b".".join((number.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


class Webhook:
    """Posts notifications to an address.

    Args:
        address: Address of http or https.
        secret_file: File of the secret that signs them, read for each request; None for no signature.
    """

    def __init__(self, address: str, secret_file: Path | None = None) -> None:
        self._address = address
        self._host = urlsplit(address).hostname  # the rest of an address may be a secret
        self._secret_file = secret_file
        self._opener = build_opener(_SameHost())

    def post(self, body: Mapping[str, str]) -> None:
        """Post a notification until it has arrived; an id in its headers tells repetitions.

        Raises:
            OSError, HTTPException, ValueError: If it did not arrive.
        """
        secret = None if self._secret_file is None else read_secret(self._secret_file)
        text, number, pause = json.dumps(body).encode(), f"msg_{uuid.uuid4().hex}", FIRST_PAUSE
        for left in reversed(range(MAX_POSTS)):
            try:
                return self._post_once(text, number, secret)
            except HTTPError as error:
                error.close()
                if not left or not (error.code >= 500 or error.code in MAY_CHANGE):
                    raise OSError(f"the webhook at {self._host} answers {error.code} {error.reason}") from None
            except (OSError, HTTPException) as error:
                if not left:
                    words = f"does not answer: {getattr(error, 'reason', error) or type(error).__name__}"
                    raise OSError(f"the webhook at {self._host} {words}") from None
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2

    def _post_once(self, text: bytes, number: str, secret: bytes | None) -> None:
        timestamp = str(int(time.time()))  # receivers refuse old requests
        headers = {"Content-Type": "application/json", "webhook-id": number, "webhook-timestamp": timestamp}
        if secret is not None:
            headers["webhook-signature"] = sign(secret, number, timestamp, text)
        with self._opener.open(Request(self._address, text, headers, method="POST"), timeout=TIMEOUT):
            pass


class _SameHost(HTTPRedirectHandler):
    """Follows redirects on the same host only, with the same body: no other host may receive it."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise HTTPError(req.full_url, code, "which leads to another host and is not followed", headers, fp)
        return Request(newurl, req.data, req.headers, method="POST")
