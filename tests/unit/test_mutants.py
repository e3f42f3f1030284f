"""Runner of the planted bugs. `make mutants` checks that each is caught."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mutants import run
from mutants.catalogue import ROOT, load

MUTANTS = load()


def test_each_names_tests_that_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert bool(mutant.tests) != bool(mutant.equivalent), f"{mutant.name}: tests or equivalent"
        for test in mutant.tests:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            match = re.search(rf"def {function}\b", text)
            assert match, f"{mutant.name}: there is no {test}"
            decorators = text[: match.start()].rpartition("\n\n\n")[2]
            assert "@pytest.mark.thorough" not in decorators, f"{mutant.name}: `make test` does not run {test}"


def test_each_has_its_place_in_the_code() -> None:
    run.check_places(MUTANTS)


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
