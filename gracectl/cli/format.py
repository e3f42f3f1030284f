"""Instants as people read them in a plan or a table: counted from a beginning, not as dates."""

from __future__ import annotations

from gracectl.policy.bounds import Window

DAY = 86_400


def elapsed(seconds: float) -> str:
    """`0:05`, `4:32`, `1:04:32`, `2d 03:00:00`; whole seconds, rounded down."""
    whole = int(seconds)
    sign = "-" if whole < 0 else ""
    days, rest = divmod(abs(whole), DAY)
    hours, rest = divmod(rest, 3600)
    minutes, seconds_left = divmod(rest, 60)
    if days:
        return f"{sign}{days}d {hours:02}:{minutes:02}:{seconds_left:02}"
    if hours:
        return f"{sign}{hours}:{minutes:02}:{seconds_left:02}"
    return f"{sign}{minutes}:{seconds_left:02}"


def elapsed_span(span: Window | None, since: float) -> str:
    """`0:00`, `0:00-4:32`, `0:00 or later`; `never` for None. `since`: the instant (Unix seconds) that is 0:00."""
    if span is None:
        return "never"
    earliest = elapsed(span.earliest - since)
    if span.latest is None:
        return f"{earliest} or later"
    latest = elapsed(span.latest - since)
    return earliest if earliest == latest or span.is_certain else f"{earliest}-{latest}"
