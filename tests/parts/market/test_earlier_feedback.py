"""What the selector of spot policies begins with: the past of the market, and the jobs of earlier runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.events import Report, Submit
from lightning_core.core.reasons import Reason
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import (
    MAX_RECORDED,
    EarlierFeedback,
    Quoted,
    QuotedBefore,
    SelectorFeedback,
)
from lightning_core.parts.market.earlier_feedback import PLAYED, earlier_feedback, feedback_text, known_before, play
from lightning_core.parts.market.feedback_file import FEEDBACK, feedback_to_text, read_feedback
from lightning_core.parts.market.feedback_folder import leave_feedback, with_feedback
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.parts.market.selector import MAX_NUMBERS, Selector, normalised
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.parts.market.market_world import World, controller
from tests.parts.market.messages import event_of, seen
from tests.parts.market.test_market_jobs import ended, job, launched
from tests.parts.market.test_simulated_market import DELAYS, HOUR, Watched, drawn, elastic

POLICIES = ("on-demand", "max-spot", "uniform-progress")
# An interval of ten seconds; spot nodes cost a third, and now and then there is none.
RECORDED = [(4, 0.3), (3, 0.3), (0, 0.3), (4, 0.35)] * 12
GOOD, BAD = (0.2, 0.9, 0.8), (0.9, 0.2, 0.1)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "recorded.csv"
    path.write_text("available,price\n" + "".join(f"{count},{price}\n" for count, price in RECORDED))
    return path


def settings(trace: Path, plans: dict[str, Any] | None = None, **more: object) -> Settings:
    terms = {"trace": str(trace), "interval": 10.0, "policies": POLICIES, **more}
    return Settings(policy="edf", controllers={"market": {"interval": 10.0, "terms": terms, **(plans or {})}})


def nodes(of: Settings) -> VirtualCloud:
    """Return plenty of nodes, which learns as a pool of these settings does."""
    terms = terms_of(of)
    assert terms is not None
    return VirtualCloud(terms.market(), settings=of)


def spot_policy(scheduler: Scheduler) -> Reason:
    reason = scheduler.status()[-1].notes.get("market")
    assert reason is not None
    return reason


# ------------------------------------------------------------------------------------------------------- the past


def test_the_past_and_the_market_are_the_recording(trace: Path) -> None:
    terms = MarketTerms(str(trace), interval=10.0, start=120.0)
    past, market = terms.past(), terms.market()
    assert past is not None
    assert (len(past), len(market)) == (12, 36)
    assert [*past.available, *market.available] == [count for count, _ in RECORDED]
    assert [*past.price, *market.price] == [price for _, price in RECORDED]
    assert MarketTerms(str(trace), interval=10.0).past() is None


def test_the_past_may_be_in_a_file_of_its_own(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "before.csv").write_text("available,price\n7,0.1\n" * 1 + "6,0.2\n")
    terms = MarketTerms(str(trace), interval=10.0, history=str(tmp_path / "before.csv"))
    past = terms.past()
    assert past is not None
    assert (past.available.tolist(), past.seconds, len(terms.market())) == ([7, 6], 10.0, 48)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"start": 480.0}, "market start must be before the end of the recording at 480 s, got 480"),
        ({"start": -1.0}, "market start must be at least 0 seconds, got -1"),
        ({"start": 10.0, "history": "x.csv"}, "market start and history must not both be given"),
        ({"quoted": True}, "market trace and start are for a recorded market, and this one is quoted"),
        ({"feedback": "none.json"}, "none.json: cannot be read: No such file"),
    ],
)
def test_a_past_that_does_not_fit_is_refused(trace: Path, more: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MarketTerms(str(trace), interval=10.0, policies=POLICIES, **more).check()  # type: ignore[arg-type]


def test_jobs_are_played_in_the_past_under_each_policy(trace: Path) -> None:
    terms = MarketTerms(str(trace), interval=10.0, policies=POLICIES, start=240.0, value=2.0)
    past = terms.past()
    assert past is not None
    rows = np.array(play(terms, past))
    assert rows.shape == (15, 3)  # a job of ten intervals can begin in 15 of 24
    assert rows.shape[0] < PLAYED
    # The second job: 0.45 and half of 0.45 times the fraction of twice the golden ratio, of what 4 nodes do.
    job = SpotJob((0.45 + 0.45 * 0.2360679775) * 40, 10, 1, 4, (), 0.9, 0.9, 0.0, 1.5)
    job = SpotJob(job.work, 10, 1, 4, (), 0.9, 0.9, 2.0 * on_demand_cost(job, 1.0), 1.5)
    for column, policy in enumerate(terms.make().values()):
        [ledger] = backtest([policy], JobBatch([job], past, [1]), MarketForecaster(LastValue()))
        assert rows[1, column] == pytest.approx(normalised(ledger.utility, job)[0], abs=1e-9)
    assert (rows[:, 1] > rows[:, 0]).all()  # spot nodes are cheaper


def test_jobs_are_played_on_one_node_where_there_is_no_more_and_with_forecasts(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("available,price\n" + "1,0.3\n" * 12)
    terms = MarketTerms(str(path), interval=10.0, policies=("on-demand", "ahap"), start=100.0)
    past = terms.past()
    assert past is not None
    [(dear, cheap)] = play(terms, past)  # a job can begin in the first of ten intervals only
    assert 0.0 < dear < cheap < 1.0


def test_a_short_past_or_a_single_policy_tells_nothing(trace: Path) -> None:
    assert earlier_feedback(MarketTerms(str(trace), interval=10.0, policies=POLICIES, start=90.0)) is None
    assert earlier_feedback(MarketTerms(str(trace), interval=10.0, policies=("max-spot",), start=240.0)) is None
    assert earlier_feedback(MarketTerms(str(trace), interval=10.0, policies=POLICIES)) is None


# ------------------------------------------------------------------------------------------------------- the event


def test_the_first_job_gets_a_policy_by_what_was_known_before(trace: Path) -> None:
    scheduler = Scheduler(settings(trace))
    event = event_of(EarlierFeedback((GOOD,) * 20, ((0.1, 0.9, 0.7),)))
    assert decode_event(encode_event(event)) == event
    assert scheduler.answers_to_no_op(event, 0.0) is None
    assert scheduler.handle(event, 0.0) == []
    scheduler.handle(Submit((job("a"),)), 0.0)
    assert spot_policy(scheduler).text == "max-spot"
    assert str(spot_policy(scheduler)).endswith("% of the weight after feedback from 0 jobs and 21 earlier ones")
    ended(scheduler, "a", 5.0)
    scheduler.handle(event_of(SelectorFeedback("a", GOOD)), 6.0)
    scheduler.handle(Submit((job("b"),)), 7.0)
    assert spot_policy(scheduler).numbers[1:] == (1, 21)
    market = scheduler.controllers[MARKET]
    assert isinstance(market, MarketController)
    assert market.choice is not None
    assert market.choice.selector.jobs_seen.tolist() == [
        [0.1, 0.9, 0.7],
        list(GOOD),
    ]  # what was played is not for later runs


@pytest.mark.parametrize(
    "event", [EarlierFeedback(()), EarlierFeedback(((0.5,),)), EarlierFeedback(((2.0, 0.0, 0.0),))]
)
def test_feedback_of_other_policies_is_no_news(trace: Path, event: EarlierFeedback) -> None:
    scheduler = Scheduler(settings(trace))
    assert scheduler.answers_to_no_op(event_of(event), 0.0) == []
    scheduler.handle(event_of(event), 0.0)
    scheduler.handle(Submit((job("a"),)), 0.0)
    assert spot_policy(scheduler).numbers == pytest.approx((1 / 3, 0))


def test_what_was_known_before_counts_once(trace: Path) -> None:
    scheduler = Scheduler(settings(trace))
    scheduler.handle(event_of(EarlierFeedback((GOOD,) * 20)), 0.0)
    assert scheduler.answers_to_no_op(event_of(EarlierFeedback((BAD,) * 9)), 0.0) == []
    scheduler.handle(event_of(EarlierFeedback((BAD,) * 9)), 0.0)
    scheduler.handle(Submit((job("a"),)), 0.0)
    assert (spot_policy(scheduler).text, spot_policy(scheduler).numbers[2]) == ("max-spot", 20)


def test_the_newest_jobs_are_kept_for_later_runs() -> None:
    selector = Selector([str(k) for k in range(100)])
    for number in range(MAX_NUMBERS // 100 + 5):
        selector.update(np.full(100, number / 1000))
    assert selector.jobs_seen.shape == (MAX_NUMBERS // 100, 100)
    assert selector.jobs_seen[-1, 0] == (MAX_NUMBERS // 100 + 4) / 1000


# -------------------------------------------------------------------------------------------------------- the file


def test_a_file_is_read_for_the_policies_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / FEEDBACK).write_text(feedback_to_text(POLICIES, np.array([GOOD, BAD])))
    for path in (tmp_path, tmp_path / FEEDBACK):
        assert read_feedback(path, ("uniform-progress", "on-demand")) == ((0.8, 0.2), (0.1, 0.9))
    with pytest.raises(ValueError, match=r"has no feedback on 'chain', only on on-demand, max-spot, uniform-progress"):
        read_feedback(tmp_path, ("max-spot", "chain"))


def test_utilities_have_six_digits_and_may_be_0_or_1(tmp_path: Path) -> None:
    (tmp_path / FEEDBACK).write_text(feedback_to_text(["a", "b"], np.array([[0.0, 1.0], [0.12345678, 2 / 3]])))
    assert read_feedback(tmp_path, ("a", "b")) == ((0.0, 1.0), (0.123457, 0.666667))


@pytest.mark.parametrize(
    "text",
    ["[]", "{", "{}", '{"version": 2}', '{"version": 1, "policies": ["a"], "utilities": [[2]]}',
     '{"version": 1, "policies": ["a"], "utilities": [["x"]]}', '{"version": 1, "policies": [], "utilities": [[2]]}'],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FEEDBACK).write_text(text)
    with pytest.raises(ValueError, match=r"feedback\.json: not the feedback of a run: "):
        read_feedback(tmp_path, ("a",))


# ------------------------------------------------------------------------------------------------ runs and pools


def test_a_simulated_pool_begins_with_it_and_leaves_its_own(trace: Path, tmp_path: Path) -> None:
    jobs = [SimulatedJob(launched(f"j{k}"), [10, 100], [0.9, 0.4], 10.0, submitted=60.0 * k) for k in range(3)]
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    begun = settings(trace, start=160.0)
    Simulation(begun, jobs, journal=first / "journal.db", check=True, nodes=nodes(begun)).run()
    leave_feedback(first)
    left = json.loads((first / FEEDBACK).read_text())
    assert left["policies"] == list(POLICIES)
    assert len(left["utilities"]) == 3  # the last job's deadline had not passed
    later = with_feedback(first, settings(trace))
    assert later.controllers["market"]["terms"]["feedback"] == str(first / FEEDBACK)
    Simulation(later, jobs, journal=second / "journal.db", check=True, nodes=nodes(later)).run()
    for folder, earlier in ((first, 7), (second, 3)):
        with Journal.open(folder / "journal.db", read_only=True) as journal:
            again = replay(journal)
            assert again.digest == journal.digest
        reasons = [status.notes.get("market") for status in again.scheduler.status()]
        assert [reason.numbers[1:] for reason in reasons if reason] == [(0, earlier), (1, earlier), (2, earlier)]
        assert reasons[0] is not None
        assert reasons[0].text != "on-demand"  # the first of the list
    text = feedback_text(again.scheduler)
    assert text is not None
    assert len(json.loads(text)["utilities"]) == 6  # those of the run before are handed on


@pytest.mark.nightly
def test_a_market_that_is_quoted_gives_the_feedback_of_one_that_is_recorded(tmp_path: Path) -> None:
    recorded = drawn(3)
    rows = "".join(
        f"{count},{price!r}\n" for count, price in zip(recorded.available, recorded.price.tolist(), strict=True)
    )
    (tmp_path / "day.csv").write_text(f"available,price\n{rows}")
    jobs = [elastic(f"j{k}", 5.0, 3.0, submitted=4 * HOUR * k) for k in range(3)]
    told, chosen = list[Any](), list[Any]()
    for market in ({"trace": str(tmp_path / "day.csv")}, {"quoted": True, "interval": recorded.seconds}):
        terms = {**market, "policies": POLICIES}
        controllers = {"market": {"interval": recorded.seconds, "terms": terms}}
        settings = Settings("edf", period=60.0, devices=24, controllers=controllers)
        cloud = VirtualCloud(recorded, 60.0, settings=settings)
        simulation = Watched(settings, jobs, DELAYS, tmp_path / f"{len(told)}.db", nodes=cloud)
        simulation.run()
        told.append([(when, event) for when, event in simulation.told if isinstance(event, SelectorFeedback)])
        with Journal.open(tmp_path / f"{len(told) - 1}.db", read_only=True) as journal:
            chosen.append([status.notes.get("market") for status in replay(journal).scheduler.status()])
    assert len(told[0]) == 2
    assert all(len(event.utilities) == 3 for _, event in told[0])
    assert told[0] == told[1]
    assert chosen[0] == chosen[1]


def test_a_pool_of_other_policies_does_without_what_a_folder_has(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FEEDBACK).write_text(feedback_to_text(("chain",), np.array([[0.5]])))
    assert with_feedback(tmp_path, settings(trace)) == settings(trace)
    assert "spot policies are chosen without feedback from earlier jobs" in capsys.readouterr().err
    assert with_feedback(tmp_path, Settings()) == Settings()


def test_the_actor_lets_the_first_job_wait_for_what_was_known_before(trace: Path, tmp_path: Path) -> None:
    (tmp_path / FEEDBACK).write_text(feedback_to_text(POLICIES, np.array([GOOD] * 5)))
    given = settings(trace, start=240.0, feedback=str(tmp_path)).to_dict()

    async def story(name: str) -> list[tuple[float, ...]]:
        actor = SchedulerActor(given, str(tmp_path / "pool"))
        await actor.submit((job(name),))
        _, jobs = await actor.status()
        await actor.event(Report(name, 1, number=1, version=1, batches=10, busy=0.3))
        await actor.close()
        return [status.notes["market"].numbers for status in jobs if status.notes]

    assert [numbers[1:] for numbers in asyncio.run(story("a"))] == [(0, 20)]
    assert [numbers[1:] for numbers in asyncio.run(story("b"))] == [(0, 20), (0, 20)]  # it began once


# ------------------------------------------------------------------------------------------- what plans begin with


def test_a_pool_that_plans_begins_with_the_quotes_of_the_past(trace: Path) -> None:
    def known(plans: dict[str, Any], start: float = 120.0) -> list[Any]:
        return known_before(settings(trace, plans, start=start))

    before, feedback = known({"interval": 10.0})
    assert before == QuotedBefore(*zip(*((price, count) for count, price in RECORDED[:12]), strict=True))
    assert seen(decode_event(encode_event(event_of(before)))) == before
    assert isinstance(feedback, EarlierFeedback)
    assert known({"interval": 10.0}, start=0.0) == []
    assert known({"interval": 20.0}) == [feedback]  # intervals of another length have no use for it


@pytest.mark.parametrize(
    ("prices", "counts", "words"),
    [
        ((), (), "prices and counts must be as many, got 0 and 0"),
        ((1.0,), (1, 2), "prices and counts must be as many, got 1 and 2"),
        ((-1.0,), (1,), "price must be 0 to "),
        ((1.0,) * (MAX_RECORDED + 1), (1,) * (MAX_RECORDED + 1), "intervals before must be at most"),
    ],
)
def test_quotes_of_the_past_that_do_not_fit_are_refused(
    prices: tuple[float, ...], counts: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        QuotedBefore(prices, counts)


def test_what_was_quoted_before_is_saved_and_comes_before_all_quotes() -> None:
    first, other = QuotedBefore((0.3, 0.4), (5, 0)), QuotedBefore((0.9,), (1,))
    world, run = World({}), controller("semi-markov")
    for event in (first, Quoted(0.3, 4, 1.0, 0), other):
        world.tell(run, event)
    again = controller("semi-markov")
    again.restore(json.loads(json.dumps(run.state())))
    assert again.state() == run.state()
    assert run.state()["plans"]["before"] == [[0.3, 0.4], [5, 0]]


def test_an_empty_pool_that_starts_again_journals_the_past_once_unless_it_has_grown(
    trace: Path, tmp_path: Path
) -> None:
    before = tmp_path / "before.csv"
    given = settings(trace, {"interval": 10.0}, history=str(before)).to_dict()

    def begun(intervals: int) -> list[QuotedBefore]:
        before.write_text("available,price\n" + "3,0.4\n" * intervals)

        async def story() -> None:
            actor = SchedulerActor(given, str(tmp_path / "pool"))
            await actor.status()
            await actor._wakeups.begun()
            await actor.close()

        asyncio.run(story())
        with Journal.open(tmp_path / "pool" / "journal.db", read_only=True) as journal:
            events = [seen(decode_event(entry.event)) for entry in journal.entries()]
        return [event for event in events if isinstance(event, QuotedBefore)]

    assert [len(one.prices) for one in begun(12)] == [12]
    assert [len(one.prices) for one in begun(12)] == [12]
    assert [len(one.prices) for one in begun(13)] == [12, 13]


def test_a_simulated_pool_plans_with_the_past_and_replays(tmp_path: Path) -> None:
    recorded = drawn(3)
    rows = [f"{count},{price!r}\n" for count, price in zip(recorded.available, recorded.price.tolist(), strict=True)]
    (tmp_path / "both.csv").write_text("available,price\n" + "".join(rows[:20] + rows))
    terms = {"trace": str(tmp_path / "both.csv"), "start": 20 * recorded.seconds, "policies": ("semi-markov",)}
    pool = Settings(
        "edf", period=60.0, devices=24, controllers={"market": {"interval": recorded.seconds, "terms": terms}}
    )
    jobs, cloud = [elastic("j", 5.0, 3.0)], VirtualCloud(recorded, 60.0, settings=pool)
    Watched(pool, jobs, DELAYS, tmp_path / "journal.db", nodes=cloud).run()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        again = replay(journal)
        assert again.digest == journal.digest
    [plan] = [one["plans"] for one in again.scheduler.state()["controllers"].values()]
    assert plan["before"] == [recorded.price[:20].tolist(), recorded.available[:20].tolist()]
