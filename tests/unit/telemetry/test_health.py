"""Health checks, and their report."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from aiohttp.test_utils import make_mocked_request

from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.connections import BodyReader, Limits
from gracectl.telemetry.health import ALIVE, READY, Check, probes, report

NOW, LIMIT = 1000.0, 900.0
NO_BODIES = BodyReader(Limits(), LoopClock())


def test_a_line_for_each_check_and_one_that_failed_fails_all() -> None:
    good, bad = Check("loop", True, "turns"), Check("components", False, "b failed, of 3")
    assert report((good,)) == (True, "ok loop: turns\n")
    assert report((good, bad, good)) == (False, "ok loop: turns\nFAILED components: b failed, of 3\nok loop: turns\n")


async def test_each_path_has_its_checks() -> None:
    answers = probes(lambda: [Check("loop", True, "turns")], lambda: [Check("running", False, "stopping")])
    responses = {path: await answers[path](make_mocked_request("GET", path), NO_BODIES) for path in (ALIVE, READY)}
    assert {path: (answer.status, answer.text) for path, answer in responses.items()} == {
        "/healthz": (200, "ok loop: turns\n"),
        "/readyz": (503, "FAILED running: stopping\n"),
    }
    assert {answer.content_type for answer in responses.values()} == {"text/plain"}


async def test_a_check_that_cannot_be_made_has_failed_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterable[Check]:
        raise ZeroDivisionError("broken")

    answer = await probes(broken, broken)[ALIVE](make_mocked_request("GET", ALIVE), NO_BODIES)
    assert answer.status == 503
    assert "broken" not in (answer.text or "")
    assert "/healthz: unexpected failure" in caplog.text
