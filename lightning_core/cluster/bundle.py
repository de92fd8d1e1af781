"""Bundles that can be run on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.pool_section import Kind
from lightning_core.bundle.preflight import check_disk
from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.python_form import Training, folder_of_script
from lightning_core.core.supplies import Supply
from lightning_core.run.follow import Watcher
from lightning_core.run.run_folder import RUNS, new_run_dir
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster


class Bundle(BundleSpec):
    """Jobs submitted together, which share a pool and can be run on a cluster.

    Args:
        jobs: Jobs in the order of submission.
        settings: Policy, estimator, devices and constants of the scheduler.
        kind: Kind of the pool's devices.
        folder: Folder in which class paths are looked up, besides the current one; by default that of the script that
            runs.
        on_verdict: What to run when a verdict changes, as in a bundle file.
        allow_import: Names that class paths may import; None for all but the standard library and the like.
        supply: Where the nodes of its pool come from; None for devices that stay.

    Raises:
        BundleError: With every problem of the first job that has any, or if there is no job, or two have one name.

    Example::

        from functools import partial
        from lightning_core import Bundle, Training
        from mine import Digits, Vit

        vit = Training("vit", "1h30m", "loss<=0.35", model=partial(Vit, lr=0.001), data=Digits)
        summary = Bundle([vit]).run()
    """

    def __init__(
        self,
        jobs: Iterable[JobSpec | Training],
        settings: Settings | None = None,
        kind: Kind = "cpu",
        folder: Path | str | None = None,
        on_verdict: Mapping[str, Any] | None = None,
        allow_import: tuple[str, ...] | None = None,
        supply: Supply | None = None,
    ) -> None:
        settings = Settings() if settings is None else settings
        folder = folder_of_script() if folder is None else Path(folder)
        specs = (job if isinstance(job, JobSpec) else job.read(settings, folder, allow_import) for job in jobs)
        super().__init__(tuple(specs), settings, kind, folder, on_verdict or {}, allow_import, supply)

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
                the bundle says where nodes come from.
            watcher: Object that is shown the jobs while they run.

        Returns:
            The result of each job, which is also written to ``summary.json`` in the folder.

        Raises:
            BundleError: If a config is wrong, the folder is on a network disk, or nothing brings the nodes that the
                bundle is for; nothing has started then.
        """
        remedy = "name a folder on a local disk as run_dir"
        check_disk(Path(RUNS if run_dir is None else run_dir), remedy, shared=cluster is not None)
        bundle = self if policy is None else self.with_policy(policy)
        if cluster is None or cluster.comes_and_goes:
            bundle = bundle.supplied()
        _check_nodes(bundle, cluster)
        bundle.check(local=cluster is None)

        from lightning_core.cluster.cluster import Cluster  # Ray takes seconds to import

        folder = new_run_dir(run_dir)
        if cluster is not None:
            return cluster.run(bundle, folder, watcher)
        with Cluster.of(bundle) as own:
            return own.run(bundle, folder, watcher)


def _check_nodes(bundle: BundleSpec, cluster: Cluster | None) -> None:
    """Refuse a bundle whose nodes come and go where nothing would bring them."""
    name = bundle.settings.supply
    if bundle.supply is None and name is not None:
        raise BundleError([
            f"pool.controllers.{name}: would decide about nodes that nothing brings: give the bundle a supply, as its "
            f"section {name!r} does in a file"
        ])  # fmt: skip
    if bundle.supply is not None and cluster is not None and not cluster.comes_and_goes:
        raise BundleError([
            "cluster: its devices stay, and the bundle says where nodes come from: leave the cluster out, or make it "
            "with Cluster.of(bundle.supplied())"
        ])  # fmt: skip
