"""Conformance suite for clients, wherever their scheduler runs.

Run it on a client of your own, whose scheduler has a device to spare::

    check_client(client, Job("a", 600.0, BatchTarget(10**6)), cancel)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from lightning_core.core.answers import Directive, End, Grant, JobForecast
from lightning_core.core.events import Cell, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import Client, JoinRefusedError
from lightning_core.testing.checks import require

# Seconds of a wait without news, and seconds within which news must arrive.
QUIET_SECONDS, NEWS_SECONDS = 0.2, 10.0
# A name that no job has.
UNKNOWN = "no-such-job"


def check_client(client: Client, job: Job, cancel: Callable[[], object], *, joins: bool = True) -> None:
    """Check every call of a client, from joining to the end of the job; close the client.

    Args:
        client: The client.
        job: Job with a target that 100 batches do not meet, and with a deadline some minutes away. It must get the
            device as soon as it is there.
        cancel: Cancels the job at its scheduler; called from another thread while the client waits.
        joins: Whether the client adds jobs. If not, the scheduler must have the job already, in its first incarnation.

    Raises:
        AssertionError: If a rule is broken; the message names it.
    """
    require(isinstance(client, Client), "a client must have the methods of lightning_core.core.protocols.Client")
    require(client.job_forecast(UNKNOWN) is None, "job_forecast must be None for an unknown job")
    incarnation = check_joining(client, job) if joins else _check_refusal(client, job)
    _check_reports(client, job.name, incarnation)
    if joins:
        client.left(WorkerExited(job.name, incarnation))
        following = client.join(job, "cpu").incarnation
        rule = f"a job that joins after its worker has exited must be incarnation {incarnation + 1}"
        require(following == incarnation + 1, f"{rule}, got {following}")
        answer = client.report(Report(job.name, incarnation, 9, 0, 20, 2.0))
        require(isinstance(answer, End), f"a report of an older incarnation must be answered with an End, got {answer}")
        incarnation = following
    _check_end(client, job.name, incarnation, cancel)
    client.close()
    client.close()  # once more, as a clean-up after an error does


def check_joining(client: Client, job: Job) -> int:
    """Check that a job is added once, and return its incarnation."""
    reply = client.join(job, "cpu")
    require(reply.incarnation >= 1, f"an incarnation must be at least 1, got {reply.incarnation}")
    require(isinstance(reply.arbiters, tuple), f"arbiters must be a tuple, got {reply.arbiters!r}")
    again = client.join(job, "cpu")
    rule = f"to join again must not begin a new incarnation, got {again.incarnation} after {reply.incarnation}"
    require(again.incarnation == reply.incarnation, rule)
    return reply.incarnation


def check_unreachable(client: Client, job: Job) -> None:
    """Check that each call of a client fails with ConnectionError while its scheduler cannot be reached.

    Args:
        client: Client of a scheduler that does not answer.
        job: Any job.
    """
    calls: dict[str, Callable[[], object]] = {
        "report": lambda: client.report(Report(job.name, 1, 1, 0, 0, 0.0)),
        "wait": lambda: client.wait(job.name, 0, QUIET_SECONDS),
        "job_forecast": lambda: client.job_forecast(job.name),
        "left": lambda: client.left(WorkerExited(job.name, 1)),
    }
    for name, call in calls.items():
        try:
            found = call()
        except ConnectionError as error:
            require(str(error) != "", f"{name}: the error must name the scheduler that does not answer")
        except Exception as error:
            raise AssertionError(f"{name} must raise ConnectionError without a scheduler, got {error!r}") from error
        else:
            raise AssertionError(f"{name} must raise ConnectionError without a scheduler, got {found!r}")
    client.close()


def _check_refusal(client: Client, job: Job) -> int:
    try:
        client.join(job, "cpu")
    except JoinRefusedError:
        return 1
    raise AssertionError("join must raise JoinRefusedError for a job that the scheduler has launched")


def _check_reports(client: Client, job: str, incarnation: int) -> None:
    first = Report(job, incarnation, 1, 0, 5, 0.5, (Cell(1, 5, 0.5),))
    grant = _granted(client.report(first))
    require(0.0 <= grant.share <= 1.0, f"a share must be in [0, 1], got {grant.share}")
    repeated = _granted(client.report(first))
    require(repeated == grant, f"a repeated report must get the same answer, {grant}, got {repeated}")
    version = grant.version
    answer = client.report(Report(job, incarnation, 2, version, 10, 1.0, (Cell(2, 10, 0.4),)))
    require(answer is None, f"a report with the newest version must be answered with None, got {answer}")
    period = client.report_period
    require(0.0 <= period < math.inf, f"report_period must be at least 0 and finite, got {period}")
    began = time.monotonic()
    answer = client.wait(job, version, QUIET_SECONDS)
    waited = time.monotonic() - began
    require(answer is None, f"wait must return None while nothing is newer, got {answer}")
    require(waited >= 0.9 * QUIET_SECONDS, f"wait must wait for its timeout of {QUIET_SECONDS} s, took {waited:.2f} s")
    began = time.monotonic()
    _granted(client.wait(job, 0, 6 * NEWS_SECONDS))
    waited = time.monotonic() - began
    require(waited < NEWS_SECONDS, f"wait must return newer answers at once, took {waited:.1f} s")
    forecast = client.job_forecast(job)
    require(isinstance(forecast, JobForecast), f"job_forecast must be a JobForecast, got {forecast!r}")


def _check_end(client: Client, job: str, incarnation: int, cancel: Callable[[], object]) -> None:
    version = _granted(client.report(Report(job, incarnation, 3, 0, 15, 1.5))).version
    timer = threading.Timer(QUIET_SECONDS, cancel)
    heard: list[Directive | None] = []
    listener = threading.Thread(target=lambda: heard.append(client.wait(job, version, 6 * NEWS_SECONDS)))
    listener.start()
    began = time.monotonic()
    client.job_forecast(job)
    waited = time.monotonic() - began
    require(waited < NEWS_SECONDS, f"a call must not wait for another thread's wait, took {waited:.1f} s")
    timer.start()
    began = time.monotonic()
    end = client.wait(job, version, 6 * NEWS_SECONDS)
    waited = time.monotonic() - began
    timer.join()
    listener.join()
    require(heard == [end], f"all that wait must hear the same, {end}, got {heard}")
    require(isinstance(end, End), f"wait must return the End of a job that is cancelled, got {end}")
    require(waited < NEWS_SECONDS, f"wait must return news as soon as there is any, took {waited:.1f} s")
    answer = client.report(Report(job, incarnation, 4, version, 20, 2.0))
    require(answer == end, f"a report of a job that has ended must be answered with its End, got {answer}")
    for _ in range(2):  # the first answer may have been lost, and the caller repeats the call
        client.left(WorkerExited(job, incarnation))


def _granted(directive: Directive | None) -> Grant:
    if not isinstance(directive, Grant):
        raise AssertionError(f"a job that trains must get a Grant, got {directive}")
    return directive
