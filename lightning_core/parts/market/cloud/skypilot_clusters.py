"""SkyPilot's clusters as the provisioner sees them: the few calls of its Python API, each bounded in time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

from lightning_core.errors import LightningCoreError
from lightning_core.parts.market.cloud.skypilot_task import Joining, joined_task, overrides

T = TypeVar("T")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
INSTALL = "SkyPilot is not installed: run pip install -c constraints.txt '.[skypilot]' in the clone"
# Seconds that a call of SkyPilot may take; only a launch may upload files.
CALL_SECONDS, LAUNCH_SECONDS = 120.0, 900.0
# Minutes without a job after which a machine ends itself. SkyPilot takes none to be one.
IDLE_MINUTES = 1


class SkyPilotError(LightningCoreError, RuntimeError):
    """SkyPilot did not do what it was asked for; the message says why."""


class Sighting(NamedTuple):
    """What SkyPilot's API server says of a cluster.

    Args:
        status: ``"UP"``, ``"INIT"`` or ``"STOPPED"``; empty if it has no such cluster.
        launches: Ids of the requests to launch it that are not over.
        ending: Whether a request to end it is not over.
    """

    status: str = ""
    launches: tuple[str, ...] = ()
    ending: bool = False


class Clusters(Protocol):
    """Clusters of one node each, by their names."""

    def look(self, prefix: str, doubtful: Collection[str] = ()) -> dict[str, Sighting]:
        """Return all clusters whose names begin with a prefix, those whose launch is only requested too.

        Args:
            prefix: Prefix of their names.
            doubtful: Names of those whose cloud is asked first whether they are there.
        """

    def launch(self, name: str, kind: str, zone: str, its_type: str) -> Future[str]:
        """Request a cluster; returns at once. The result is the id of the request.

        Args:
            name: Its name, and that of its node.
            kind: Its market type.
            zone: Its zone; empty for any.
            its_type: Its instance type; empty for any.
        """

    def cancel(self, requests: Sequence[str]) -> None:
        """Cancel requests."""

    def down(self, name: str) -> str:
        """Request that a cluster end; return the id of the request."""

    def reason(self, request: str) -> str:
        """Return why a request that is over has failed; empty if it succeeded."""


class SkyPilotClusters:
    """The clusters of an API server of SkyPilot: the one that its client is logged in to, else a local one.

    Args:
        task: The user's task of a node (:func:`~lightning_core.parts.market.cloud.skypilot_task.read_task`).
        joining: How a node joins the pool's Ray.

    Raises:
        ValueError: If SkyPilot is not installed.
    """

    def __init__(self, task: Mapping[str, Any], joining: Joining) -> None:
        self._sky, self._task, self._joining = load_sky(), task, joining

    def look(self, prefix: str, doubtful: Collection[str] = ()) -> dict[str, Sighting]:
        return within(CALL_SECONDS, lambda: self._look(prefix, doubtful))

    def _look(self, prefix: str, doubtful: Collection[str]) -> dict[str, Sighting]:
        sky = self._sky
        # First the requests: a launch that ends between the two calls has a cluster by the second.
        requests = [one for one in sky.api_status() if (one.cluster_name or "").startswith(prefix)]
        if doubtful:
            sky.get(sky.status(sorted(doubtful), refresh=sky.StatusRefreshMode.FORCE))
        listed = {one["name"]: one["status"].value for one in sky.get(sky.status())}
        launches: dict[str, list[str]] = {}
        for one in requests:
            if one.name.endswith("launch"):
                launches.setdefault(one.cluster_name, []).append(one.request_id)
        ending = {one.cluster_name for one in requests if one.name.endswith("down")}
        names = {name for name in listed if name.startswith(prefix)} | launches.keys() | ending
        return {
            name: Sighting(listed.get(name, ""), tuple(launches.get(name, ())), name in ending)
            for name in sorted(names)
        }  # fmt: skip

    def launch(self, name: str, kind: str, zone: str, its_type: str) -> Future[str]:
        return in_thread(lambda: self._launch(name, kind, zone, its_type))

    def _launch(self, name: str, kind: str, zone: str, its_type: str) -> str:
        from sky.skylet.autostop_lib import AutostopWaitFor

        made = joined_task(self._task, self._joining, name, kind, zone, its_type)
        task = self._sky.Task.from_yaml_config(made)
        task.set_resources_override(overrides(kind, zone, its_type))
        return str(
            self._sky.launch(
                task, cluster_name=name, idle_minutes_to_autostop=IDLE_MINUTES, wait_for=AutostopWaitFor.JOBS, down=True
            )
        )

    def cancel(self, requests: Sequence[str]) -> None:
        within(CALL_SECONDS, lambda: self._sky.get(self._sky.api_cancel(list(requests), silent=True)))

    def down(self, name: str) -> str:
        return str(within(CALL_SECONDS, lambda: self._sky.down(name)))

    def reason(self, request: str) -> str:
        try:
            within(CALL_SECONDS, lambda: self._sky.get(request))
        except Exception as error:  # SkyPilot raises here what its server raised
            return error_words(error)
        return ""


def check_skypilot(task: Mapping[str, Any]) -> None:
    """Have SkyPilot check the task of a node, before anything starts; this starts its local API server if it uses one.

    Args:
        task: The user's task of a node.

    Raises:
        ValueError: If SkyPilot is not installed, does not answer, or refuses the task.
    """
    sky = load_sky()
    joining = Joining("127.0.0.1:6379", "", "pool", "device")

    def check() -> None:
        from sky.client.sdk import validate

        made = sky.Task.from_yaml_config(joined_task(task, joining, "lc-check", "on-demand", "", ""))
        made.set_resources_override(overrides("on-demand", "", ""))
        for one in made.resources:
            number = sum((one.accelerators or {}).values())
            if number not in (0, 1):
                raise ValueError(f"a node has one device, so accelerators must be one, got {one.accelerators}")
        with sky.Dag() as dag:
            dag.add(made)
        validate(dag)

    try:
        within(CALL_SECONDS, check)
    except Exception as error:  # its own errors have no common root
        raise ValueError(f"provision: {error_words(error)}") from None


def load_sky() -> Any:
    """Return SkyPilot's package.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        import sky
    except ImportError:
        raise ValueError(f"provision: {INSTALL}") from None
    return sky


def error_words(error: BaseException) -> str:
    r"""Return an error of SkyPilot's on one line, without its colours.

    Example::

        >>> error_words(RuntimeError("\x1b[31mFailed\x1b[0m:\n no capacity")), error_words(TimeoutError())
        ('SkyPilot: Failed: no capacity', 'SkyPilot: TimeoutError')
    """
    words = " ".join(_COLOUR.sub("", str(error)).split())
    return f"SkyPilot: {words or type(error).__name__}"


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Start a call in a thread of its own, which ends with the process."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # its caller is told, whatever it is
            made.set_exception(error)

    threading.Thread(target=run, name="lightning-core-skypilot", daemon=True).start()
    return made


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns; one that takes too long is abandoned.

    Raises:
        SkyPilotError: If it takes too long.
    """
    try:
        return in_thread(call).result(seconds)
    except TimeoutError:
        raise SkyPilotError(f"no answer within {seconds:g} s") from None
