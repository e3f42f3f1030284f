"""Rotation of the self-made certificate, in two writes, so that no client ever rejects it.

First the next pair is stored, and its authority joins the bundle; when all clients have had time to read that, the next
pair replaces the present one. In between, and if the leader changes, everything works as before: the state is in the
Secret, and the next leader continues. Instants are seconds since the epoch.
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
ROTATION_SHARE: Final = 2 / 3
"""Share of its lifetime after which a certificate is rotated; a month is left for a controller that does not run."""
SETTLING_SECONDS: Final = 60.0
"""From when the webhook configurations have an authority until every API server has read it."""


class CertificateState(msgspec.Struct, frozen=True):
    """Stored certificates: the pair that is served, the one that comes next, and the authorities to trust (PEM)."""

    pair: KeyPair
    authorities: bytes
    upcoming: KeyPair | None = None


def first_state(hosts: tuple[str, ...], now: float) -> CertificateState:
    """First state of all."""
    issued = issue(hosts, now, LIFE_SECONDS)
    return CertificateState(issued.pair, issued.authority)


def next_state(
    state: CertificateState, hosts: tuple[str, ...], now: float, trusted_for: float
) -> CertificateState | None:
    """State that replaces `state`; None: it may stay.

    `trusted_for`: seconds for which all clients have had `state.authorities`.
    """
    authorities = _readable(state.authorities)
    if not _is_valid(state.pair, authorities, hosts, now):
        # The present pair is invalid anyway: use the next one if it is valid, else a new one, at once.
        if state.upcoming is not None and _is_valid(state.upcoming, authorities, hosts, now):
            return CertificateState(state.upcoming, state.authorities)
        issued = issue(hosts, now, LIFE_SECONDS)
        return CertificateState(issued.pair, _bundle((*authorities, issued.authority), now))
    if state.upcoming is not None:
        if not _is_valid(state.upcoming, authorities, hosts, now):
            return CertificateState(state.pair, state.authorities)
        return CertificateState(state.upcoming, state.authorities) if trusted_for >= SETTLING_SECONDS else None
    if is_due(certificate_info(state.pair.certificate), now):
        issued = issue(hosts, now, LIFE_SECONDS)
        return CertificateState(state.pair, _bundle((*authorities, issued.authority), now), issued.pair)
    valid = _bundle(authorities, now)
    return CertificateState(state.pair, valid) if valid != state.authorities else None


def is_due(info: CertificateInfo, now: float) -> bool:
    """Whether a certificate is due for rotation."""
    return now >= info.begins + (info.ends - info.begins) * ROTATION_SHARE


def _is_valid(pair: KeyPair, authorities: tuple[bytes, ...], hosts: tuple[str, ...], now: float) -> bool:
    """Whether clients that trust these authorities accept the pair for these hosts now."""
    try:
        check(pair)
        info = certificate_info(pair.certificate)
        issuers = issuers_of(pair.certificate, unexpired(authorities, now))
    except ValueError:
        return False
    return info.ends > now and info.names >= frozenset(hosts) and bool(issuers)


def _bundle(authorities: tuple[bytes, ...], now: float) -> bytes:
    return b"".join(unexpired(dict.fromkeys(authorities), now))


def _readable(bundle: bytes) -> tuple[bytes, ...]:
    """Authorities of a bundle; none if it is invalid."""
    try:
        return authorities_in(bundle)
    except ValueError:
        return ()
