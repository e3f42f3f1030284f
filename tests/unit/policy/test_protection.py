"""Protection: the whole grammar, the fail-safe, the reference instant, the administrator's cap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_pod

from gracectl.model import names
from gracectl.model.durations import parse_seconds
from gracectl.model.pod import LONGEST_DURATION
from gracectl.policy import protection as module
from gracectl.policy.protection import asks_for_protection, invalid_annotation, printable, protection_of
from gracectl.policy.settings import ProtectionSettings

SETTINGS = ProtectionSettings()


@pytest.mark.parametrize(("value", "seconds"), [
    ("4h", 14400), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("+1h", 3600), ("90s", 90), ("1h0m0.5s", 3600.5),
])  # fmt: skip
def test_a_duration_protects_from_creation_until_exactly_its_end(value: str, seconds: float) -> None:
    pod = a_pod(annotations={names.DO_NOT_DISRUPT: value}, created=NOW)
    protection = protection_of(pod, NOW + seconds - 0.001, SETTINGS)
    assert protection is not None
    assert (protection.until, protection.is_valid) == (NOW + seconds, True)
    assert protection_of(pod, NOW + seconds, SETTINGS) is None


def test_the_whole_grammar_of_go_is_understood_and_nothing_else() -> None:
    """What Go's own time.ParseDuration answered to hundreds of texts: a positive duration protects for that long, all
    others (refused, zero, negative) for ever."""
    rows = msgspec.json.decode((Path(__file__).parents[3] / "kubesim/tests/oracles/go-durations.json").read_bytes())
    seen = {True: 0, False: 0}
    for row in rows:
        pod = a_pod(annotations={names.DO_NOT_DISRUPT: row["in"]}, created=0.0)
        nanoseconds = None if row["ns"] is None else int(row["ns"])
        if row["in"] == "true":
            continue
        is_duration = nanoseconds is not None and nanoseconds > 0 and len(row["in"]) <= LONGEST_DURATION
        protection = protection_of(pod, -1.0, SETTINGS)
        assert protection is not None
        assert protection.is_valid == is_duration, row
        assert protection.until == (nanoseconds / 10**9 if is_duration and nanoseconds else None), row
        seen[is_duration] += 1
    assert min(seen.values()) > 50


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that are parsed as durations while the test runs."""
    texts: list[str] = []

    def counted(text: str) -> float:
        texts.append(text)
        return parse_seconds(text)

    monkeypatch.setattr(module, "parse_seconds", counted)
    module._seconds_of.cache_clear()
    yield texts
    module._seconds_of.cache_clear()


