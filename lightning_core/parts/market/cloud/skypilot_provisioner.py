"""SkyPilot as a provisioner: it rents nodes of any cloud that it knows, of Kubernetes, of Slurm or of SSH pools."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from lightning_core.parts.market.cloud.provisioner import LEAVE_SECONDS, by_place, drain_node, joined_marks
from lightning_core.parts.market.cloud.skypilot_clusters import Clusters, SkyPilotClusters, error_words
from lightning_core.parts.market.cloud.skypilot_nodes import SkyNodes
from lightning_core.parts.market.cloud.skypilot_task import Joining, read_task
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.regular_files import read_text
from lightning_core.server.probe import MAX_TOKEN_BYTES, TOKEN_FILE

log = logging.getLogger(__name__)

# Seconds between two looks at the clusters, and seconds that ending all of them may take.
LOOK_SECONDS, CLOSE_SECONDS = 5.0, 240.0
SPACE, PREFIX = b"lightning_core", b"skypilot/"


class SkyPilotProvisioner:
    """Brings up nodes through SkyPilot's Python API; each is a cluster of one machine, whose task joins the pool's Ray.

    The names of the clusters begin with a mark that the pool's Ray keeps, so that a new provisioner finds those of an
    earlier one. A machine ends itself within minutes once Ray on it has ended, because the pool's head is gone, say
    (SkyPilot's autodown). Before that, a node is drained.

    Args:
        words: Words after its name: the file of a SkyPilot task.
        pool: Name of the pool.
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
        leave: Seconds that a job has to leave a node which is given back.
        clusters: SkyPilot; None for that of the file, whose nodes join the Ray that this process has joined.
        prefix: Prefix of the names of the clusters; None for the one that this Ray keeps.
        warn: Gives a node, by its mark, notice of this many seconds.
        joined: Returns the marks of the nodes that are in the pool's Ray.

    Raises:
        ValueError: If the file is wrong, or SkyPilot is not installed.
    """

    close_seconds = CLOSE_SECONDS

    def __init__(
        self,
        words: Sequence[str],
        pool: str = "pool",
        resource: str = "GPU",
        leave: float = LEAVE_SECONDS,
        *,
        clusters: Clusters | None = None,
        prefix: str | None = None,
        warn: Callable[[str, float], object] = drain_node,
        joined: Callable[[], Collection[str]] = joined_marks,
    ) -> None:
        if clusters is None:
            clusters = SkyPilotClusters(read_task(words), joining_of(pool, resource))
        self._warn, self._joined = warn, joined
        self._away = ""
        self._changed, self._closed = threading.Event(), threading.Event()
        self._nodes = SkyNodes(prefix or pool_prefix(pool), clusters, leave, self._give_notice, self._changed.set)
        self._thread = threading.Thread(target=self._run, name="lightning-core-skypilot", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """What is wrong; empty if nothing is."""
        return self._away or self._nodes.trouble

    def present(self) -> NodeCounts:
        """Return the nodes that SkyPilot has launched and that are to stay."""
        return self._nodes.present()

    def remaining(self) -> list[str]:
        """Return the names of clusters that may be there and be paid for."""
        return self._nodes.remaining()

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        self._nodes.want(by_place(wanted, places))
        self._changed.set()

    def close(self) -> None:
        """Give all nodes back; those that SkyPilot does not confirm to be gone are named in an error of the log."""
        self._nodes.leave = 0.0
        self._nodes.want({})
        self._closed.set()
        self._changed.set()
        self._thread.join(CLOSE_SECONDS)
        if names := self.remaining():
            log.error("SkyPilot has not ended all nodes, which may be paid for: sky down %s", " ".join(names))
        elif not self._nodes.has_looked:
            log.error("SkyPilot does not say whether nodes are left, which may be paid for: see sky status")

    def _run(self) -> None:
        until = None
        while until is None or time.monotonic() < until:
            if self._closed.is_set() and until is None:
                until = time.monotonic() + CLOSE_SECONDS
            self._changed.clear()
            self._step()
            if self._closed.is_set() and self._nodes.has_looked and not self._nodes.remaining():
                return
            self._changed.wait(LOOK_SECONDS)

    def _step(self) -> None:
        try:
            self._nodes.step(self._marks(), time.monotonic())
            self._away = ""
        except Exception as error:  # SkyPilot raises many kinds; the next look may succeed
            self._away = error_words(error)
            log.warning("%s", self._away)

    def _marks(self) -> Collection[str] | None:
        try:
            return self._joined()
        except Exception as error:  # Ray's head may be restarting
            log.warning("the nodes of the pool cannot be looked up: %s", " ".join(str(error).split()))
            return None

    def _give_notice(self, name: str, seconds: float) -> None:
        def warn() -> None:
            try:
                self._warn(name, seconds)
            except Exception as error:  # it ends all the same
                log.warning("%s ends without notice: %s", name, " ".join(str(error).split()))

        # The cluster may not answer for long, which must delay nothing here.
        threading.Thread(target=warn, daemon=True).start()


def pool_prefix(pool: str) -> str:
    """Return the prefix of the names of a pool's clusters, which the Ray that this process has joined keeps."""
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    key = PREFIX + pool.encode()
    _internal_kv_put(key, secrets.token_hex(4).encode(), overwrite=False, namespace=SPACE)
    mark: bytes = _internal_kv_get(key, namespace=SPACE)
    return f"lc-{mark.decode()}-"


def joining_of(pool: str, resource: str) -> Joining:
    """Return how a machine joins the Ray that this process has joined.

    Args:
        pool: Name of the pool.
        resource: Resource of a device.
    """
    import ray

    from lightning_core.cluster.ray_cluster import has_token

    address = ray.get_runtime_context().gcs_address
    return Joining(address, ray_token(os.environ) if has_token() else "", pool, resource)


def ray_token(environment: Mapping[str, str]) -> str:
    """Return the token of Ray, from where Ray itself takes it.

    Raises:
        OSError: If its file cannot be read.
    """
    if token := environment.get("RAY_AUTH_TOKEN"):
        return token
    path = environment.get("RAY_AUTH_TOKEN_PATH")
    return read_text(Path(path) if path else Path.home() / TOKEN_FILE, MAX_TOKEN_BYTES).strip()
