"""Who may read the board: by the headers that a browser sends, and a token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gracectl.cli.ui.access import Access, TokenError, TokenFile, host_name, is_loopback

TOKEN = "0123456789abcdef"
LOCAL = "127.0.0.1:8080"
BOUND = "127.0.0.1"


def status(access: Access, *, is_page: bool = False, needs_token: bool = True, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = access.refusal(named, is_page=is_page, needs_token=needs_token)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["localhost:8080", "localhost", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:1"])
def test_loopback_names_are_ours(host: str) -> None:
    assert status(Access.of(BOUND, (), None), Host=host) == 200


@pytest.mark.parametrize("host", [
    "", "evil.example.com", "evil.example.com:8080", "localhost.evil.example.com", "127.0.0.1.evil.example.com",
    "10.0.0.1:8080", "localhost@evil.example.com", "evil.example.com/localhost", "localhost:8080#", "localhost:abc",
    "[::1", "local host", "0.0.0.0:8080",
])  # fmt: skip
def test_other_hosts_are_refused_as_of_dns_rebinding(host: str) -> None:
    assert status(Access.of(BOUND, ("board.example.com",), None), Host=host) == 421


def test_a_missing_host_is_refused() -> None:
    assert status(Access.of(BOUND, (), None)) == 421


def test_further_names_and_the_bound_address_are_ours() -> None:
    access = Access.of("192.168.7.5", ("Board.example.com",), None)
    assert status(access, Host="board.example.com") == 200
    assert status(access, Host="192.168.7.5:8080") == 200
    assert status(access, Host="192.168.7.6:8080") == 421


@pytest.mark.parametrize("bound", [None, "0.0.0.0", "::"])
def test_a_server_on_all_addresses_takes_each_of_them_and_no_name(bound: str | None) -> None:
    access = Access.of(bound, (), None)
    assert status(access, Host="10.1.2.3:8080") == 200
    assert status(access, Host="[fd00::1]:8080") == 200
    assert status(access, Host="evil.example.com") == 421


@pytest.mark.parametrize(("origin", "expected"), [
    (f"http://{LOCAL}", 200), (f"https://{LOCAL}", 200), ("http://127.0.0.1:9999", 403),
    ("http://localhost:8080", 403), ("https://evil.example.com", 403), (f"http://{LOCAL}.evil.example.com", 403),
    (f"http://evil.example.com/{LOCAL}", 403), ("null", 403), ("", 403), ("file://", 403),
])  # fmt: skip
def test_origin_must_be_that_of_the_page(origin: str, expected: int) -> None:
    assert status(Access.of(BOUND, (), None), Host=LOCAL, Origin=origin) == expected


@pytest.mark.parametrize(("site", "mode", "is_page", "expected"), [
    ("same-origin", "cors", False, 200), ("none", "navigate", False, 200), ("same-site", "cors", False, 403),
    ("cross-site", "no-cors", False, 403), ("cross-site", "navigate", False, 403),
    ("cross-site", "navigate", True, 200), ("cross-site", "no-cors", True, 403),
])  # fmt: skip
def test_other_sites_may_lead_to_the_page_and_read_nothing(site: str, mode: str, is_page: bool, expected: int) -> None:
    access = Access.of(BOUND, (), None)
    assert status(access, is_page=is_page, Host=LOCAL, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode) == expected


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize(("header", "expected"), [
    (f"Bearer {TOKEN}", 200), (f"bearer  {TOKEN} ", 200), (f"Bearer {TOKEN}x", 401), ("Bearer ", 401), ("", 401),
    (f"Basic {TOKEN}", 401), (TOKEN, 401), ("Bearer \udcff", 401),
])  # fmt: skip
def test_only_the_token_admits(file: Path, header: str, expected: int) -> None:
    access = Access.of(BOUND, (), TokenFile(file))
    assert status(access, Host=LOCAL, Authorization=header) == expected


def test_the_page_needs_no_token_as_it_has_no_data(file: Path) -> None:
    assert status(Access.of(BOUND, (), TokenFile(file)), needs_token=False, Host=LOCAL) == 200


def test_a_token_that_is_changed_counts_at_once_and_one_that_is_gone_admits_nothing(file: Path) -> None:
    token = TokenFile(file)
    assert token.matches(TOKEN)
    file.write_text("another token of mine")
    os.utime(file, (1, 1))
    assert not token.matches(TOKEN)
    assert token.matches("another token of mine")
    file.write_text("short")
    assert not token.matches("short")
    file.unlink()
    assert not token.matches("another token of mine")
    file.write_text(TOKEN)
    assert token.matches(TOKEN)


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot be read: No such file or directory"),
    (b"", "has no token of 16 to 4096 visible characters"),
    (b"short", "has no token of 16 to 4096 visible characters"),
    (b"a" * 5000, "has no token of 16 to 4096 visible characters"),
    (b"two\nlines of a token", "has no token of 16 to 4096 visible characters"),
    (b"\xff" * 20, "is no text"),
])  # fmt: skip
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TokenError, match=message):
        TokenFile(path)


@pytest.mark.parametrize(
    ("host", "name"), [("a.b:1", "a.b"), ("[::1]:2", "::1"), ("A", "a"), ("a/b", None), ("a b", "a b"), ("a:x", None)]
)
def test_the_name_in_a_host_header(host: str, name: str | None) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(("host", "expected"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), (None, False),
])  # fmt: skip
def test_loopback(host: str | None, expected: bool) -> None:
    assert is_loopback(host) is expected
