"""What a look at a whole store found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_FINDINGS = 200
COPY = "restore the file from a copy"
REPAIR = "verify --repair"


class Enough(Exception):
    """There are `MAX_FINDINGS`."""


class Finding(NamedTuple):
    """What is wrong, where, and what helps."""

    where: str
    what: str
    remedy: str


@dataclass
class Report:
    """What was looked at, and what was found; at most `MAX_FINDINGS`, then it ends early."""

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    log_bytes: int = 0
    queues: int = 0

    def add(self, where: str, what: str, remedy: str) -> None:
        """One more. Raises `Enough`."""
        self.findings.append(Finding(where, what, remedy))
        if len(self.findings) >= MAX_FINDINGS:
            raise Enough
