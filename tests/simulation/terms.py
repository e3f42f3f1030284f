"""Terms of a run: what its plan allows and promises, for those who judge it from the server's history only."""

from __future__ import annotations

import msgspec

FOREVER = float("inf")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. Instants are monotonic seconds of the event loop, durations are seconds."""

    asked: frozenset[str] = frozenset()
    """Nodes that the history asks to terminate (DELETE of node or claim, label, expiry, health): others stay."""
    replaced: frozenset[str] = frozenset()
    """Nodes whose machine the history takes away or replaces by itself, so that its end is not the controller's."""
    copies: frozenset[str] = frozenset()
    """Nodes that have the providerID of another one's machine, and none of their own."""
    faults_end: float = FOREVER
    """When the last fault ends; FOREVER: some last, so nothing is promised about progress."""
    calm_seconds: float = 1800.0
    """Every termination that can end is over so long after the faults."""
    deadline_slack: float = 5.0
    """Seconds after a deadline in which an instance is asked to terminate, by a leader that reaches server and
    provider."""
    stall_seconds: float = 90.0
    """Nothing that nothing blocks stands still for longer, without faults."""
    prompt_seconds: float = FOREVER
    """A pod that nothing holds is evicted within this time, whatever else is late."""
    elects: bool = False
    """Whether they contend for a Lease; without, there is never more than one."""
    clock_error: float = 0.0
    """By so many seconds a controller's clock, or what a stamp says, may be off at most: it may take an instant for
    come that comes so much later, and another for one to come that came so much earlier."""
    fair: bool = False
    """Whether nothing but kills stands between the controllers and the server: omissions are judged by the clock, and
    what is done is done once."""
