"""What readiness says of the way to the API server: whether it lets us speak, and whether its clock is believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gracectl.kube.skew import SkewStatistics
from gracectl.kube.tally import ClientStatistics
from gracectl.telemetry.health import Check

SILENCED_SECONDS = 120.0
"""Seconds. A server that says "busy" for longer, or a proxy in its place, stops the program from doing its work."""


def check_of_silence(clients: Iterable[ClientStatistics], now: float) -> Check:
    """Whether the server has said nothing but "later" for long; `now`: monotonic.

    A pause that ended long ago is over, even where nothing has been asked since.
    """
    pauses = [client.silenced for client in clients if client.silenced is not None]
    longest = max((now - since for since, until in pauses if now < until + SILENCED_SECONDS), default=0.0)
    if longest >= SILENCED_SECONDS:
        return Check("api", False, f"for {longest:.0f} s the server has asked for patience, and answered nothing else")
    return Check(
        "api", True, "the server answers" if not longest else f"the server asks for patience for {longest:.0f} s"
    )


def clock_checks(skew: SkewStatistics | None) -> Iterator[Check]:
    """What people are to know of the server's clock. A process that does not believe it works all the same."""
    if skew and skew.refused is not None:
        yield Check(
            "clock",
            True,
            f"the server's Date is {skew.refused:.0f} s ahead of this machine's, and not believed: more than "
            f"client.maximumClockOffsetSeconds ({skew.largest:g})",
        )
