"""Faults on request: what an unlucky client meets, by rule and by seed.

A rule says which requests it is for, how likely it strikes and how often at most; its fault says what happens.
Everything random comes from one seeded source, so a run with the same seed and the same requests meets the same faults.
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
