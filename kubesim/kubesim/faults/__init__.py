"""Faults on request, by rule and by seed.

A rule selects requests, a probability and a maximum count; its fault says what happens. One seeded source decides, so
the same seed and requests meet the same faults.
"""

from kubesim.faults.engine import Faults
from kubesim.faults.rules import (
    CutBody,
    DropWatch,
    Expire,
    Fault,
    FreezeWatch,
    Latency,
    LateWatch,
    Partition,
    Refuse,
    RefuseEviction,
    Reset,
    Rule,
    SlowTail,
    SlowWebhook,
    StaleReads,
)

__all__ = [
    "CutBody",
    "DropWatch",
    "Expire",
    "Fault",
    "Faults",
    "FreezeWatch",
    "LateWatch",
    "Latency",
    "Partition",
    "Refuse",
    "RefuseEviction",
    "Reset",
    "Rule",
    "SlowTail",
    "SlowWebhook",
    "StaleReads",
]
