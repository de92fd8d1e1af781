"""The devices of a pool, a line each: who trains there, and how much of the memory is needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.text import Text

from lightning_core.core.answers import JobStatus
from lightning_core.core.limits import format_bytes
from lightning_core.view.text import clean

MAX_DEVICES = 8
# Style of what is not as it should be; one of Okabe and Ito's colours, which colour-blind readers can tell apart.
RISK = "#e69f00"


def device_lines(
    jobs: Sequence[JobStatus], devices: int, unavailable: Collection[int], device_memory: int | None, others: str
) -> list[Text]:
    """Return the lines, and one more that counts the devices for which there is none.

    Args:
        jobs: Jobs of the pool.
        devices: Number of devices.
        unavailable: Devices that the scheduler does not plan on.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown.
        others: Whose jobs are not among them, in words; empty if all are.
    """
    nothing = f"idle, or {others}" if others else "idle"
    found = []
    for device in range(min(devices, MAX_DEVICES)):
        there = [job for job in jobs if device in job.devices]
        names = ", ".join(f"{clean(job.name)} {job.share:.2f}" for job in there if job.share > 0)
        empty = (nothing, "dim italic") if device not in unavailable else ("unavailable", RISK)
        text = Text.assemble((f"device {device}: ", "dim"), (names, "") if names else empty)
        # Those of others are not seen. What is held stays there.
        needed = sum(job.memory_needed or 0.0 for job in there)
        if device_memory is not None and not others and needed:
            text.append(f", {format_bytes(needed)} of {format_bytes(device_memory)}", "dim")
        found.append(text)
    if devices > MAX_DEVICES:
        held = {device for job in jobs if job.share > 0 for device in job.devices}
        lost = set(unavailable) - held
        idle = f"{devices - len(held) - len(lost)} of all are {nothing}"
        lost_too = f", {len(lost)} unavailable" if lost else ""
        found.append(Text(f"and {devices - MAX_DEVICES} devices more; {idle}{lost_too}", style="dim"))
    return found
