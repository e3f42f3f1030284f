"""Runner of the planted bugs. `make mutants` checks that each still has its place in the code and is caught."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import run
from mutants.catalogue import ROOT, Mutant, Stale, load

MUTANTS = load()


def test_each_names_tests_that_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert bool(mutant.tests) != bool(mutant.equivalent), f"{mutant.name}: tests or equivalent"
        for test in mutant.tests:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            found = re.search(rf"def {function}\b", text)
            assert found, f"{mutant.name}: there is no {test}"
            decorators = text[: found.start()].rpartition("\n\n\n")[2]
            assert "@pytest.mark.thorough" not in decorators, f"{mutant.name}: `make test` does not run {test}"


def test_a_text_that_is_gone_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Mutant("lost", "policy/plan.py", "nothing", old="no such text", new="", tests=("tests/unit/x.py",))
    with pytest.raises(Stale, match=r"lost: its text occurs 0 times in gracectl/policy/plan\.py"):
        gone.source()
    monkeypatch.setattr(run, "load", lambda: (gone,))
    monkeypatch.setattr(run, "warm", lambda tests: None)
    monkeypatch.setattr(run, "failing", lambda tests, overlay: "")
    assert run.main(["-j", "1", "lost"]) == 2
    assert "lost: its text occurs 0 times" in capsys.readouterr().err
    assert run.main(["other"]) == 2
    assert "no mutant is called other" in capsys.readouterr().err


def test_a_planted_module_is_imported_and_the_work_tree_is_not_touched(tmp_path: Path) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "endless-backoff")
    before = mutant.path.read_bytes()
    code = (
        "from gracectl.runtime.backoff import Backoff; b = Backoff(1, 2, jitter=0); b.next(); b.next(); print(b.next())"
    )
    shown = []
    for overlay in (None, run.plant(mutant.module, mutant.source(), tmp_path)):
        environment = {} if overlay is None else {"PYTHONPATH": str(overlay)}
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        shown.append(done.stdout.strip())
    assert shown == ["2.0", "4.0"]
    assert mutant.path.read_bytes() == before


@pytest.mark.parametrize(("caught", "code", "told"), [
    ({("a.py",): "a.py::one"}, 0, "1 mutants: 1 caught by the tests expected to, 0 by others, 0 survived"),
    ({("tests/controllers",): "c.py::two"}, 0, "(wider)"),
    ({}, 1, "SURVIVES: it breaks"),
])  # fmt: skip
def test_survivors_make_the_exit_code_1(
    caught: dict[tuple[str, ...], str],
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = Mutant(
        "bug",
        "runtime/backoff.py",
        "it breaks",
        old="class Backoff(wait_exponential):",
        new="class Backoff( wait_exponential):",
        tests=("a.py",),
    )
    monkeypatch.setattr(run, "load", lambda: (bug,))
    monkeypatch.setattr(run, "warm", lambda tests: None)
    monkeypatch.setattr(run, "failing", lambda tests, overlay: caught.get(tuple(tests), "") if overlay else "")
    assert run.main(["-j", "1"]) == code
    assert told in capsys.readouterr().out