def test_a_duration_longer_than_any_that_is_meant_protects_for_ever_and_is_never_parsed(parses: list[str]) -> None:
    longest = "1h" * (LONGEST_DURATION // 2)
    for value, is_valid in ((longest, True), (longest + "s", False), ("1ns" * 87_000, False)):
        pod = a_pod(annotations={names.DO_NOT_DISRUPT: value}, created=NOW)
        protection = protection_of(pod, NOW, SETTINGS)
        assert protection is not None
        assert (protection.is_valid, protection.until is not None) == (is_valid, is_valid)
        assert invalid_annotation(pod) == (None if is_valid else value)
    assert parses == [longest]


def test_each_of_many_values_is_parsed_once_however_often_it_is_asked_for(parses: list[str]) -> None:
    pods = [a_pod(annotations={names.DO_NOT_DISRUPT: f"{n}h"}, created=NOW) for n in range(1, 5001)]
    for _scrape in range(3):
        assert all(protection_of(pod, NOW, SETTINGS) for pod in pods)
    assert len(parses) == 5000


def test_counted_from_the_start_a_pod_that_has_not_started_is_protected_without_a_known_end() -> None:
    settings = ProtectionSettings(reference="start")
    pod = a_pod(annotations={names.DO_NOT_DISRUPT: "1h"}, created=NOW - 7200, started=None)
    protection = protection_of(pod, NOW, settings)
    assert protection is not None
    assert protection.until is None
    started = a_pod(annotations={names.DO_NOT_DISRUPT: "1h"}, created=NOW - 7200, started=NOW - 10)
    protection = protection_of(started, NOW, settings)
    assert protection is not None
    assert protection.until == NOW - 10 + 3600


@pytest.mark.parametrize("value", ["true", "nonsense", "10h"])
def test_the_administrator_caps_every_protection(value: str) -> None:
    settings = ProtectionSettings(maximum_seconds=3600)
    pod = a_pod(annotations={names.DO_NOT_DISRUPT: value}, created=NOW)
    assert protection_of(pod, NOW + 3599, settings) is not None
    assert protection_of(pod, NOW + 3600, settings) is None
    held = a_pod(labels={names.DO_NOT_EVICT: "true"}, created=NOW)
    assert protection_of(held, NOW + 3599, settings) is not None
    assert protection_of(held, NOW + 3600, settings) is None


@pytest.mark.parametrize(("value", "maximum", "until", "is_capped"), [
    ("1h", 3600, 3600, False), ("1h", 3599, 3599, True), ("1h", None, 3600, False), ("true", None, None, False),
    ("true", 60, 60, True), ("nonsense", 60, 60, True),
])  # fmt: skip
def test_what_ends_a_protection(value: str, maximum: float | None, until: float | None, is_capped: bool) -> None:
    pod = a_pod(annotations={names.DO_NOT_DISRUPT: value}, created=NOW)
    protection = protection_of(pod, NOW, ProtectionSettings(maximum_seconds=maximum))
    assert protection is not None
    assert protection.until == (None if until is None else NOW + until)
    assert protection.is_capped == is_capped
    assert ("protection.maximumSeconds" in protection.limit_note) == is_capped


@pytest.mark.parametrize(("value", "settings", "lasting"), [
    ("4h", SETTINGS, "time"), ("true", SETTINGS, "forever"), ("4 hours", SETTINGS, "invalid"),
    ("true", ProtectionSettings(maximum_seconds=60), "time"),
    ("4 hours", ProtectionSettings(maximum_seconds=60), "invalid"),
    ("4h", ProtectionSettings(reference="start"), "time"),  # it has not started, so its end is unknown
    ("true", ProtectionSettings(reference="start"), "forever"),
])  # fmt: skip
def test_how_long_a_protection_lasts(value: str, settings: ProtectionSettings, lasting: str) -> None:
    protection = protection_of(a_pod(annotations={names.DO_NOT_DISRUPT: value}, started=None), NOW - 3600, settings)
    assert protection is not None
    assert protection.lasting == lasting


@pytest.mark.parametrize("value", ["", "false", "0", "-1h", "4 hours", "x" * 300])
def test_an_invalid_value_is_known_also_beside_another_word(value: str) -> None:
    pod = a_pod(labels={names.DO_NOT_EVICT: "true"}, annotations={names.DO_NOT_DISRUPT: value})
    assert invalid_annotation(pod) == value
    assert len(printable(value)) <= 60


@pytest.mark.parametrize(("fields", "asks"), [
    ({}, False),
    ({"annotations": {names.MIRROR_POD: "x"}, "labels": {"app": "web"}}, False),
    ({"annotations": {names.DO_NOT_DISRUPT: "4h"}}, True),
    ({"annotations": {names.DO_NOT_EVICT: "false"}}, True),
    ({"labels": {names.DO_NOT_EVICT: "true"}}, True),
])  # fmt: skip
def test_a_pod_that_asks_for_protection_is_found_without_parsing_its_value(fields: dict[str, Any], asks: bool) -> None:
    pod = a_pod(**fields)
    assert asks_for_protection(pod) == asks
    assert asks or protection_of(pod, NOW, SETTINGS) is None
    assert invalid_annotation(pod) is None


@pytest.mark.parametrize(("annotations", "words"), [
    ({names.DO_NOT_DISRUPT: "true"}, "protected by do-not-disrupt"),
    ({names.DO_NOT_DISRUPT: "4h"}, 'protected by do-not-disrupt "4h"'),
    ({names.DO_NOT_EVICT: "yes"}, "protected by do-not-evict"),
    ({names.DO_NOT_DISRUPT: "4 hours"},
     'protected by do-not-disrupt "4 hours", which is not "true" or a duration, so it never ends'),
    ({names.DO_NOT_DISRUPT: "x" * 300},
     f'protected by do-not-disrupt "{"x" * 59}…", which is not "true" or a duration, so it never ends'),
])  # fmt: skip
def test_people_are_told_in_these_words(annotations: dict[str, str], words: str) -> None:
    protection = protection_of(a_pod(annotations=annotations), NOW - 3600, SETTINGS)
    assert protection is not None
    assert protection.description == words


def test_do_not_evict_is_looked_at_first_and_false_takes_it_back() -> None:
    both = a_pod(labels={names.DO_NOT_EVICT: "true"}, annotations={names.DO_NOT_DISRUPT: "true"})
    protection = protection_of(both, NOW, SETTINGS)
    assert protection is not None
    assert protection.kind == "do-not-evict"
    assert protection_of(a_pod(labels={names.DO_NOT_EVICT: "false"}), NOW, SETTINGS) is None
    assert protection_of(a_pod(), NOW, SETTINGS) is None
    contrary = a_pod(labels={names.DO_NOT_EVICT: "false"}, annotations={names.DO_NOT_EVICT: "true"})
    assert protection_of(contrary, NOW, SETTINGS) is not None
