"""Certificates made here: what they say, which clients trust them, and pairs that do not match."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress

import pytest

from gracectl.runtime.certificates import (
    SKEW_SECONDS,
    CertificateInfo,
    KeyPair,
    authorities_in,
    certificate_info,
    issue,
    issuers_of,
    load,
    unexpired,
)
from gracectl.runtime.clock import SystemClock

NOW = 1_767_225_600.0
NAMES = ("gracectl.infra.svc", "gracectl.infra.svc.cluster.local", "127.0.0.1")


def handshake(server: ssl.SSLContext, bundle: bytes, host: str) -> str | None:
    """Shake hands in memory, as strictly as Python can; what the client does not like."""
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(5):
        try:
            theirs.do_handshake()
            return None
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        with suppress(ssl.SSLWantReadError):
            ours.do_handshake()
    raise AssertionError("the handshake has come to no end")


def served(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, pair)
    return context


def test_a_certificate_says_for_which_names_and_how_long() -> None:
    issued = issue(NAMES, NOW, 3600)
    assert certificate_info(issued.pair.certificate) == CertificateInfo(
        frozenset(NAMES), NOW - SKEW_SECONDS, NOW + 3600
    )
    assert certificate_info(issued.authority) == CertificateInfo(frozenset(), NOW - SKEW_SECONDS, NOW + 3600)


def test_a_client_of_the_authority_trusts_the_certificate_under_its_names_only() -> None:
    now = SystemClock().now()
    issued, other = issue(NAMES, now, 3600), issue(NAMES, now, 3600)
    context = served(issued.pair)
    assert [handshake(context, other.authority + issued.authority, name) for name in NAMES] == [None, None, None]
    assert "Hostname mismatch" in (handshake(context, issued.authority, "gracectl.other.svc") or "")
    assert handshake(context, other.authority, NAMES[0]) == "unable to get local issuer certificate"


def test_new_handshakes_show_what_was_loaded_last() -> None:
    now = SystemClock().now()
    first, second = issue(NAMES, now, 3600), issue(NAMES, now, 3600)
    context = served(first.pair)
    load(context, second.pair)
    assert handshake(context, second.authority, NAMES[0]) is None
    assert handshake(context, first.authority, NAMES[0]) is not None


def test_a_pair_is_loaded_where_there_are_no_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", forbidden)
    issued = issue(NAMES, SystemClock().now(), 3600)
    assert handshake(served(issued.pair), issued.authority, NAMES[0]) is None


def test_no_file_is_left_open() -> None:
    pair = issue(NAMES, NOW, 3600).pair
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        served(pair)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("broken", ["key of another", "no key", "no certificate", "locked key"])
def test_a_pair_that_is_none_changes_nothing(broken: str) -> None:
    now = SystemClock().now()
    good, other = issue(NAMES, now, 3600), issue(NAMES, now, 3600)
    locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    pair, why = {
        "key of another": (
            KeyPair(other.pair.certificate, good.pair.key),
            "the key does not belong to the certificate",
        ),
        "no key": (KeyPair(other.pair.certificate, b"no key"), "certificate and key cannot be read"),
        "no certificate": (KeyPair(b"", other.pair.key), "certificate and key cannot be read"),
        "locked key": (KeyPair(other.pair.certificate, locked), "certificate and key cannot be read"),
    }[broken]
    context = served(good.pair)
    with pytest.raises(ValueError, match=why):
        load(context, pair)
    assert handshake(context, good.authority, NAMES[0]) is None


def test_a_bundle_is_taken_apart_and_what_has_expired_is_left_out() -> None:
    old, new = issue(NAMES, NOW - 7200, 3600), issue(NAMES, NOW, 3600)
    bundle = old.authority + b"# a comment\n" + new.authority
    assert authorities_in(bundle) == (old.authority, new.authority)
    assert authorities_in(b" \n") == ()
    assert unexpired(authorities_in(bundle), NOW) == (new.authority,)
    with pytest.raises(ValueError, match="PEM"):
        authorities_in(b"no bundle")


def test_an_authority_of_a_certificate_has_signed_it_or_is_it() -> None:
    one, other = issue(NAMES, NOW, 3600), issue(NAMES, NOW, 3600)
    both = (one.authority, other.authority)
    assert issuers_of(one.pair.certificate, both) == (one.authority,)
    assert issuers_of(other.pair.certificate, (other.pair.certificate,)) == (other.pair.certificate,)
    assert issuers_of(other.pair.certificate, (one.authority,)) == ()
