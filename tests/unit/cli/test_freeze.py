"""`gracectl freeze` and `unfreeze` over HTTP: what they write, what they say, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.fleet import Fleet, fleet

from gracectl.model.times import format_time, parse_time

pytestmark = pytest.mark.real_time

UNTIL = "2126-12-27T06:00:00Z"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("freeze")) as found:
        yield found


def test_a_freeze_is_written_replaced_shown_and_ended(place: Fleet) -> None:
    result = place.run("freeze", "--until", UNTIL, "--reason", "release week")
    assert (result.exit_code, result.stderr) == (0, "")
    by = result.stdout.partition(" by ")[2].partition(" (")[0]
    frozen = f"frozen until {UNTIL} by {by} (release week)"
    assert result.stdout == f"{frozen}; nothing voluntary begins until then; gracectl unfreeze ends it earlier\n"
    # Repeated, it changes nothing.
    assert place.run("freeze", "--until", UNTIL, "--reason", "release week").stdout.startswith(
        f"{frozen}; before: {frozen}"
    )
    assert f"! {frozen}; nothing voluntary begins; run gracectl unfreeze to end it" in place.run("status").stdout
    shown = json.loads(place.run("status", "-o", "json").stdout)["freeze"]
    assert shown == {"until": UNTIL, "reason": "release week", "by": by, "message": frozen}
    result = place.run("freeze")
    assert result.stdout == f"frozen by {by}; before: {frozen}; nothing voluntary begins until gracectl unfreeze\n"
    result = place.run("unfreeze")
    assert (result.exit_code, result.stdout) == (0, f"no longer frozen; before: frozen by {by}\n")
    result = place.run("unfreeze")
    assert result.exit_code == 0
    assert result.stdout.startswith("not frozen: there is no ConfigMap ")
    assert "frozen" not in place.run("status").stdout
    assert json.loads(place.run("status", "-o", "json").stdout)["freeze"] is None


def test_a_duration_counts_from_now(place: Fleet) -> None:
    result = place.run("freeze", "--until", "8h")
    until = result.stdout.removeprefix("frozen until ").partition(" ")[0]
    assert format_time(parse_time(until)) == until
    place.run("unfreeze")


@pytest.mark.parametrize(("arguments", "message"), [
    (("--until", "tomorrow"), "--until: 'tomorrow' is no time; write 2026-12-27T06:00:00Z, or a duration such as 8h"),
    (("--until", "-8h"), "--until: '-8h' is no time; write 2026-12-27T06:00:00Z, or a duration such as 8h"),
    (("--until", "2020-01-01T00:00:00Z"), "--until: 2020-01-01T00:00:00Z has passed; it is 2"),
    (("--reason", "x" * 1025), "--reason: 1025 characters are more than 1024; shorten it"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(place: Fleet, arguments: tuple[str, ...], message: str) -> None:
    result = place.run("freeze", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert place.run("unfreeze").stdout.startswith("not frozen")


def test_an_unknown_namespace_is_named(place: Fleet) -> None:
    result = place.run("freeze", "-n", "nowhere")
    assert result.exit_code == 3
    assert "namespace nowhere: not found; name the namespace of the controller with --namespace" in result.stderr
