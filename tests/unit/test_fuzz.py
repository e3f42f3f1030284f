"""A few examples of each target in the ordinary suite; `make fuzz SECONDS=60` tries as many as it can."""

from __future__ import annotations

import re

import pytest
from fuzz.effort import TooMuchWork, assert_small, bounded_memory, bounded_work
from fuzz.run import tried
from fuzz.target import CORPUS, Target
from fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_is_worse_than_refused(target: Target) -> None:
    assert tried(target, examples=target.examples, is_random=False) > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_corpus_does_no_harm(target: Target) -> None:
    """Real shapes, and every input that has ever failed."""
    kept = target.kept()
    assert kept, f"{CORPUS / target.name} is empty"
    for _, each in kept:
        target(each)
        target.measure(each)


def test_every_directory_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in TARGETS}


def test_work_and_memory_are_counted() -> None:
    with pytest.raises(TooMuchWork), bounded_work(10):
        sum(abs(number) for number in range(1_000_000))
    with pytest.raises(TooMuchWork, match="of CPU time"), bounded_work(10, seconds=0.05):
        re.fullmatch(r"(a|a)*b", "a" * 200)
    with pytest.raises(AssertionError, match="are allocated for 10"), bounded_memory(10):
        bytes(10_000_000)
    with pytest.raises(AssertionError, match="are held of 10"):
        assert_small([str(number) for number in range(10_000)], 10)
