"""The server's clock, learnt from dates of whole seconds."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.kube.metrics import clock_checks
from gracectl.kube.transport.skew import CONFIRMED_SECONDS, SkewEstimate

YEAR_2099 = "Thu, 01 Jan 2099 00:00:00 GMT"


class Laboratory:
    """A clock that is adjusted, and a server whose clock is ahead by `ahead`."""

    def __init__(self, ahead: float, largest: float = 300.0) -> None:
        self.ahead = ahead
        self.offset = 0.0
        self.is_disputed = False
        self.reports: list[float] = []
        self.estimate = SkewEstimate(self._adjust, largest)
        self.true = 1_000_000.0

    def _adjust(self, offset: float, is_disputed: bool) -> None:
        self.offset, self.is_disputed = offset, is_disputed
        self.reports.append(offset)

    def disputed(self) -> bool:
        """Whether the clock shows a dispute."""
        return self.is_disputed

    def ask(self, number: int, round_trip: float = 0.02, missed: float = 0.0) -> None:
        """So many answers, 1.3 s apart."""
        for _ in range(number):
            self.true += 1.3
            self.hear(formatdate(self.true + self.ahead, usegmt=True), round_trip, missed)

    def hear(self, date: str, round_trip: float = 0.02, missed: float = 0.0) -> None:
        """One answer."""
        self.estimate.observe(date, self.true + round_trip / 2 + self.offset, round_trip, missed)


@pytest.mark.parametrize("ahead", [-290.0, -2.6, 2.6, 40.0])
def test_a_difference_is_learnt_from_a_few_answers_to_within_a_second(ahead: float) -> None:
    laboratory = Laboratory(ahead)
    laboratory.ask(2)
    assert laboratory.reports == []
    laboratory.ask(20)
    assert len(laboratory.reports) == 1
    assert laboratory.offset == pytest.approx(ahead, abs=1.0)
    assert laboratory.estimate.statistics().offset == laboratory.offset


@pytest.mark.parametrize("ahead", [-0.9, 0.0, 0.9])
def test_noise_is_not_a_difference(ahead: float) -> None:
    laboratory = Laboratory(ahead)
    laboratory.ask(100)
    assert laboratory.reports == []


def test_a_clock_that_is_set_right_is_followed_both_ways_once_that_has_lasted() -> None:
    laboratory = Laboratory(30.0)
    laboratory.ask(10)
    laboratory.ahead = 0.0
    laboratory.ask(int(CONFIRMED_SECONDS / 1.3))
    assert laboratory.reports == [pytest.approx(30.0, abs=1.0)]
    laboratory.ask(10)
    assert laboratory.reports == [pytest.approx(30.0, abs=1.0), 0.0]


def test_slow_answers_single_outliers_and_nonsense_say_nothing() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(8)
    laboratory.ahead = 250.0
    laboratory.ask(40, round_trip=2.5)
    laboratory.ask(1)
    laboratory.hear("yesterday")
    laboratory.ahead = 0.0
    laboratory.ask(8)
    assert laboratory.reports == []


@pytest.mark.parametrize("before", [0, 20])
def test_a_date_far_ahead_is_not_believed_and_disputes_clocks(before: int, caplog: pytest.LogCaptureFixture) -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(before)
    for number in range(200):
        laboratory.true += 1.3
        laboratory.hear(YEAR_2099)
        assert laboratory.is_disputed == (number >= 2)
    assert laboratory.offset == 0.0
    statistics = laboratory.estimate.statistics()
    assert statistics.refusals == 200
    (check,) = clock_checks(statistics)
    assert not check.is_ok
    assert "client.maximumClockOffsetSeconds (300): deadlines are paused" in check.reason
    laboratory.ask(9 + int(CONFIRMED_SECONDS / 1.3))
    assert laboratory.disputed()
    laboratory.ask(2)
    assert not laboratory.disputed()
    assert laboratory.offset == 0.0
    assert not list(clock_checks(laboratory.estimate.statistics()))
    assert [record.levelname for record in caplog.records if record.levelname != "INFO"] == ["ERROR"]


@pytest.mark.parametrize(("ahead", "counted"), [(-3600.0, -3600.0), (3600.0, 0.0), (-3.0e5, -3.0e5), (301.5, 0.0)])
def test_while_clocks_are_in_dispute_the_one_counts_by_which_less_time_has_passed(ahead: float, counted: float) -> None:
    laboratory = Laboratory(ahead)
    laboratory.ask(2)
    assert not laboratory.disputed()
    laboratory.ask(100)
    assert laboratory.disputed()
    assert laboratory.offset == pytest.approx(counted, abs=1.0)
    assert len(laboratory.reports) == 1
    assert "ahead of" in next(clock_checks(laboratory.estimate.statistics())).reason or ahead < 0


def test_of_two_servers_the_one_whose_clock_is_wrong_is_enough_for_a_dispute() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(20)
    for _ in range(30):
        laboratory.ahead = -3600.0
        laboratory.ask(1)
        laboratory.ahead = 0.0
        laboratory.ask(1)
    assert laboratory.disputed()
    assert laboratory.offset == pytest.approx(-3600.0, abs=1.0)


def test_two_odd_answers_are_no_dispute() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(20)
    laboratory.ahead = -3600.0
    laboratory.ask(2)
    laboratory.ahead = 0.0
    laboratory.ask(20)
    assert laboratory.reports == []


def test_a_date_before_the_epoch_is_no_instant_to_count_from() -> None:
    laboratory = Laboratory(0.0)
    for _ in range(5):
        laboratory.hear("Mon, 01 Jan 0001 00:00:00 GMT")
    assert laboratory.true + laboratory.offset >= 0.0


def test_a_jump_that_the_monotonic_clock_contradicts_is_not_believed_however_many_say_so_at_once() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(20)
    laboratory.ahead = 250.0
    for _ in range(500):
        laboratory.true += 0.05
        laboratory.hear(formatdate(laboratory.true + laboratory.ahead, usegmt=True))
    laboratory.ahead = 0.0
    laboratory.ask(100)
    assert laboratory.reports == []


def test_answers_that_contradict_each_other_change_nothing_however_long_they_do() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(20)
    for _ in range(20):
        laboratory.ahead = 250.0
        laboratory.ask(9)
        laboratory.ahead = 0.0
        laboratory.ask(9)
    assert laboratory.reports == []


def test_what_the_machine_knows_to_have_slept_is_believed_at_once_however_long_it_was() -> None:
    laboratory = Laboratory(40.0)
    laboratory.ask(20)
    laboratory.ahead += 7200.0
    laboratory.ask(5, missed=7200.0)
    assert laboratory.reports[1:] == [pytest.approx(7240.0, abs=1.0)]


@given(st.text(max_size=60) | st.from_regex(r"[A-Z][a-z]{2}, \d{1,6} [A-Z][a-z]{2} \d{1,30} \d+:\d+:\d+ [-+]\d{1,12}"))
def test_no_header_does_more_than_not_to_be_believed(date: str) -> None:
    laboratory = Laboratory(0.0)
    for _ in range(5):
        laboratory.hear(date)
    assert -laboratory.true <= laboratory.offset <= 300.0
