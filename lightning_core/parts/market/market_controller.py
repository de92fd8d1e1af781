"""The market of a pool: how many spot and on-demand nodes it holds, interval by interval.

At the beginning of an interval each job's spot policy decides, from its real progress, how many spot and on-demand
nodes the job should hold, and the pool requests their total. The job is asked to train on that many devices, and trains
on fewer until the nodes come. A policy may also decide on events: losses of nodes within an interval, or changed
offers. Published policies do not; for them the safety net decides, without a forecast, whether an on-demand node must
replace a lost one at once.

Each of several jobs has a plan of its own. The pool requests the total of all plans; its policy decides which job
trains where, and which one waits if nodes are missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_core.controllers import PublishedLevel
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.control import Ask, Asker, Note, Rights
from lightning_core.core.events import EarlierRuns, Report, Submit, Tick
from lightning_core.core.limits import MAX_FACTOR, check_at_most, check_seconds, shown
from lightning_core.core.parts import message_body
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import StateError
from lightning_core.core.specs import Family, parse_spec
from lightning_core.core.validation import made
from lightning_core.parts.market.cloud_events import (
    NOTHING_WANTED,
    CloudPart,
    CloudTrouble,
    EarlierFeedback,
    IntervalEnded,
    MarketAnswer,
    NodesSeen,
    NodesWanted,
    Quoted,
    QuotedAhead,
    QuotedBefore,
    SelectorFeedback,
)
from lightning_core.parts.market.forecasters import check_live, is_reproducible
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.parts.market.online.current_interval import CurrentInterval, Rest, Toll
from lightning_core.parts.market.online.node_bill import NodeBill
from lightning_core.parts.market.online.quote_history import QuoteHistory
from lightning_core.parts.market.planned_jobs import AHEAD, PlannedJobs, Plans
from lightning_core.parts.market.spot_choice import SpotChoice
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.zones.node_places import Leeway, NodePlaces, dearest, mean_prices

Answers = list[Ask | Note | MarketAnswer]

# Minimum number of checks of nodes and jobs in an interval; each event that can change the request causes one more.
LOOKS = 40
# Elapsed fraction of an interval up to which plans decide for it as for a whole one.
WHOLE = 0.05
# Seconds for which nodes stay, in a pool that closes, for jobs that still save.
LEAVE_SECONDS = 60.0
# Relative change of a price at which plans that decide on events do so.
PRICE_MOVE = 0.1
MARKET = Asker("market")
# Seconds by which nodes may be returned before the last moment.
MONEY_TOLERANCE = 1e-6
MIN_INTERVAL = 0.01


class MarketController:
    """Wants nodes as the jobs' spot policies plan, and asks each job to train on as many devices.

    The pool should have twice as many devices as the jobs can use, so that new nodes are warm before old ones go. It
    decides once it has a quote, and knows the market from quotes alone. Where the forecaster knows the future, it waits
    for the recording that the market replays.

    Args:
        interval: Seconds of an interval; the pool's first is the market's first.
        policy: Spec of a policy in :data:`~lightning_core.parts.market.spot_policies.SPOT_POLICIES`, of all jobs; empty
            for the one that is drawn for each.
        kept_fraction: Fraction of an interval that remains for training when nodes change in it, until the time of a
            job's move to other nodes is measured. Where a job had no node, the measured time from the request to its
            first batch counts.
        save_every: Seconds of training between two checkpoints of a job that does not say.
        initial_throughput: Batches per second on one device until they have been measured; None: each job begins on as
            few on-demand nodes as it can train on.
        forecaster: Spec of the forecaster that policies with a window look ahead by. One that knows the future needs
            ``terms`` that name one too.
        minimum_charge: Seconds for which a node is billed at least, beyond that by the second. Plans count at most an
            interval of it.
        leave: Seconds for which a node that is given back is still billed, at most: a budget keeps money for them.
        terms: Arguments of :class:`~lightning_core.parts.market.market_terms.MarketTerms`, by which each job gets a
            spot policy; None if no policy is drawn.
        budget: Money that may be spent, over all jobs and all time, in the unit of the prices; None for any. An
            interval is paid for before it begins, so that the last one costs no more than what is left.

    Raises:
        ValueError: If a value is out of its range.
    """

    rights = Rights("the spot policy", sizes=True, rank=100, is_pure=True)

    def __init__(
        self,
        interval: float = 1800.0,
        policy: str = "",
        kept_fraction: float = 0.9,
        save_every: float = 300.0,
        initial_throughput: float | None = None,
        forecaster: str = "last",
        minimum_charge: float = 0.0,
        leave: float = 10.0,
        terms: Mapping[str, Any] | None = None,
        budget: float | None = None,
    ) -> None:
        check_seconds("interval", interval, MIN_INTERVAL)
        check_seconds("minimum_charge", minimum_charge)
        check_seconds("leave", leave)
        check_seconds("save_every", save_every)
        if policy:
            SPOT_POLICIES.make(policy)
        if not 0 < kept_fraction <= 1:
            raise ValueError(f"kept_fraction must be above 0 and at most 1, got {kept_fraction}")
        if initial_throughput is not None and not 0 < initial_throughput < math.inf:
            raise ValueError(f"initial_throughput must be positive and finite, got {initial_throughput}")
        if budget is not None:
            check_budget(budget)
        if any(SPOT_POLICIES.package(name) for _, name in self.named_parts({"policy": policy, "terms": terms})):
            self.rights = self.rights._replace(is_pure=False)  # what another package decides is recorded
        if not is_reproducible(forecaster):
            self.rights = self.rights._replace(is_pure=False)
        self.seconds, self._budget = interval, budget
        self.terms = None if terms is None else MarketTerms(**terms)
        check_live(forecaster, recorded=self.terms is not None and self.terms.knows_future)
        self.choice = None if self.terms is None else SpotChoice(self.terms)
        self.nodes, self.spent = NodesSeen(), 0.0
        self._trouble: dict[CloudPart, str] = {}
        self._plans = PlannedJobs(
            interval,
            policy,
            forecaster,
            kept_fraction,
            save_every,
            initial_throughput,
            minimum_charge,
            {} if self.choice is None else self.choice.drawn,
            self.terms,
        )
        self._quotes = QuoteHistory(interval, AHEAD)
        self._places = NodePlaces()
        self._bill, self._leave = NodeBill(interval, minimum_charge), leave
        self._interval: CurrentInterval | None = None
        self.wanted = NOTHING_WANTED
        self._closing_since: float | None = None
        self._wakeup: float | None = None

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        interval = None if self._interval is None else self._interval.state()
        return {
            "plans": self._plans.state(), **self._quotes.state(), "interval": interval,
            "wanted": message_body(self.wanted), "closing_since": self._closing_since, "wakeup": self._wakeup,
            "places": self._places.state(), "bill": self._bill.state(), "nodes": message_body(self.nodes),
            "spent": self.spent, "trouble": {str(part): words for part, words in self._trouble.items()},
            "choice": None if self.choice is None else self.choice.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        try:
            self._plans.restore(state["plans"])
            self._quotes.restore(state)
            interval = state["interval"]
            self._interval = None if interval is None else CurrentInterval.of(interval)
            self.wanted, self.nodes = made(NodesWanted, dict(state["wanted"])), made(NodesSeen, dict(state["nodes"]))
            self.spent = float(state["spent"])
            self._trouble = {CloudPart(part): str(words) for part, words in state["trouble"].items()}
            if self.choice is not None:
                self.choice.restore(state["choice"])
            self._places.restore(state["places"])
            self._bill.restore(state["bill"])
            self._closing_since, self._wakeup = state["closing_since"], state["wakeup"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"not the state of a market: {type(error).__name__}: {error}") from None

    @property
    def jobs(self) -> list[SpotJob]:
        """The jobs as the market sees them, at the throughput measured last."""
        return self._plans.jobs

    def knows(self, known: QuotedBefore | QuotedAhead) -> bool:
        """Return whether this changes nothing: newer quotes replace the past, and only the first recording counts."""
        if isinstance(known, QuotedAhead):
            return not self.awaits_recording
        return bool(self._quotes) or self._plans.begins_with(known)

    @property
    def awaits_recording(self) -> bool:
        """True until a forecaster that knows the future has its recording; no nodes are planned before."""
        return self._plans.awaits_recording

    def quoted(self, now: float) -> Market | None:
        """Return the market as it was quoted, up to the interval of a scheduler time; None before the first quote."""
        if not self._quotes:
            return None
        known = self._quotes.number(now) + 1
        market = self._quotes.market(known - 1)
        return replace(market, price=market.price[:known], available=market.available[:known])

    def reference_costs(self, market: Market | None = None) -> tuple[float, float] | None:
        """Return the cost of the jobs on on-demand nodes alone, and at the offline optimum.

        Both follow from the measured throughput; None while that of a job is unknown.

        Args:
            market: The real market; None for the quoted one.
        """
        if market is None and not self._quotes:
            return None
        return self._plans.reference_costs(market or self._quotes.market(self._quotes.newest))

    def open_row(self) -> IntervalEnded | None:
        """Return the row of the interval in progress as it was when last looked at; None if nothing is billed in it."""
        if self._interval is None or not self._bill.cost:
            return None
        return self._interval.record({}, 0, self._bill.cost)

    # ------------------------------------------------------------------------------------------------ events

    def handle(self, event: Any, now: float, pool: PoolView) -> Answers:
        answers: Answers = []
        if self.choice is not None and isinstance(event, Submit):
            answers += (Note(job, MARKET, policy) for job, policy in self.choice.draw(event, now, pool))
        if self._take(event, now, pool) or (self._wakeup is not None and now >= self._wakeup):
            self._look(now, pool, answers)
            self._wakeup = self._next_look(now, pool)
        self.spent += sum(answer.cost for answer in answers if isinstance(answer, IntervalEnded))
        return answers

    def _take(self, event: Any, now: float, pool: PoolView) -> bool:
        """Take in an event; return whether it has news for the plans."""
        match event:
            case Report(job=name):
                return self._plans.awaits(name) or (not pool.is_active(name) and name in self._plans)
            case Quoted():
                self._bill.quote(event, now)
                is_news = self._quotes.take(event, now, None if self._interval is None else self._interval.number)
                # The money may run out earlier, or plans may change.
                return is_news or self._budget is not None or self._decides_on_events(now)
            case QuotedBefore() | QuotedAhead():
                if self.knows(event):
                    return False
                self._plans.begin(event)
                return isinstance(event, QuotedAhead)
            case SelectorFeedback() | EarlierFeedback():
                if self.choice is not None and self.changes(event, pool):
                    self.choice.learn(event)
                return False
            case CloudTrouble(part, words):
                self._trouble[part] = words
                if not words:
                    del self._trouble[part]
                return False
            case NodesSeen():
                self.nodes = event
                self._places.see(event, self._quotes.number(now))
                self._bill.see(event, now)
                return True
            case Tick() | EarlierRuns():
                return False
        return True

    def wakeup(self) -> float | None:
        return self._wakeup

    def check(self, event: Any, pool: PoolView) -> None:
        """Check that an event fits; every one does that its class takes."""

    def changes(self, event: Any, pool: PoolView) -> bool:
        """Return whether an event is news."""
        match event:
            case NodesSeen():
                return event != self.nodes
            case CloudTrouble(part, words):
                return self._trouble.get(part, "") != words
            case QuotedBefore() | QuotedAhead():
                return not self.knows(event)
            case SelectorFeedback() | EarlierFeedback():
                return self.choice is not None and self.choice.is_news(event, pool)
        return True

    def describe(self) -> dict[str, Any]:
        """Return nodes, requests and money, for users, as JSON values."""
        return {
            "spot": len(self.nodes.spot), "on_demand": len(self.nodes.on_demand), "warm": self.nodes.warm,
            "wanted_spot": self.wanted.spot, "wanted_on_demand": self.wanted.on_demand,
            "seen_in": _in_words(self.nodes.places), "wanted_in": _in_words(self.wanted.places),
            "reason": str(self.wanted.reason), "spent": self.spent, "money": self._money,
            "trouble": {str(part): words for part, words in self._trouble.items()},
        }  # fmt: skip

    def published(self, *, failed: bool, idle: bool) -> PublishedLevel:
        """Return the nodes wanted; none of a market that has failed, once no job needs them or if there is a budget."""
        wanted = self.wanted
        if failed and (idle or self._budget is not None):
            wanted = NodesWanted(wanted.version + 1, 0, 0, Reason("market.market.no_nodes"))
        return PublishedLevel(wanted.version, message_body(wanted))

    @classmethod
    def named_parts(cls, arguments: Mapping[str, Any]) -> Iterator[tuple[Family[Any], str]]:
        """Yield the spot policies that arguments name."""
        terms = arguments.get("terms")
        policies = terms.get("policies") or () if isinstance(terms, Mapping) else ()
        own = [arguments["policy"]] if arguments.get("policy") else []
        yield from ((SPOT_POLICIES, parse_spec(str(spec)).name) for spec in [*policies, *own])

    @property
    def kept_jobs(self) -> Collection[str]:
        """Names of the jobs that have not given feedback."""
        return () if self.choice is None else self.choice.without_feedback

    @property
    def is_busy(self) -> bool:
        """Whether nodes are wanted, which are paid for."""
        return bool(self.wanted.spot or self.wanted.on_demand)

    @property
    def must_continue(self) -> bool:
        """Whether money has been spent, so that a later pool must continue the ledger."""
        return self.spent > 0

    @property
    def _money(self) -> float | None:
        """Money that is left; None for any."""
        return None if self._budget is None else self._budget - self.spent

    def _next_look(self, now: float, pool: PoolView) -> float | None:
        begins = self._plans.begins_at(pool, now)
        if self._interval is None:
            return begins
        # An interval that has ended may stay while a pool closes.
        times = [(self._quotes.number(now) + 1) * self.seconds]
        if pool.closing or pool.names():  # else its nodes only leave
            times.append(now + self.seconds / LOOKS)
        if (left := self._left(pool, [])) is not None:
            times.append(self._bill.last_moment(now, left, NodeCounts(*self.wanted[1:3]), self._leave))
        times += [begins] if begins is not None else []
        return min((time for time in times if time > now), default=math.nextafter(now, math.inf))

    # ------------------------------------------------------------------------------------------------ a look

    def _look(self, now: float, pool: PoolView, answers: Answers) -> None:
        """Record the state of the pool, and decide on changes."""
        names = dict.fromkeys((*pool.names(), *self._plans.names))
        jobs = {name: status for name in names if (status := pool.status(name)) is not None}
        present, number = NodeCounts(len(self.nodes.spot), len(self.nodes.on_demand)), self._quotes.number(now)
        interval = self._interval
        self._bill.advance(now)
        if interval is not None:
            interval.count(now, jobs.values(), present, len(self._bill))
        self._plans.observe(now, jobs)
        if pool.closing or not any(status.state is not State.ENDED for status in jobs.values()):
            self._end(now, pool, jobs, present, answers, number)
            return
        self._closing_since = None
        if not self._quotes or self.awaits_recording:
            return
        if interval is None:  # for the rest of this one, it is for jobs that cannot wait
            if now - number * self.seconds <= WHOLE * self.seconds:
                self._begin_interval(number, now, pool, jobs, present, answers, preempted=False)
            else:
                self._set_interval(number, now, pool, jobs, present, Plans(NodeCounts(), [], 0), answers)
        elif number > interval.number and not self._quotes.is_awaited(number, now):
            had = interval.present.minimum(interval.requested)
            self._end_interval(jobs, answers, number)
            self._begin_interval(number, now, pool, jobs, present, answers, preempted=had != had.minimum(present))
        else:
            request = interval.settle(now, present, self.nodes.warm, self.seconds, self._left(pool, answers))
            if request is not None:
                self._want(
                    request, Reason("market.nodes_planned", self._told(len(jobs), request, number)), answers, number
                )
        if self._interval is not None:
            rest = self._interval.rest(now, present, self.seconds)
            if decided := self._decides_on_events(now) and self._has_changed(self._interval, rest):
                self._decide_within(self._interval, rest, now, pool, jobs, present, answers)
            self._add_what_cannot_wait(self._interval, rest, now, pool, jobs, present, answers, decided=decided)
            self._stop_where_money_ends(self._interval, now, pool, jobs, answers)

    def _begin_interval(
        self, number: int, now: float, pool: PoolView, jobs: Mapping[str, JobStatus], present: NodeCounts,
        answers: Answers, *, preempted: bool,
    ) -> None:  # fmt: skip
        """Have the plans decide; ``preempted``: nodes have just vanished, and the work they lost is not yet known."""
        market, money = self._quotes.market(number, now, present), self._left(pool, answers)
        prices = dearest(self._quotes.at(number))
        plans = self._plans.decide(market, number, now, pool, jobs, present, money, prices, preempted=preempted)
        self._set_interval(number, now, pool, jobs, present, plans, answers)

    def _set_interval(
        self, number: int, now: float, pool: PoolView, jobs: Mapping[str, JobStatus], present: NodeCounts,
        plans: Plans, answers: Answers,
    ) -> None:  # fmt: skip
        quote, tolls = self._quotes.at(number), {name: Toll.of(status) for name, status in jobs.items()}
        answers += plans.asks
        offer = quote.price, quote.available, quote.on_demand
        self._interval = CurrentInterval(number, now, *offer, plans.nodes, present, tolls)
        nodes = self._interval.begin(self.nodes.warm)
        code = "market.nodes_planned" if nodes == plans.nodes else "market.nodes_kept"
        leeway = self._plans.leeway(number, jobs)
        self._want(nodes, Reason(code, self._told(plans.jobs, nodes, number)), answers, number, leeway)

    def _decides_on_events(self, now: float) -> bool:
        """Return whether plans may decide within the interval in progress."""
        interval = self._interval
        is_current = interval is not None and interval.number == self._quotes.number(now)
        return is_current and self._plans.decide_on_events(self._quotes.number(now))

    def _has_changed(self, interval: CurrentInterval, rest: Rest) -> bool:
        """Return whether plans should be revised: after losses of nodes, changed offers or changed terms.

        More nodes, or a price that has moved far, count while no on-demand nodes are held. That these are swapped waits
        for the next interval: many new spot nodes are gone by then. While nodes are replaced, only a loss counts.
        """
        if rest.preempted:
            return True
        quote = self._quotes.news(interval.number)
        if quote is None or interval.hands_over:
            return False
        price = self._quotes.at(interval.number).price
        are_other = quote.available > interval.available or abs(quote.price - price) > PRICE_MOVE * price
        held = interval.requested
        return quote.available < held.spot or (are_other and not held.on_demand)

    def _decide_within(
        self, interval: CurrentInterval, rest: Rest, now: float, pool: PoolView, jobs: Mapping[str, JobStatus],
        present: NodeCounts, answers: Answers,
    ) -> None:  # fmt: skip
        """Have the plans that decide on events do so for the rest of the interval."""
        number, was = interval.number, interval.planned
        self._quotes.accept(number)
        quote, market = self._quotes.at(number), self._quotes.market(number, now, present)
        if rest.preempted:  # the offer is no larger than that, whatever the quote
            known = self._places.available(quote) if quote.offers else present.spot
            market.available[number:] = np.minimum(market.available[number:], known)
        plans = self._plans.decide(market, number, now, pool, jobs, present, self._left(pool, answers), dearest(quote),
                                   rest.elapsed, preempted=rest.preempted)  # fmt: skip
        answers += plans.asks
        interval.replan(now, plans.nodes, quote.price, int(market.available[number]), quote.on_demand)
        if plans.nodes != was or rest.preempted:
            nodes = interval.begin(self.nodes.warm)
            self._want(nodes, Reason("market.nodes_replanned", self._told(plans.jobs, nodes, number)), answers, number)

    def _add_what_cannot_wait(
        self, interval: CurrentInterval, rest: Rest, now: float, pool: PoolView, jobs: Mapping[str, JobStatus],
        present: NodeCounts, answers: Answers, *, decided: bool,
    ) -> None:  # fmt: skip
        """Want on-demand nodes at once for jobs that cannot wait for the next interval: new ones, or after a loss.

        If plans have ``decided`` on the events of this moment, only the others decide.
        """
        money = self._left(pool, answers)
        if money is not None:
            requested = interval.requested
            if rest.preempted:
                requested = requested._replace(spot=min(requested.spot, present.spot))
            money -= interval.rest_of_cost(requested, now, self.seconds)
        market = self._quotes.market(interval.number)
        plans = self._plans.cannot_wait(market, rest, now, pool, jobs, money, decided=decided)
        answers += plans.asks
        if plans.nodes.all:
            reason = Reason("market.nodes_replaced" if rest.preempted else "market.nodes_for_new")
            rest = rest._replace(preempted=rest.preempted and not decided)
            self._want(interval.add(rest, plans.nodes), reason, answers, interval.number)
        elif rest.preempted and not decided:  # there may be others elsewhere
            self._want(NodeCounts(*self.wanted[1:3]), Reason("market.nodes_elsewhere"), answers, interval.number)

    def _stop_where_money_ends(
        self, interval: CurrentInterval, now: float, pool: PoolView, jobs: Mapping[str, JobStatus], answers: Answers
    ) -> None:  # fmt: skip
        """Stop requesting nodes once draining the present and expected ones costs all the remaining money."""
        left, wanted = self._left(pool, answers), NodeCounts(*self.wanted[1:3])
        if left is None or not wanted.all:
            return
        if self._bill.last_moment(now, left, wanted, self._leave) <= now + MONEY_TOLERANCE:
            answers += self._plans.give_up(pool, jobs, left)
            interval.give_up()
            self._want(NodeCounts(), Reason("market.money_ends", (left,)), answers, interval.number)

    def _end(self, now: float, pool: PoolView, jobs: Mapping[str, JobStatus], present: NodeCounts, answers: Answers,
             number: int) -> None:  # fmt: skip
        """Request no nodes any more: all jobs have ended, or the pool closes and they have left.

        The interval lasts for as long as nodes are billed.
        """
        if pool.closing:
            self._closing_since = now if self._closing_since is None else self._closing_since
            busy = any(status.devices for status in jobs.values() if status.state is not State.ENDED)
            if busy and now - self._closing_since < LEAVE_SECONDS:
                return
        else:
            self._places.leave()
        interval = self._interval
        if interval is not None and (number > interval.number or not len(self._bill)):
            self._end_interval(jobs, answers, number)
        self._want(NodeCounts(), Reason("market.pool_closes" if pool.closing else "market.no_nodes"), answers, number)
        if len(self._bill) and self._quotes:
            if self._interval is None:
                self._set_interval(number, now, pool, jobs, present, Plans(NodeCounts(), [], 0), answers)
            else:
                self._interval.give_up()
                self._interval.batches += self._plans.count_batches(jobs)

    def _end_interval(self, jobs: Mapping[str, JobStatus], answers: Answers, number: int) -> None:
        """Record the interval, and the later ones before ``number``, which passed unobserved."""
        if (interval := self._interval) is None:
            return
        self._interval = None
        answers.append(interval.record(jobs, self._plans.count_batches(jobs), self._bill.take(interval.number)))
        last = min(number, interval.number + AHEAD) - 1
        for passed in range(interval.number + 1, last + 1):
            quote, cost = self._quotes.at(passed), self._bill.take(passed if passed < last else number - 1)
            answers.append(interval.unobserved(passed, quote.price, quote.available, quote.on_demand, cost))

    def _left(self, pool: PoolView, answers: Answers) -> float | None:
        """Return the money that is left for nodes once all that is billed is paid; None for any.

        The cost of a move to the other regions is held back: replacements of lost nodes may have to go there.
        """
        if self._money is None:
            return None
        recorded = sum(answer.cost for answer in answers if isinstance(answer, IntervalEnded))
        kept = 0.0
        if self._quotes and self._places.homes:
            quote = self._quotes.at(self._quotes.newest)
            kept = quote.egress * len({offer.region for offer in quote.offers} - self._places.homes)
        return self._money - recorded - self._bill.cost - kept

    def _want(
        self, nodes: NodeCounts, reason: Reason, answers: Answers, number: int, leeway: Leeway | None = None
    ) -> None:
        """Want so many nodes from an interval on, if that is news; ``leeway``: where they are may change."""
        places: tuple[PlacedNodes, ...] = ()
        if self._quotes and (quote := self._quotes.at(number)).offers:
            homes = self._places.homes
            places = self._places.place(quote, self._quotes.counts(number), nodes, leeway, self.seconds)
            if homes:  # checkpoints are moved to each region that is new
                self._bill.charge(len(self._places.homes - homes) * quote.egress)
            if self._interval is not None:
                self._interval.price, self._interval.on_demand = mean_prices(places, quote)
        if nodes != self.wanted[1:3] or places != self.wanted.places:
            self.wanted = NodesWanted(self.wanted.version + 1, *nodes, reason, places)
            answers.append(self.wanted)

    def _told(self, jobs: int, nodes: NodeCounts, number: int) -> tuple[float, float]:
        """Return the numbers that a reason tells: of jobs, and the money for an interval."""
        quote = self._quotes.at(number)
        return float(jobs), nodes.cost(quote.price, quote.on_demand)


def check_budget(money: float) -> None:
    """Check an amount of money that may be spent.

    Raises:
        ValueError: If it is not positive and finite.
    """
    if isinstance(money, bool) or not isinstance(money, int | float) or not 0 < money < math.inf:
        raise ValueError(f"budget must be positive and finite, got {shown(money)}")
    check_at_most("budget", money, MAX_FACTOR)


def _in_words(places: Sequence[PlacedNodes]) -> list[str]:
    """Return where nodes are, a text for each offer that has some."""
    return [
        f"{place.name}: {place.spot} spot and {place.on_demand} on-demand"
        for place in places
        if place.spot or place.on_demand
    ]
