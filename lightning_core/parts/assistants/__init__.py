"""Assistants of users, which ask a pool by tools of the Model Context Protocol (https://modelcontextprotocol.io).

The command ``mcp`` serves the tools, over its standard streams or over HTTP on this machine. They read only, unless it
was started otherwise, and have the rights of its user or of a token. A change says in the journal through which program
it was asked for.
"""

from __future__ import annotations

from lightning_core.core.parts import Part, later
from lightning_core.parts.assistants.programs import Assisted, submission_words

part = Part(
    commands=later("lightning_core.parts.assistants.mcp_command", "add_commands"),
    job_data=Assisted,
    submission=submission_words,
)
"""What ``lightning_core`` registers as the part ``assistants``."""
