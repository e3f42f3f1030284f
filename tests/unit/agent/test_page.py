"""docs/agent.md: what it says of the example is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from support.shutdowns import BY_KEP

from gracectl.agent.agent import rights
from gracectl.agent.settings import GATE, AgentSettings
from gracectl.model.names import EventReason
from gracectl.policy.shutdown import ShutdownView, begin
from gracectl.policy.waves import by_priority

PAGE = (Path(__file__).parents[3] / "docs" / "agent.md").read_text()
ORDER = by_priority(
    [(each["priority"], each["shutdownGracePeriodSeconds"]) for each in BY_KEP["shutdownGracePeriodByPodPriority"]]
)


def at(minutes_and_seconds: str) -> int:
    minutes, seconds = minutes_and_seconds.split(":")
    return int(minutes) * 60 + int(seconds)


def test_the_table_of_the_example_is_what_is_decided() -> None:
    rows = re.findall(r"^\| (.+?) \| (\d+) s \| (\d+:\d\d) \| (\d+:\d\d) \|$", PAGE, re.M)
    assert len(rows) == len(ORDER.waves)
    over = 0
    for (words, period, begins, ends), wave in zip(rows, ORDER.waves, strict=True):
        assert f"priority {words}".startswith(wave.name)
        assert (int(period), at(begins), at(ends)) == (wave.period, over, over + wave.period)
        over = at(ends)


def test_the_shares_of_too_short_a_delay_are_what_is_decided() -> None:
    match = re.search(
        r"Of (\d+) s instead of (\d+) the ranges of the example have (\d+), (\d+), (\d+)\nand (\d+)", PAGE
    )
    assert match is not None
    available, total, *shares = map(int, match.groups())
    assert total == ORDER.total
    assert begin(ORDER, available, ShutdownView((), 0.0, 0.0)).periods == tuple(map(float, shares))


def test_the_rights_are_those_that_are_asked_for() -> None:
    (paragraph,) = re.findall(r"^## Rights\n(.+?)\. They", PAGE, re.M | re.S)
    named = {
        f"{verb} {resource}"
        for verbs, resource in re.findall(r"`([a-z ]+)` ([a-z/]+)", paragraph)
        for verb in verbs.split()
    }
    assert named == {str(right) for right in rights(impersonates=False)}


def test_every_event_of_a_machine_is_named() -> None:
    ours = [reason for reason in EventReason if "Shutdown" in reason]
    assert [reason for reason in ours if reason not in PAGE] == []


def test_the_names_of_settings_are_those_of_the_program() -> None:
    assert f"`featureGates.{GATE}`" in PAGE
    fields = AgentSettings.__struct_encode_fields__
    assert [field for field in fields if f"`agent.{field}`" not in PAGE] == []
