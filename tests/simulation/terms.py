"""Terms of a run: what its plan allows and promises, for those who judge it from the server's history only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

FOREVER = float("inf")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. Instants are monotonic seconds of the event loop, durations are seconds."""

    seed: int = 0
    periods: Mapping[str, float] = {}
    """Termination grace period by node, of those that have one from the beginning (claim or node group)."""
    needed: Mapping[str, int] = {}
    """Pods by app label that its one sane budget keeps ready; apps without such a budget are absent."""
    asked: frozenset[str] = frozenset()
    """Nodes that the history asks to terminate (DELETE of node or claim, label, expiry, health): others stay."""
    maintained: frozenset[str] = frozenset()
    """Nodes that the history asks to drain and keep: they stay, and so do their instances."""
    replaced: frozenset[str] = frozenset()
    """Nodes whose machine the history takes away or replaces by itself, so that its end is not the controller's."""
    faults_end: float = FOREVER
    """When the last fault ends; FOREVER: some last, so nothing is promised about progress."""
    calm_seconds: float = 1800.0
    """Every termination that can end is over so long after the faults."""
    deadline_slack: float = 5.0
    """Seconds after a deadline in which an instance is asked to terminate, by a leader that reaches server and
    provider."""
    stall_seconds: float = 90.0
    """Nothing that nothing blocks stands still for longer, without faults."""
    processes: int = 1
    """Controllers at once."""
    elects: bool = False
    """Whether they contend for a Lease; without, there is never more than one."""
    clock_jumps: bool = False
    """Whether a clock (of a controller or the server) is wrong or jumps: instants of stamps then prove little."""
    webhook_seconds: float = 0.0
    """The longest that an admission webhook takes while it is slow."""
    provider_lies: bool = False
    """Whether the provider says gone and does not mean it: a node may then go before its instance."""
    waves: tuple[tuple[int, float], ...] = ()
    """(priority, seconds) of each of `shutdownGracePeriodByPodPriority`, if the settings have them all the time."""
    maximum_at_once: int | str | None = None
    """`voluntary.maximumAtOnce` in force; None: the default."""
    fair: bool = False
    """Whether nothing but kills stands between the controllers and the server: omissions are judged by the clock, and
    what is done is done once."""
