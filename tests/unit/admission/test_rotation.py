"""The Secret of admission: each state by itself, and no client refuses a server at any time."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from gracectl.admission.rotation import AUTHORITY_LIFE_SECONDS, LIFE_SECONDS, CertificateState, next_state
from gracectl.admission.serving_certificate import SETTLING_SECONDS
from gracectl.runtime.certificates import KeyPair, authorities_in, certificate_info, issue, issuers_of

NOW = 1_767_225_600.0
DAY = 86_400.0
HOSTS = ("gracectl.infra.svc", "gracectl.infra.svc.cluster.local")
SPENT = NOW + 61 * DAY


def never(authority: bytes) -> float:
    return 0.0


def always(authority: bytes) -> float:
    return 1e9


def first_state() -> CertificateState:
    return next_state(CertificateState(), HOSTS, NOW, never)


def of_an_earlier_version(age: float = 0.0) -> CertificateState:
    """A pair, and its authority without a key."""
    issued = issue(HOSTS, NOW - age, LIFE_SECONDS)
    return CertificateState(issued.pair, issued.authority)


def is_trusted(pair: KeyPair, bundle: bytes, now: float) -> bool:
    """What an API server with this bundle says to the pair."""
    facts = certificate_info(pair.certificate)
    vouchers = issuers_of(pair.certificate, authorities_in(bundle))
    return facts.not_before <= now < facts.not_after and any(
        certificate_info(each).not_after > now for each in vouchers
    )


def test_the_first_one_is_good_for_ninety_days_and_its_authority_for_ten_years() -> None:
    kept = first_state()
    facts = certificate_info(kept.pair.certificate)
    assert (facts.names, facts.not_after) == (frozenset(HOSTS), NOW + LIFE_SECONDS)
    assert certificate_info(kept.authorities).not_after == NOW + AUTHORITY_LIFE_SECONDS == NOW + 3_650 * DAY
    assert is_trusted(kept.pair, kept.authorities, NOW)
    assert re.fullmatch("[0-9a-f]{32}", kept.segment)
    assert kept.segment != first_state().segment
    for day in (0, 30, 59):
        assert next_state(kept, HOSTS, NOW + day * DAY, never) == kept


def test_it_is_renewed_in_time_by_the_same_authority_and_path() -> None:
    first = first_state()
    second = next_state(first, HOSTS, SPENT, never)
    assert second.pair != first.pair
    assert second == msgspec.structs.replace(first, pair=second.pair)
    assert is_trusted(second.pair, first.authorities, SPENT)


def test_what_is_of_no_use_is_replaced_immediately() -> None:
    first = first_state()
    other = issue(HOSTS, NOW, LIFE_SECONDS)
    for pair in (KeyPair(first.pair.certificate, other.pair.key), KeyPair(b"", b""), other.pair):
        mended = next_state(msgspec.structs.replace(first, pair=pair), HOSTS, NOW, never)
        assert mended == msgspec.structs.replace(first, pair=mended.pair)
        assert is_trusted(mended.pair, first.authorities, NOW)
    moved = next_state(first, ("elsewhere.infra.svc",), NOW, never)
    assert certificate_info(moved.pair.certificate).names == {"elsewhere.infra.svc"}
    assert is_trusted(next_state(first, HOSTS, NOW + 91 * DAY, never).pair, first.authorities, NOW + 91 * DAY)


def test_a_certificate_never_outlives_its_authority() -> None:
    late = NOW + AUTHORITY_LIFE_SECONDS - 10 * DAY
    last = next_state(first_state(), HOSTS, late, never)
    assert certificate_info(last.pair.certificate).not_after == NOW + AUTHORITY_LIFE_SECONDS


@pytest.mark.parametrize("authority_key", [b"", b"spoilt", issue(HOSTS, NOW, 1e6).pair.key])
def test_a_new_authority_signs_only_when_it_is_trusted(authority_key: bytes) -> None:
    """So is the state of an earlier version, and one whose key was removed because it leaked."""
    before = msgspec.structs.replace(of_an_earlier_version(), authority_key=authority_key)
    joined = next_state(before, HOSTS, NOW, never)
    assert joined.pair == before.pair
    assert joined.authorities.startswith(before.authorities)
    assert len(authorities_in(joined.authorities)) == 2
    assert next_state(joined, HOSTS, NOW, lambda authority: SETTLING_SECONDS - 1) == joined
    new = authorities_in(joined.authorities)[1]
    after = next_state(joined, HOSTS, NOW, lambda authority: SETTLING_SECONDS if authority == new else 0.0)
    assert is_trusted(after.pair, new, NOW)
    assert authorities_in(after.authorities) == (new,)  # the old one signs nothing that is served
    assert next_state(after, HOSTS, NOW, never) == after


def test_a_pair_that_is_no_authority_signs_nothing() -> None:
    first = first_state()
    leaf = msgspec.structs.replace(first, authorities=first.pair.certificate, authority_key=first.pair.key)
    mended = next_state(leaf, HOSTS, NOW, never)
    assert mended.authority_key not in (first.pair.key, first.authority_key)
    assert is_trusted(next_state(mended, HOSTS, NOW, always).pair, mended.authorities, NOW)


def test_a_damaged_bundle_is_made_anew() -> None:
    mended = next_state(CertificateState(first_state().pair, b"spoilt"), HOSTS, NOW, never)
    assert is_trusted(mended.pair, mended.authorities, NOW)


@pytest.mark.seeds(3)
def test_over_years_no_client_with_a_known_bundle_refuses_what_is_served(seed: int) -> None:
    """An earlier version's Secret; the new authority is registered within 60 days. Servers know a bundle
    SETTLING_SECONDS after."""
    rng = random.Random(seed)
    now, kept = NOW, of_an_earlier_version()
    published, told_since, trusted = kept.authorities, NOW - 1e9, kept.authorities
    registers_at = NOW + rng.random() * 60 * DAY
    while now < NOW + 400 * DAY:
        now += rng.choice((15.0, 15.0, 15.0, 5 * DAY))
        if now - told_since >= SETTLING_SECONDS:
            trusted = published
        known = authorities_in(published)
        before = kept
        kept = next_state(kept, HOSTS, now, lambda each: now - told_since if each in known else 0.0)  # noqa: B023
        for shown in (before.pair, kept.pair):
            assert is_trusted(shown, trusted, now) or shown == before.pair != kept.pair
        if now >= registers_at and published != kept.authorities:
            published, told_since = kept.authorities, now
