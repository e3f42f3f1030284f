"""Runs the tests against each planted bug: first those that should catch it, then wider ones.

The source with the bug lies in a scratch directory on PYTHONPATH, whose `sitecustomize` has it imported in place of the
module, by processes that tests start, too. Invariant: the work tree is not written.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from gracectl.runtime.clock import Clock, SystemClock
from mutants.catalogue import ROOT, Mutant, Stale, load

LONGEST_TEST, LONGEST_RUN = 30, 1200
"""Seconds. A bug may make a test wait for ever: that is caught, too."""

ENDLESS: Final = "no end in"
"""Begins what is said of tests that hang."""

PASSED, FAILED = 0, 1
"""Exit codes of pytest."""

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::\S+?(?:\[.*?\])?)?)(?: - |$)", re.MULTILINE)

HOOK: Final = """\
import importlib.abc
import importlib.util
import sys


class Planted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {file!r}) if name == {module!r} else None


sys.meta_path.insert(0, Planted())
"""


class Unusable(Exception):
    """The tests cannot judge: they fail without a bug, or there are none of that name."""


class Result(msgspec.Struct, frozen=True):
    """`test`: the one that caught the bug; empty if it survived. `is_expected`: it is one of the bug's own."""

    mutant: Mutant
    test: str
    is_expected: bool
    seconds: float


def main(arguments: Sequence[str], clock: Clock | None = None) -> int:
    """0 if all bugs are caught, 1 if any survives, 2 if the catalogue or the tests cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        chosen = _chosen(load(), options.names)
        if not options.tests:
            _require_passing(sorted({test for mutant in chosen for test in mutant.tests}))
        width = max(len(mutant.name) for mutant in chosen)
        results = []
        print(f"{'MUTANT':<{width}}  {'SECONDS':>7}  CAUGHT BY")
        with ThreadPoolExecutor(options.jobs) as pool:
            judged = (pool.submit(judge, mutant, options.tests, clock or SystemClock()) for mutant in chosen)
            for result in (each.result() for each in tuple(judged)):
                results.append(result)
                caught_by = result.test or f"SURVIVES: {result.mutant.breaks}"
                is_wider = result.test and not result.is_expected
                print(f"{result.mutant.name:<{width}}  {result.seconds:7.1f}  {caught_by}{' (wider)' * bool(is_wider)}")
                sys.stdout.flush()
    except (Stale, Unusable) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    expected = sum(bool(result.test) and result.is_expected for result in results)
    survivors = [result.mutant.name for result in results if not result.test]
    print(f"{len(results)} mutants: {expected} caught by the tests expected to, ", end="")
    print(f"{len(results) - expected - len(survivors)} by others, {len(survivors)} survived")
    return 1 if survivors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=…", description="Run the tests against planted bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these bugs; by default all")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1, help="bugs at a time")
    parser.add_argument("--tests", nargs="+", metavar="PATH", default=[], help="run these tests and no others")
    return parser


def _chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in mutants}
    if unknown := [name for name in names if name not in known]:
        raise Unusable(f"no mutant is called {', '.join(unknown)}; see tests/mutants/planted")
    return [known[name] for name in names] if names else [mutant for mutant in mutants if not mutant.equivalent]


def _require_passing(tests: Sequence[str]) -> None:
    """Raise Unusable unless these tests pass without a bug."""
    if tests and (failed := failing(tests, None)):
        raise Unusable(f"{failed} fails without a mutant")


def judge(mutant: Mutant, tests: Sequence[str], clock: Clock) -> Result:
    """Run the tests against a bug until one fails. Raises Stale and Unusable."""
    began = clock.monotonic()
    source = mutant.source()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        overlay = plant(mutant.module, source, Path(folder))
        for number, group in enumerate([tuple(tests)] if tests else groups(mutant)):
            test = failing(group, overlay)
            is_expected = number == 0 and bool(tests or mutant.tests)
            # Those of the bug itself have been seen to pass without it.
            if test.startswith(ENDLESS) or (test and ((is_expected and not tests) or not failing((test,), None))):
                return Result(mutant, test, is_expected, clock.monotonic() - began)
    return Result(mutant, "", False, clock.monotonic() - began)


def groups(mutant: Mutant) -> Iterator[tuple[str, ...]]:
    """Tests that may catch a bug, nearest first."""
    if mutant.tests:
        yield mutant.tests
    if (ROOT / "tests" / "unit" / mutant.package).is_dir():
        yield (f"tests/unit/{mutant.package}",)
    yield ("tests/controllers",)
    yield ("tests/unit", "--ignore=tests/unit/cli", "--ignore=tests/unit/benchmarks")
    if (ROOT / "tests" / "simulation").is_dir():
        yield ("tests/simulation",)


def plant(module: str, source: str, folder: Path) -> Path:
    """Directory for PYTHONPATH that has the module imported from this source."""
    file = folder / "planted.py"
    file.write_text(source, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(HOOK.format(file=str(file), module=module), encoding="utf-8")
    return folder


def failing(tests: Sequence[str], overlay: Path | None) -> str:
    """The first test that fails, with the bug in this overlay; empty if all pass. Raises Unusable."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as storage:
        environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": storage}
        if overlay is not None:
            earlier = os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(overlay), earlier)))
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0")
        command = (sys.executable, "-m", "pytest", *options, f"--timeout={LONGEST_TEST}", *tests)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_RUN
            )
        except subprocess.TimeoutExpired:
            return f"{ENDLESS} {LONGEST_RUN} s: {' '.join(tests)}"
    if done.returncode == PASSED:
        return ""
    found = _FAILED.search(done.stdout)
    if done.returncode == FAILED and found:
        return found[1]
    if "Timeout" in done.stdout + done.stderr:
        return f"{ENDLESS} {LONGEST_TEST} s: {' '.join(tests)}"
    output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
    raise Unusable(f"pytest {' '.join(tests)} ended with code {done.returncode}:\n{output}")
