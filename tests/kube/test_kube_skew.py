"""The server's clock, learnt from dates of whole seconds."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from gracectl.kube.skew import SkewEstimate


class Laboratory:
    """A clock that is adjusted, and a server whose clock is ahead by `ahead`."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        self.offset = 0.0
        self.reports: list[float] = []
        self.estimate = SkewEstimate(self._adjust)
        self.true = 1_000_000.0

    def _adjust(self, offset: float) -> None:
        self.offset = offset
        self.reports.append(offset)

    def ask(self, number: int, round_trip: float = 0.02) -> None:
        """So many answers, 1.3 s apart."""
        for _ in range(number):
            self.true += 1.3
            date = formatdate(self.true + self.ahead, usegmt=True)
            self.estimate.observe(date, self.true + round_trip / 2 + self.offset, round_trip)


@pytest.mark.parametrize("ahead", [-3600.0, -2.6, 2.6, 40.0])
def test_a_difference_is_learnt_from_a_few_answers_to_within_a_second(ahead: float) -> None:
    laboratory = Laboratory(ahead)
    laboratory.ask(2)
    assert laboratory.reports == []
    laboratory.ask(20)
    assert len(laboratory.reports) == 1
    assert laboratory.offset == pytest.approx(ahead, abs=1.0)
    assert laboratory.estimate.offset == laboratory.offset


@pytest.mark.parametrize("ahead", [-0.9, 0.0, 0.9])
def test_noise_is_not_a_difference(ahead: float) -> None:
    laboratory = Laboratory(ahead)
    laboratory.ask(100)
    assert laboratory.reports == []


def test_a_clock_that_is_set_right_is_followed_both_ways() -> None:
    laboratory = Laboratory(30.0)
    laboratory.ask(10)
    laboratory.ahead = 0.0
    laboratory.ask(10)
    assert laboratory.reports == [pytest.approx(30.0, abs=1.0), 0.0]


def test_slow_answers_single_outliers_and_nonsense_say_nothing() -> None:
    laboratory = Laboratory(0.0)
    laboratory.ask(8)
    laboratory.ahead = 500.0
    laboratory.ask(20, round_trip=2.5)
    laboratory.ask(1)
    laboratory.estimate.observe("yesterday", 1_000_000.0, 0.01)
    laboratory.ahead = 0.0
    laboratory.ask(8)
    assert laboratory.reports == []
