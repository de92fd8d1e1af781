"""Runs a command of the user's so that it cannot hang or fill the memory of the process that runs it.

The command gets a process group of its own, for two reasons: Ctrl-C is meant for the run, and if the command takes too
long or prints too much, all its children in that group end with it. Children may keep its output open, so the end of
the output is not awaited.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lightning_core.errors import LightningCoreError

# Bytes of the end of its standard error that are kept, for the reason of a failure.
MAX_ERROR_BYTES = 4096
_CHUNK = 2**16


class UserCommandError(LightningCoreError, ValueError):
    """A command failed; the message names the problem, without its arguments, which may hold a key."""


def run_command(
    words: Sequence[str],
    timeout: float,
    *,
    max_output: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output.

    Args:
        words: The command and its arguments; no shell is involved.
        timeout: Seconds that it may take.
        max_output: Maximum bytes of its output, after which all its children end too; None if its output is not read
            and its children may survive.
        environment: Variables to add to the environment.

    Raises:
        UserCommandError: If it cannot be run, fails, takes too long, or prints too much or no UTF-8 text.
    """
    read, name = max_output is not None, words[0]
    pipe = subprocess.PIPE if read else None
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True,
            env=os.environ | dict(environment or {}),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise UserCommandError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    ended = False
    try:
        output, errors = _follow(process, timeout, max_output or 0)
        ended = True
        if process.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise UserCommandError(f"{name}: exit code {process.returncode}{last and ': ' + last}")
        return output.decode()
    except TimeoutError:
        raise UserCommandError(f"{name}: no answer within {timeout:g} s") from None
    except OverflowError:
        raise UserCommandError(f"{name}: printed more than {max_output:,} bytes") from None
    except UnicodeDecodeError as error:
        raise UserCommandError(f"{name}: printed no UTF-8 text (byte {error.start})") from None
    finally:
        if read or not ended:
            with suppress(ProcessLookupError):  # it has started nothing that lives
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _follow(process: subprocess.Popen[bytes], timeout: float, max_output: int) -> tuple[bytes, bytes]:
    """Read the output of a process until it ends, and return it with the end of its errors."""
    until, output, errors = time.monotonic() + timeout, bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, into in ((process.stdout, output), (process.stderr, errors)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, into)
        exit_watch = os.pidfd_open(process.pid)
        try:
            selector.register(exit_watch, selectors.EVENT_READ)
            while True:
                has_exited = process.poll() is not None  # checked first: earlier output is read below
                left = 0.0 if has_exited else until - time.monotonic()
                if left < 0:
                    raise TimeoutError
                read = [key for key, _ in selector.select(left) if key.data is not None]
                for key in read:
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    key.data.extend(chunk)
                del errors[:-MAX_ERROR_BYTES]
                if len(output) > max_output:
                    raise OverflowError
                if has_exited and (not read or time.monotonic() > until):
                    return bytes(output), bytes(errors)
        finally:
            os.close(exit_watch)
