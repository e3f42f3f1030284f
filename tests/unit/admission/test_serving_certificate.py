"""Which certificate a process serves, when it serves another one, and which authorities it publishes."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from gracectl.admission.files import FileCertificate
from gracectl.admission.serving_certificate import RETAINED_SECONDS, SETTLING_SECONDS, Material, ServingCertificate
from gracectl.admission.settings import CertificateFiles
from gracectl.runtime.certificates import Issued, KeyPair, issue
from gracectl.runtime.clock import LoopClock

HOSTS = ("gracectl.infra.svc",)


def never(authority: bytes) -> float:
    return 0.0


def always(authority: bytes) -> float:
    return SETTLING_SECONDS


def made(clock: LoopClock, life: float = 86_400.0, hosts: tuple[str, ...] = HOSTS) -> Issued:
    return issue(hosts, clock.now(), life)


def material(issued: Issued, *more: Issued) -> Material:
    return Material(issued.pair, b"".join(each.authority for each in (issued, *more)))


async def test_the_first_certificate_is_shown_at_once() -> None:
    clock = LoopClock()
    identity, first = ServingCertificate(clock, never, HOSTS), made(clock)
    assert not identity.is_good()
    assert identity.bundle() == b""
    assert identity.offer(material(first))
    assert identity.served == first.pair
    assert identity.is_good()
    assert identity.bundle() == first.authority


async def test_only_tls_of_today_is_spoken() -> None:
    assert ServingCertificate(LoopClock(), never).context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_one_of_a_new_authority_is_shown_when_clients_have_trusted_that_for_long_enough() -> None:
    clock = LoopClock()
    first, second = made(clock), made(clock)
    trusted = {first.authority: 1e9}
    identity = ServingCertificate(clock, lambda authority: trusted.get(authority, 0.0), HOSTS)
    identity.offer(material(first))
    assert not identity.offer(material(second, first))
    assert set(identity.bundle().split(b"-----BEGIN")) == set((first.authority + second.authority).split(b"-----BEGIN"))
    trusted[second.authority] = SETTLING_SECONDS - 1
    assert not identity.offer(material(second, first))
    assert identity.served == first.pair
    trusted[second.authority] = SETTLING_SECONDS
    assert identity.offer(material(second, first))
    assert identity.served == second.pair


@pytest.mark.parametrize("why", ["expired", "for another host"])
async def test_nothing_is_waited_for_where_what_is_shown_is_of_no_use(why: str) -> None:
    clock = LoopClock()
    identity = ServingCertificate(clock, never, HOSTS)
    identity.offer(material(made(clock, life=10) if why == "expired" else made(clock, hosts=("other",))))
    await clock.sleep(10)
    assert not identity.is_good()
    assert identity.offer(material(made(clock)))


async def test_without_a_ca_bundle_nothing_waits() -> None:
    clock = LoopClock()
    identity, second = ServingCertificate(clock, never), made(clock)
    identity.offer(Material(made(clock).pair))
    assert identity.offer(Material(second.pair))
    assert (identity.served, identity.bundle()) == (second.pair, b"")


async def test_an_old_authority_stays_for_a_while_and_not_beyond_its_own_end() -> None:
    clock = LoopClock()
    identity, first, brief, second = (
        ServingCertificate(clock, always, HOSTS), made(clock), made(clock, life=100), made(clock),
    )  # fmt: skip
    identity.offer(material(first, brief))
    identity.offer(material(second))
    assert brief.authority in identity.bundle()
    await clock.sleep(101)
    assert identity.bundle() == first.authority + second.authority
    await clock.sleep(RETAINED_SECONDS)
    identity.offer(material(second))
    assert identity.bundle() == second.authority


async def test_what_cannot_be_used_replaces_nothing() -> None:
    clock = LoopClock()
    identity, first, second = ServingCertificate(clock, never, HOSTS), made(clock), made(clock)
    identity.offer(material(first))
    for bad in (
        KeyPair(second.pair.certificate, first.pair.key),
        KeyPair(b"", b""),
        KeyPair(second.pair.certificate, b"x"),
    ):
        with pytest.raises(ValueError, match=r"."):
            identity.offer(Material(bad, second.authority))
        assert identity.served == first.pair
    with pytest.raises(ValueError, match="PEM"):
        identity.offer(Material(second.pair, b"no bundle"))


def put(folder: Path, issued: Issued, *, key: bytes = b"") -> CertificateFiles:
    """Write it as cert-manager's Secrets are mounted."""
    (folder / "tls.crt").write_bytes(issued.pair.certificate)
    (folder / "tls.key").write_bytes(key or issued.pair.key)
    (folder / "ca.crt").write_bytes(issued.authority)
    return CertificateFiles(*(str(folder / name) for name in ("tls.crt", "tls.key", "ca.crt")))


async def test_changed_files_are_loaded_and_bad_pairs_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LoopClock()
    identity, first, second = ServingCertificate(clock, always), made(clock), made(clock)
    filed = FileCertificate(put(tmp_path, first), identity, clock)
    filed.reload()
    assert identity.served == first.pair
    put(tmp_path, second, key=first.pair.key)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            filed.reload()
    crt, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    assert caplog.messages == [
        f"certificate {crt}, key {key}: the key does not belong to the certificate; keeping the previous one"
    ]
    assert identity.served == first.pair
    put(tmp_path, second)
    filed.reload()
    assert identity.served == second.pair
    crt.unlink()
    with caplog.at_level(logging.WARNING):
        filed.reload()
    assert len(caplog.messages) == 2
    assert "No such file" in caplog.messages[1]
    assert identity.served == second.pair
