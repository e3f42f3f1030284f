"""Reloading the settings file: which settings count when, and that no half-written file is applied."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gracectl.app.settings_reload import SettingsReloader, reload_checks, reload_samples
from gracectl.config import Settings, load_settings
from gracectl.config.changes import AGENT_SCOPE, CONTROLLER_SCOPE, ReloadScope, differences
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running


class Followed:
    """A follower of a file, and what it has handed on, at which instant."""

    def __init__(
        self, file: Path, scope: ReloadScope = CONTROLLER_SCOPE, environ: dict[str, str] | None = None
    ) -> None:
        self.file = file
        self.clock = LoopClock()
        self.taken: list[tuple[float, Settings]] = []
        self.environ = environ or {}
        self.follower = SettingsReloader(self.read, self.read(), self.clock, scope, self.take)

    def read(self) -> Settings:
        return load_settings(self.file, self.environ)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def remove(self) -> None:
        self.file.unlink()

    def take(self, settings: Settings) -> None:
        self.taken.append((self.clock.monotonic(), settings))

    @property
    def rates(self) -> list[tuple[float, float]]:
        return [(instant, settings.eviction.qps) for instant, settings in self.taken]

    @property
    def samples(self) -> dict[str, float]:
        samples = reload_samples(self.follower)
        return {each.metric.name: each.value for each in samples if isinstance(each.value, int | float)}

    @property
    def words(self) -> list[str]:
        return [check.reason for check in reload_checks(self.follower)]


def mount(folder: Path) -> None:
    for version, text in (("..1", "eviction: {qps: 1}"), ("..2", "eviction: {qps: 2}")):
        (folder / version).mkdir()
        (folder / version / "config.yaml").write_text(text)
    (folder / "..data").symlink_to("..1")
    (folder / "config.yaml").symlink_to("..data/config.yaml")


def swap(folder: Path) -> None:
    (folder / "..data_tmp").symlink_to("..2")
    (folder / "..data_tmp").rename(folder / "..data")
    (folder / "..1" / "config.yaml").unlink()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: 1}\n")
    return file


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@asynccontextmanager
async def followed(file: Path, scope: ReloadScope = CONTROLLER_SCOPE, **environ: str) -> AsyncIterator[Followed]:
    one = Followed(file, scope, environ)
    async with while_running(one.follower.run):
        await anyio.wait_all_tasks_blocked()
        yield one


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_what_has_changed_counts_a_second_after_it_was_seen(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with followed(file) as one:
        await one.clock.sleep(7)
        one.write("eviction: {qps: 2, burst: 7}\nnodeGroups: [{selector: {matchLabels: {a: b}}}]")
        await one.clock.sleep(60)
        assert one.rates == [(11.0, 2.0)]
        assert told(caplog) == [
            (
                "INFO",
                "settings changed: nodeGroups, eviction.qps (1 before, 2 now), eviction.burst (100 before, 7 now)",
            )
        ]
        assert one.samples == {"gracectl_settings_refused": 0, "gracectl_settings_restart_needed": 0}
        assert one.words == []


async def test_a_file_that_is_being_written_does_not_count_before_it_is_whole(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(file) as one:
        await one.clock.sleep(4.9)
        one.write("")  # what an editor leaves for a moment, and a valid file
        await one.clock.sleep(0.6)
        one.write("eviction: {qps:")
        await one.clock.sleep(1.4)
        one.write("eviction: {qps: 3}")
        await one.clock.sleep(60)
        assert one.rates == [(11.0, 3.0)]
        assert [level for level, _ in told(caplog)] == ["INFO"]


async def test_the_swap_of_a_link_is_seen(tmp_path: Path) -> None:
    """As a kubelet does it: config.yaml -> ..data/config.yaml, ..data -> ..2026_01, and `..data` is renamed over."""
    mount(tmp_path)
    async with followed(tmp_path / "config.yaml") as one:
        swap(tmp_path)
        await one.clock.sleep(60)
        assert one.rates == [(6.0, 2.0)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("eviction: {qps: -2}", "eviction.qps: Expected `float` >= 0.0, got -2"),
        ("eviction: {qps", "is not YAML: while parsing"),
        ("eviction: {qsp: 2}", "eviction: Object contains unknown field `qsp`; did you mean qps?"),
        (None, "cannot be read: No such file or directory"),
    ],
)
async def test_what_cannot_be_used_changes_nothing_and_is_told_once(
    file: Path, caplog: pytest.LogCaptureFixture, text: str | None, complaint: str
) -> None:
    async with followed(file) as one:
        if text is None:
            one.remove()
        else:
            one.write(text)
        await one.clock.sleep(600)
        assert one.rates == []
        [(level, message)] = told(caplog)
        assert level == "ERROR"
        assert message.startswith(
            f"invalid settings file: keeping previous settings: settings file {file}: {complaint}"
        )
        assert one.samples == {"gracectl_settings_refused": 1, "gracectl_settings_restart_needed": 0}
        [words] = one.words
        assert complaint in words
        caplog.clear()
        one.write("eviction: {qps: 1}")
        await one.clock.sleep(60)
        assert told(caplog) == [("INFO", "settings file: valid again")]
        assert (one.rates, one.words) == ([], [])
        one.write("eviction: {qps: 4}")
        await one.clock.sleep(60)
        assert [rate for _, rate in one.rates] == [4.0]


async def test_another_mistake_is_told_as_well(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with followed(file) as one:
        for text in ("eviction: {qps: -2}", "eviction: {qps: -3}", "eviction: {qps: -2}"):
            one.write(text)
            await one.clock.sleep(60)
        assert [level for level, _ in told(caplog)] == ["ERROR"] * 3


async def test_what_needs_a_restart_is_named_once_for_each_change_and_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(file) as one:
        one.write("eviction: {qps: 1}\nmetrics: {listen: ':9090'}\nprovider: {options: {a: b}}")
        await one.clock.sleep(600)
        assert one.taken == []
        assert told(caplog) == [
            (
                "WARNING",
                "settings changed, restart needed: provider.options, metrics.listen ('' before, ':9090' now)",
            )
        ]
        assert one.samples == {"gracectl_settings_refused": 0, "gracectl_settings_restart_needed": 1}
        assert one.words == ["restart needed for provider.options, metrics.listen"]
        caplog.clear()
        one.write("eviction: {qps: 2}\nmetrics: {listen: ':9090'}\nprovider: {options: {a: b}}")
        await one.clock.sleep(60)
        [(_, settings)] = one.taken
        assert (settings.eviction.qps, settings.metrics.listen, settings.provider.options) == (2.0, "", {})
        assert [level for level, _ in told(caplog)] == ["INFO"]  # the rest was told already
        caplog.clear()
        one.write("eviction: {qps: 2}")
        await one.clock.sleep(60)
        message = "settings: as running again, no restart needed"
        assert told(caplog) == [("INFO", message)]
        assert one.samples["gracectl_settings_restart_needed"] == 0


async def test_what_means_nothing_to_a_program_is_no_reason_to_restart_it(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(file) as one:
        one.write("eviction: {qps: 1}\nagent: {busAddress: 'unix:path=/x'}\nfeatureGates: {}")
        await one.clock.sleep(60)
        assert (one.taken, told(caplog)) == ([], [])
    async with followed(file, AGENT_SCOPE) as one:
        one.write("eviction: {qps: 2}\nhealth: {force: true}\nagent: {busAddress: 'unix:path=/y'}")
        await one.clock.sleep(60)
        assert one.taken == []
        [(level, message)] = told(caplog)
        assert level == "WARNING"
        assert message.endswith(
            ": eviction.qps (1 before, 2 now), agent.busAddress ('unix:path=/x' before, 'unix:path=/y' now)"
        )


async def test_a_variable_beats_the_file_whatever_becomes_of_that(file: Path) -> None:
    async with followed(file, GRACECTL__EVICTION__QPS="9") as one:
        one.write("eviction: {qps: 5, burst: 3}")
        await one.clock.sleep(60)
        [(_, settings)] = one.taken
        assert (settings.eviction.qps, settings.eviction.burst) == (9.0, 3)


async def test_the_level_of_the_log_changes_and_its_format_does_not(file: Path) -> None:
    before = logging.getLogger().level
    try:
        async with followed(file) as one:
            one.write("eviction: {qps: 1}\nlog: {level: error, format: json}")
            await one.clock.sleep(60)
            assert logging.getLogger().level == logging.ERROR
            [(_, settings)] = one.taken
            assert (settings.log.level, settings.log.format) == ("error", "auto")
            assert one.follower.statistics().pending == ("log.format",)
    finally:
        logging.getLogger().setLevel(before)


def test_a_difference_is_told_as_a_whole_where_the_whole_may_be_left_out() -> None:
    before = Settings()
    after = load_settings(None, {"GRACECTL__ADMISSION__SERVICE": "{name: a}", "GRACECTL__LOG__LEVEL": "debug"})
    assert [str(each) for each in differences(before, after)] == [
        "log.level ('info' before, 'debug' now)",
        "admission.service",
    ]
    assert differences(after, after) == ()
