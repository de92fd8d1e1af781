"""Bundles that can be run on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.run.follow import Watcher
from lightning_core.run.run_folder import new_run_dir
from lightning_core.scheduler.summary import Summary

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster


class Bundle(BundleSpec):
    """Jobs submitted together, which share a pool and can be run on a cluster."""

    def run(
        self,
        policy: str | None = None,
        run_dir: Path | str | None = None,
        *,
        cluster: Cluster | None = None,
        watcher: Watcher | None = None,
    ) -> Summary:
        """Run all jobs to their ends.

        Args:
            policy: Policy to use in place of the bundle's, as in :meth:`with_policy`.
            run_dir: New folder for the journal, the spec, the summary, logs and checkpoints; None for one in ``runs``.
            cluster: Cluster to run on; None to start a local Ray for this run, whose nodes come and go, simulated, if
                the bundle has a market.
            watcher: Object that is shown the jobs while they run.

        Returns:
            The result of each job, which is also written to ``summary.json`` in the folder.

        Raises:
            BundleError: If a config is wrong; nothing has started then.
        """
        bundle = self if policy is None else self.with_policy(policy)
        bundle = bundle if cluster is not None else bundle.on_market()
        bundle.check(local=cluster is None)

        from lightning_core.cluster.cluster import Cluster  # Ray takes seconds to import

        folder = new_run_dir(run_dir)
        if cluster is not None:
            return cluster.run(bundle, folder, watcher)
        with Cluster.of(bundle) as own:
            return own.run(bundle, folder, watcher)
