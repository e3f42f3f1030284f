"""A few examples of each target in the ordinary suite; `make fuzz SECONDS=60` tries as many as it can."""

from __future__ import annotations

import pytest
from fuzz.effort import TooMuchWork, assert_small, bounded_work
from fuzz.run import main, tried
from fuzz.targets import TARGETS, Target
from hypothesis import strategies as st

from gracectl.runtime.clock import SystemClock


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_is_worse_than_refused(target: Target) -> None:
    assert tried(target, examples=target.examples, is_random=False) > 0


def test_work_and_memory_are_counted() -> None:
    with pytest.raises(TooMuchWork), bounded_work(10):
        sum(abs(number) for number in range(1_000_000))
    with pytest.raises(AssertionError, match="are held of 10"):
        assert_small([str(number) for number in range(10_000)], 10)


def test_the_loop_tells_how_many_examples_each_target_has_had(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    target = Target("texts", st.text(max_size=5), seen.append)
    assert main(("0",), (target,), SystemClock()) == 0
    assert capsys.readouterr().out == f"texts   {len(seen)}\n"
    assert len(seen) > 1


def test_the_loop_names_the_target_and_the_input_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(text: str) -> None:
        if "x" in text:
            raise KeyError(text)

    target = Target("texts", st.sampled_from(["a", "x"]), refuse)
    assert main(("0",), (target,), SystemClock()) == 1
    told = capsys.readouterr()
    assert "texts: failed" in told.err
    assert "KeyError: 'x'" in told.err
