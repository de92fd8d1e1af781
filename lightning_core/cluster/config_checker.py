"""A process of a pool that has imported torch and Lightning, and checks the configs of submitted bundles.

Rules

1. Each request is answered by a fork: side effects of imports stay there, and the next request imports the modules
   again from disk.
2. The socket is in the temporary folder of the pool's head, which only its user can read. Requests and answers are one
   line of JSON each.
3. The process ends with the one that started it. A client without an answer checks the configs itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer

from typing_extensions import override

from lightning_core.bundle.config_check import ConfigProblem, ConfigsToCheck, check_configs
from lightning_core.node.unix_sockets import BACKLOG, connect
from lightning_core.server import json_limits

log = logging.getLogger(__name__)

# Name of the socket, beside that of the pool.
SOCKET_NAME = "checker"
# Seconds that a check may take, including the imports of the checker.
CHECK_TIMEOUT = 120.0
MAX_REQUEST_BYTES, MAX_VALUES = 16 * 2**20, 1_000_000
# Seconds within which a request must have arrived.
REQUEST_TIMEOUT = 2


class _ConfigCheck(StreamRequestHandler):
    """A check, in a process of its own."""

    @override
    def handle(self) -> None:
        signal.alarm(REQUEST_TIMEOUT)  # one that sends nothing must not keep others waiting
        request = json_limits.loads(self.rfile.readline(MAX_REQUEST_BYTES), MAX_VALUES)
        signal.alarm(int(CHECK_TIMEOUT))  # the import of a module may never end
        if (folder := Path(request.pop("cwd"))).is_dir():
            os.chdir(folder)
        found = check_configs(ConfigsToCheck(**request))
        self.wfile.write(json.dumps([asdict(problem) for problem in found]).encode() + b"\n")


class ConfigChecker(ForkingMixIn, UnixStreamServer):
    """Serves checks on a socket until its parent process ends.

    Args:
        path: Path of the socket, at most 107 characters; readable by its user only.
        parent: Id of the process that started this one.
    """

    max_children = 4
    request_queue_size = BACKLOG

    def __init__(self, path: Path, parent: int) -> None:
        self._parent = parent
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _ConfigCheck)
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
        path: Path of its socket.
    """
    command = [sys.executable, "-m", __name__, str(path), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def ask(path: Path, configs: ConfigsToCheck) -> list[ConfigProblem]:
    """Check configs in the process that listens at a socket, or here if none answers.

    Args:
        path: Path of the socket.
        configs: Configs to check.
    """
    request = json.dumps({**asdict(configs), "cwd": os.getcwd()}).encode() + b"\n"
    try:
        with connect(path, CHECK_TIMEOUT) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as answers:
                found = json.loads(answers.readline())
        return [ConfigProblem(one["job"], tuple(one["path"]), one["message"]) for one in found]
    except (OSError, ValueError) as error:  # it is on another machine, or an imported module ended it
        log.debug("%s: no checker answers: %s", path, error)
        return check_configs(configs)


def main() -> None:
    """Run the checker: it listens first, so that early requests wait, and then imports."""
    os.nice(5)  # workers have priority
    with ConfigChecker(Path(sys.argv[1]), int(sys.argv[2])) as checker:
        import lightning_core.bundle.lightning_config  # noqa: F401

        for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
            del os.environ[name]  # set for the shell that started the pool
        checker.serve_forever()


if __name__ == "__main__":
    main()
