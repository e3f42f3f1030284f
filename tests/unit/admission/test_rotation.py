"""Rotation of our own certificate: each write by itself, and no client refuses a server at any time."""

from __future__ import annotations

import random

import pytest

from gracectl.admission.rotation import LIFE_SECONDS, SETTLING_SECONDS, CertificateState, first_state, next_state
from gracectl.runtime.certificates import KeyPair, authorities_in, certificate_info, issue, issuers_of

NOW = 1_767_225_600.0
DAY = 86_400.0
HOSTS = ("gracectl.infra.svc", "gracectl.infra.svc.cluster.local")
SPENT = NOW + 61 * DAY


def is_trusted(pair: KeyPair, bundle: bytes, now: float) -> bool:
    """What an API server with this bundle says to the pair."""
    facts = certificate_info(pair.certificate)
    vouchers = issuers_of(pair.certificate, authorities_in(bundle))
    return facts.begins <= now < facts.ends and any(certificate_info(each).ends > now for each in vouchers)


def test_the_first_one_is_good_for_ninety_days_and_left_alone_for_sixty() -> None:
    kept = first_state(HOSTS, NOW)
    facts = certificate_info(kept.pair.certificate)
    assert (facts.names, facts.ends) == (frozenset(HOSTS), NOW + LIFE_SECONDS)
    assert LIFE_SECONDS == 90 * DAY
    assert is_trusted(kept.pair, kept.authorities, NOW)
    for day in (0, 30, 59):
        assert next_state(kept, HOSTS, NOW + day * DAY, trusted_for=1e9) is None


def test_it_is_replaced_in_two_writes_the_second_when_all_know_the_authority() -> None:
    first = first_state(HOSTS, NOW)
    second = next_state(first, HOSTS, SPENT, trusted_for=1e9)
    assert second is not None
    assert second.pair == first.pair
    assert second.upcoming is not None
    assert is_trusted(second.upcoming, second.authorities, SPENT)
    assert is_trusted(first.pair, second.authorities, SPENT)
    assert next_state(second, HOSTS, SPENT, trusted_for=SETTLING_SECONDS - 1) is None
    third = next_state(second, HOSTS, SPENT, trusted_for=SETTLING_SECONDS)
    assert third == CertificateState(second.upcoming, second.authorities)
    assert next_state(third, HOSTS, SPENT, trusted_for=1e9) is None
    # The old authority goes when no served certificate is signed by it any more.
    fourth = next_state(third, HOSTS, NOW + 90 * DAY, trusted_for=1e9)
    assert fourth is not None
    assert fourth.pair == third.pair
    assert authorities_in(fourth.authorities) == issuers_of(third.pair.certificate, authorities_in(third.authorities))


def test_what_is_of_no_use_is_replaced_at_once_and_its_authority_still_trusted() -> None:
    first = first_state(HOSTS, NOW)
    other = issue(HOSTS, NOW, LIFE_SECONDS)
    for pair in (KeyPair(first.pair.certificate, other.pair.key), KeyPair(b"", b""), other.pair):
        mended = next_state(CertificateState(pair, first.authorities), HOSTS, NOW, trusted_for=0)
        assert mended is not None
        assert mended.upcoming is None
        assert is_trusted(mended.pair, mended.authorities, NOW)
        assert first.authorities in mended.authorities
    moved = next_state(first, ("elsewhere.infra.svc",), NOW, trusted_for=0)
    assert moved is not None
    assert certificate_info(moved.pair.certificate).names == {"elsewhere.infra.svc"}
    late = next_state(first, HOSTS, NOW + 91 * DAY, trusted_for=0)
    assert late is not None
    assert authorities_in(late.authorities) == issuers_of(late.pair.certificate, authorities_in(late.authorities))


def test_an_upcoming_pair_takes_the_place_of_one_that_is_lost_and_goes_if_it_is_none_itself() -> None:
    laid = next_state(first_state(HOSTS, NOW), HOSTS, SPENT, trusted_for=0)
    assert laid is not None
    assert laid.upcoming is not None
    lost = CertificateState(KeyPair(b"", b""), laid.authorities, laid.upcoming)
    assert next_state(lost, HOSTS, SPENT, trusted_for=0) == CertificateState(laid.upcoming, laid.authorities)
    spoilt = CertificateState(laid.pair, laid.authorities, KeyPair(laid.upcoming.certificate, laid.pair.key))
    assert next_state(spoilt, HOSTS, SPENT, trusted_for=0) == CertificateState(laid.pair, laid.authorities)


def test_a_damaged_bundle_is_made_anew() -> None:
    first = first_state(HOSTS, NOW)
    mended = next_state(CertificateState(first.pair, b"spoilt"), HOSTS, NOW, trusted_for=0)
    assert mended is not None
    assert is_trusted(mended.pair, mended.authorities, NOW)


@pytest.mark.seeds(3)
def test_over_years_no_client_with_a_known_bundle_refuses_what_is_served(seed: int) -> None:
    """Replicas read the Secret up to ten seconds late, servers know a bundle only SETTLING_SECONDS after it was told;
    leaders come and go, and with them what is known of how long a bundle has been told."""
    rng = random.Random(seed)
    now, kept = NOW, first_state(HOSTS, NOW)
    told, told_since = kept.authorities, NOW - 1e9
    trusted = kept.authorities
    while now < NOW + 400 * DAY:
        now += rng.choice((15.0, 15.0, 15.0, 5 * DAY))
        if now - told_since >= SETTLING_SECONDS:
            trusted = told
        watched_since = told_since if rng.random() < 0.8 else now
        trusted_for = now - watched_since if told == kept.authorities else 0.0
        before = kept
        kept = next_state(kept, HOSTS, now, trusted_for) or kept
        if rng.random() < 0.2:
            continue  # killed after the write, before the process knew of it
        for shown in (before.pair, kept.pair):
            assert is_trusted(shown, trusted, now)
        if told != kept.authorities:
            told, told_since = kept.authorities, now
