"""A process of a pool that has torch and Lightning imported, and checks configs for those who submit.

Rules

1. Each request is answered by a fork: what a job's modules do while they are imported stays there, and the next request
   sees them as they are on the disk then.
2. The socket lies in the pool's folder for this run of it, which is its user's alone. Requests and answers are JSON, a
   line each.
3. The process ends with the one that started it. Whoever gets no answer checks by itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer

from typing_extensions import override

from lightning_core.bundle.config_check import ConfigProblem, ConfigsToCheck, check_configs

log = logging.getLogger(__name__)

# Beside the socket of the pool.
NAME = "checker"
# How long a check may take, and how long the checker may take to import what it needs, seconds.
PATIENCE = 120.0
LONGEST_LINE = 16 * 2**20


class _Request(StreamRequestHandler):
    """One check, in a process of its own."""

    @override
    def handle(self) -> None:
        signal.alarm(int(PATIENCE))  # a module may do anything while it is imported, and may never end
        asked = json.loads(self.rfile.readline(LONGEST_LINE))
        if (folder := Path(asked.pop("cwd"))).is_dir():
            os.chdir(folder)
        found = check_configs(ConfigsToCheck(**asked))
        self.wfile.write(json.dumps([asdict(problem) for problem in found]).encode() + b"\n")


class ConfigChecker(ForkingMixIn, UnixStreamServer):
    """Serves checks on a socket until its parent is gone.

    Args:
        path: of the socket, at most 107 characters; made with permissions for its user alone.
        parent: id of the process that started this one.
    """

    max_children = 4

    def __init__(self, path: Path, parent: int) -> None:
        self._parent = parent
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Request)
        finally:
            os.umask(before)

    @override
    def service_actions(self) -> None:
        super().service_actions()
        if os.getppid() != self._parent:
            raise SystemExit(0)


def start(path: Path) -> subprocess.Popen[bytes]:
    """Start a checker as a child of this process.

    Args:
        path: of its socket.
    """
    command = [sys.executable, "-m", __name__, str(path), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def ask(path: Path, asked: ConfigsToCheck) -> list[ConfigProblem]:
    """Check configs in the process that listens at a socket, or here if none answers.

    Args:
        path: of the socket.
        asked: the configs.
    """
    request = json.dumps({**asdict(asked), "cwd": os.getcwd()}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            connection.sendall(request)
            with connection.makefile("rb") as answers:
                found = json.loads(answers.readline())
        return [ConfigProblem(one["job"], tuple(one["path"]), one["message"]) for one in found]
    except (OSError, ValueError) as error:  # of another machine, say, or it ended with what it imported
        log.debug("%s: no checker answers: %s", path, error)
        return check_configs(asked)


def main() -> None:
    """The process: listens first, so that whoever asks meanwhile waits, and then imports."""
    os.nice(5)  # the workers come first, but whoever submits waits too
    with ConfigChecker(Path(sys.argv[1]), int(sys.argv[2])) as checker:
        import lightning_core.bundle.lightning_config  # noqa: F401

        for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
            del os.environ[name]  # meant for the shell that started the pool
        checker.serve_forever()


if __name__ == "__main__":
    main()
