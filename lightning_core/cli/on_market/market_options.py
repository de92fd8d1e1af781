"""Options of a bundle, or of a pool, on a spot market."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError, require
from lightning_core.bundle.settings_section import MARKET_FILES, market_to_dict, read_market
from lightning_core.cloud import parse_provision
from lightning_core.cloud.cloud_spec import SIMULATED, CloudSpec
from lightning_core.controllers.market_terms import DEFAULT_POLICIES, MarketTerms
from lightning_core.core.control import Asker
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.market.forecasters import make_live_forecaster
from lightning_core.market.spot_policies import SPOT_POLICIES
from lightning_core.market.traces import INTERVAL
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import SAVE_EVERY
from lightning_core.storage.private_files import NotOursError, owner_only, read_own

FILE, MAX_FILE_BYTES = "market.json", 2**20
PATHS = ("trace", "picture", "history", "feedback")
# Terms of a recorded market, which do not count where a command quotes it.
RECORDED = ("trace", "start")
# Fraction of an interval between two checkpoints of a job that does not say how often to save.
SAVE_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class MarketOptions:
    """Options of a run on a market.

    Args:
        trace: Recording of the market; None if a command quotes it.
        quotes: That command (:class:`~lightning_core.cloud.quotes.Quotes`).
        interval: Length of an interval, as a duration; None: as recorded, or 30 minutes.
        price: Price of a spot node, where none is recorded.
        policy: Spec of the spot policy of all jobs; None: the selector chooses one for each. Without a recording it
            does so if the bundle has a market, or ``history`` or ``feedback`` is given; else each has the first one.
        ray: Address of a Ray cluster; None to simulate the nodes on this machine.
        provision: What brings up nodes there (:func:`~lightning_core.cloud.parse_provision`).
        picture: File for a picture of the intervals, PNG, SVG or PDF.
        forecaster: Spec of the forecaster of policies with a window; None for that of the bundle, else the last value.
        start: Time of the recording at which the pool begins, as a duration: what lies before is the past, from which
            the selector learns.
        history: Recording of that past in a file of its own.
        feedback: What an earlier run has left for the selector: its ``feedback.json``, or its folder.
        minimum_charge: Time for which a node is billed at least, as a duration; None for that of the bundle, else 0.

    Raises:
        ValueError: If they do not go together.
    """

    trace: Path | None = None
    quotes: str | None = None
    interval: str | None = None
    price: float | None = None
    policy: str | None = None
    ray: str | None = None
    provision: str | None = None
    picture: Path | None = None
    forecaster: str | None = None
    start: str | None = None
    history: Path | None = None
    feedback: Path | None = None
    minimum_charge: str | None = None

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.quotes is None):
            raise ValueError("a market is either recorded (--market TRACE) or quoted (--quotes COMMAND)")
        if self.quotes is not None and self.price is not None:
            raise ValueError("--price is for a recording; the command of --quotes prints the price")
        if self.quotes is not None and self.start is not None:
            raise ValueError("--market-start is for a recording; the past of a quoted market is --market-history")
        self._check_specs()
        self._check_provision()
        self._check_picture()

    def _check_specs(self) -> None:
        if self.policy is not None:
            SPOT_POLICIES.make(self.policy)
        if self.forecaster is not None:
            make_live_forecaster(self.forecaster, INTERVAL)

    def _check_provision(self) -> None:
        if self.provision is None:
            return
        if not self.ray:
            raise ValueError("provision brings up nodes of a Ray cluster: it needs --ray ADDRESS")
        name, command = parse_provision(self.provision)
        if name == "command" and (not command or shutil.which(command[0]) is None):
            raise ValueError(f"provision: command not found: {command[0] if command else 'none'}")

    def _check_picture(self) -> None:
        if self.picture is None:
            return
        require("matplotlib", extra="view")
        if self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--picture: must end in .png, .svg or .pdf, got {self.picture}")
        if not self.picture.parent.is_dir():
            raise ValueError(f"--picture: {self.picture.parent} is not a folder")

    @classmethod
    def load(cls, run_dir: Path) -> MarketOptions | None:
        """Return the options of an earlier run; None if it was not on a market.

        Raises:
            BundleError: If its folder's file is damaged.
        """
        if not (run_dir / FILE).exists():
            return None
        try:
            body = json.loads(read_own(run_dir, FILE, MAX_FILE_BYTES))
            body |= {name: Path(body[name]) for name in PATHS if body.get(name) is not None}
            if body["picture"] is not None and not body["picture"].parent.is_dir():
                body["picture"] = run_dir / body["picture"].name
            return cls(**body)
        except NotOursError as error:
            raise BundleError([str(error)]) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            message = f"{run_dir / FILE}: is not the market of a run ({type(error).__name__}: {error})"
            raise BundleError([message]) from None

    def save(self, run_dir: Path) -> None:
        """Write the options into the run's folder, so that it can be resumed."""
        body = asdict(self)
        paths = {name: str(body[name].resolve()) for name in PATHS if body[name] is not None}
        with owner_only():  # a command may contain a key
            write_whole(run_dir / FILE, json.dumps(body | paths, indent=2) + "\n")

    def apply(self, bundle: BundleSpec) -> BundleSpec:
        """Return the same jobs on a pool with this market and twice as many devices as they can use.

        A job that does not say how often to save does so several times an interval: the safety net keeps time free for
        the work that a preemption loses.

        Raises:
            BundleError: If a job cannot be there, or the market cannot be read.
        """
        problems = [
            f"jobs.{spec.job.name}.location: must not be set on a market, whose nodes have none, got "
            f"{spec.job.location}"
            for spec in bundle.jobs
            if spec.job.location
        ]
        if (devices := sum(spec.job.max_devices for spec in bundle.jobs)) > MAX_DEVICES // 2:
            problems.append(f"jobs: may use at most {MAX_DEVICES // 2} devices together on a market, got {devices}")
        if bundle.kind == "gpu" and self.ray is None:
            problems.append("pool.kind: simulated nodes have no GPUs; name a Ray cluster that has with --ray")
        terms: dict[str, Any] | None = None
        try:
            terms = self.terms(bundle.settings.market)
        except ValueError as error:
            problems.append(f"--market: {error}" if self.trace else f"--interval: {error}")
        if problems:
            raise BundleError(problems)
        settings = replace(bundle.settings, market=terms, devices=2 * devices, resident=None, locations=())
        return replace(bundle, settings=settings).saved_every(self.save_every(settings))

    def rented(self, settings: Settings) -> Settings:
        """Return settings under which the pool itself decides how many nodes it holds.

        Args:
            settings: Settings with the market and the devices of such a pool.
        """
        terms = settings.market_terms()
        # Without terms there is no selector that draws a policy for each job.
        arguments = {
            "interval": self.seconds(terms), "policy": "" if terms else self.policy or DEFAULT_POLICIES[0],
            "kept_fraction": (terms or MarketTerms()).kept_fraction, "save_every": self.save_every(settings),
            "forecaster": terms.forecaster if terms else self.forecaster or MarketTerms().forecaster,
            "minimum_charge": terms.minimum_charge if terms else self._minimum_charge(),
        }  # fmt: skip
        return replace(settings, controllers={**settings.controllers, str(Asker.MARKET): arguments})

    def cloud(self, settings: Settings, kind: str, pool: str) -> CloudSpec:
        """Return the cloud of a pool.

        Args:
            settings: Its settings, with the market.
            kind: Kind of its devices.
            pool: Its name.
        """
        provision = SIMULATED if self.ray is None else self.provision or "autoscaler"
        terms = None if settings.market is None or self.quotes is not None else dict(settings.market)
        seconds = self.seconds(settings.market_terms())
        return CloudSpec(pool, "GPU" if kind == "gpu" else "device", provision, seconds, terms, self.quotes)

    def save_every(self, settings: Settings) -> float:
        """Return the seconds between two checkpoints of a job that does not say."""
        return min(SAVE_EVERY, SAVE_FRACTION * self.seconds(settings.market_terms()))

    def terms(self, base: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the terms of the market, these options over those of a bundle.

        They are None if a command quotes it and nothing says how a policy is chosen for each job.

        Args:
            base: Terms of the bundle.

        Raises:
            ValueError: If they do not fit, or the recording cannot be read.
        """
        files = {name: path and str(path.resolve()) for name in MARKET_FILES for path in [getattr(self, name)]}
        given = {**files, "interval": self.interval, "price": self.price, "start": self.start,
                 "policies": self.policy and [self.policy], "forecaster": self.forecaster,
                 "minimum_charge": self.minimum_charge}  # fmt: skip
        own = {key: value for key, value in given.items() if value is not None}
        if self.quotes is not None:
            for given_duration in filter(None, (self.interval, self.minimum_charge)):
                parse_duration(given_duration)
            base = {key: value for key, value in (base or {}).items() if key not in RECORDED}
            if not (base or self.history or self.feedback):
                return None
            own |= {"quoted": True}
        return read_market(market_to_dict(base or {}) | own, Path())

    def _minimum_charge(self) -> float:
        """Return the seconds for which a node of a quoted market is billed at least."""
        return parse_duration(self.minimum_charge) if self.minimum_charge else MarketTerms().minimum_charge

    def seconds(self, terms: MarketTerms | None) -> float:
        """Return the seconds of an interval."""
        if terms is not None:
            return terms.seconds
        return INTERVAL if self.interval is None else parse_duration(self.interval)
