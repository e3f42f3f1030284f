"""A few examples of each target in the ordinary suite; `make fuzz SECONDS=60` tries as many as it can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fuzz import target as fuzz_target
from fuzz.effort import TooMuchWork, assert_small, bounded_memory, bounded_work
from fuzz.run import main, tried
from fuzz.target import CORPUS, Target
from fuzz.targets import TARGETS
from hypothesis import strategies as st

from gracectl.runtime.clock import SystemClock


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


def test_the_loop_tells_how_many_examples_each_target_has_had(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "measure", lambda target, given: None)
    seen: list[str] = []
    target = Target("texts", st.text(max_size=5), seen.append)
    assert main(("0",), (target,), SystemClock()) == 0
    assert capsys.readouterr().out == f"texts   {len(seen)}\n"
    assert len(seen) > 1


def test_the_loop_names_the_target_and_keeps_the_input_that_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz_target, "CORPUS", tmp_path)

    def refuse(text: str) -> None:
        if "x" in text:
            raise KeyError(text)

    target = Target("texts", st.sampled_from(["a", "x"]), refuse, is_text=True)
    assert main(("0",), (target,), SystemClock()) == 1
    told = capsys.readouterr()
    assert "texts: failed" in told.err
    assert "KeyError: 'x'" in told.err
    assert [each for _, each in target.kept()] == ["x"]
