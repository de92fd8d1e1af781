"""Events and answers of the market as a scheduler has them, and back."""

from __future__ import annotations

from typing import Any

from lightning_core.core.events import Event, PartEvent
from lightning_core.parts.market.cloud_events import CloudEvent


def event_of(event: Event | CloudEvent) -> Event:
    """Return an event as the scheduler is told of it."""
    return PartEvent.of(event) if isinstance(event, CloudEvent) else event


def seen(event: Event) -> Any:
    """Return an event as controllers see it."""
    return event.decoded() if isinstance(event, PartEvent) else event
