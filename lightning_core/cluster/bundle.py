"""A bundle that can be run."""

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
    """Jobs submitted together, which share a pool, and can be run on one."""

    def run(
        self,
        policy: str | None = None,
        run_dir: Path | str | None = None,
        *,
        cluster: Cluster | None = None,
        watcher: Watcher | None = None,
    ) -> Summary:
        """Runs all jobs to their ends.

        Args:
            policy: instead of the bundle's, as in :meth:`with_policy`.
            run_dir: folder for the journal, the spec, the summary and what the jobs save; made anew.
            cluster: warm workers to use; None brings up a local Ray for this run.
            watcher: is shown the jobs while they run.

        Returns:
            What became of each job; also written to ``run_dir/summary.json``.

        Raises:
            BundleError: if a config is wrong, before anything has started.
        """
        bundle = self if policy is None else self.with_policy(policy)
        bundle.check(local=cluster is None)

        from lightning_core.cluster.cluster import Cluster  # Ray takes seconds to import

        folder = new_run_dir(run_dir)
        if cluster is not None:
            return cluster.run(bundle, folder, watcher)
        with Cluster.of(bundle) as own:
            return own.run(bundle, folder, watcher)
