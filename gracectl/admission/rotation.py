"""When a certificate that we make ourselves is replaced, and how: in two writes, so that nobody ever refuses it.

First the next pair is laid aside, and its authority joins the bundle; when all who ask have had time to read that, the
next pair takes the place of the present one. Between the two, and if whoever has begun is gone by then, all works as
before: the state is in the Secret, and whoever leads goes on from there. Instants are seconds since the epoch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gracectl.runtime.certificates import (
    CertificateInfo,
    KeyPair,
    authorities_in,
    certificate_info,
    check,
    issue,
    issuers_of,
    unexpired,
)

LIFE_SECONDS: Final = 90 * 86_400.0
SPENT_SHARE: Final = 2 / 3
"""Of its life: then it is replaced, and a month is left for a controller that does not run."""
SETTLING_SECONDS: Final = 60.0
"""From when the webhook configurations hold an authority until every API server has read it."""


class Kept(msgspec.Struct, frozen=True):
    """What is kept of certificates: the pair that is shown, the one that comes next, and whom to trust (PEM)."""

    pair: KeyPair
    authorities: bytes
    upcoming: KeyPair | None = None


def begun(hosts: tuple[str, ...], now: float) -> Kept:
    """The first of all."""
    issued = issue(hosts, now, LIFE_SECONDS)
    return Kept(issued.pair, issued.authority)


def following(kept: Kept, hosts: tuple[str, ...], now: float, trusted_for: float) -> Kept | None:
    """What is to be kept instead; None: it may stay as it is.

    `trusted_for`: the seconds for which everybody who asks has been told of `kept.authorities`.
    """
    authorities = _readable(kept.authorities)
    if not _is_usable(kept.pair, authorities, hosts, now):
        # There is nothing to lose: the upcoming one if it is good, else a new one, at once.
        if kept.upcoming is not None and _is_usable(kept.upcoming, authorities, hosts, now):
            return Kept(kept.upcoming, kept.authorities)
        issued = issue(hosts, now, LIFE_SECONDS)
        return Kept(issued.pair, _bundle((*authorities, issued.authority), now))
    if kept.upcoming is not None:
        if not _is_usable(kept.upcoming, authorities, hosts, now):
            return Kept(kept.pair, kept.authorities)
        return Kept(kept.upcoming, kept.authorities) if trusted_for >= SETTLING_SECONDS else None
    if is_spent(certificate_info(kept.pair.certificate), now):
        issued = issue(hosts, now, LIFE_SECONDS)
        return Kept(kept.pair, _bundle((*authorities, issued.authority), now), issued.pair)
    good = _bundle(authorities, now)
    return Kept(kept.pair, good) if good != kept.authorities else None


def is_spent(facts: CertificateInfo, now: float) -> bool:
    """Whether so much of a life is over that it is time for the next one."""
    return now >= facts.begins + (facts.ends - facts.begins) * SPENT_SHARE


def _is_usable(pair: KeyPair, authorities: tuple[bytes, ...], hosts: tuple[str, ...], now: float) -> bool:
    """Whether those who trust these authorities take the pair for one of these hosts now."""
    try:
        check(pair)
        facts = certificate_info(pair.certificate)
        vouchers = issuers_of(pair.certificate, unexpired(authorities, now))
    except ValueError:
        return False
    return facts.ends > now and facts.names >= frozenset(hosts) and bool(vouchers)


def _bundle(authorities: tuple[bytes, ...], now: float) -> bytes:
    return b"".join(unexpired(dict.fromkeys(authorities), now))


def _readable(bundle: bytes) -> tuple[bytes, ...]:
    """The authorities of a bundle; none if somebody has spoilt it."""
    try:
        return authorities_in(bundle)
    except ValueError:
        return ()
