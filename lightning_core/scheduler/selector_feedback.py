"""Takes in the feedback for the selector, and draws the spot policy of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_core.core.events import EarlierFeedback, SelectorFeedback
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.state import SchedulerState

if TYPE_CHECKING:
    from lightning_core.market.selector import Selector


def draw_spot_policy(selector: Selector, number: int) -> Reason:
    """Draw a spot policy by the selector's weights; return it with its weight."""
    name = selector.choose(number)
    weight, earlier = float(selector.weights[selector.names.index(name)]), selector.earlier_count
    if not earlier:
        return Reason("spot_policy", (weight, selector.feedback_count), name)
    return Reason("spot_policy_known", (weight, selector.feedback_count - earlier, earlier), name)


def take_feedback(state: SchedulerState, feedback: SelectorFeedback | EarlierFeedback) -> bool:
    """Let the selector learn from a job that has ended, or from what was known before the pool began.

    Returns:
        Whether a round is needed: never.
    """
    if state.selector is None or is_no_news(state, feedback):
        return False
    fits = state.selector.fits
    if isinstance(feedback, EarlierFeedback):
        state.selector.begin([row for row in feedback.played if fits(row)], [row for row in feedback.jobs if fits(row)])
    else:
        del state.awaiting_feedback[feedback.job]
        if fits(feedback.utilities):
            state.selector.update(np.array(feedback.utilities))
    return False


def is_no_news(state: SchedulerState, feedback: SelectorFeedback | EarlierFeedback) -> bool:
    """Return whether feedback changes nothing: no job waits for it, or the selector has begun already."""
    selector = state.selector
    if selector is None:
        return True
    if isinstance(feedback, SelectorFeedback):
        return feedback.job not in state.awaiting_feedback
    return selector.feedback_count > 0 or not any(map(selector.fits, feedback.played + feedback.jobs))
