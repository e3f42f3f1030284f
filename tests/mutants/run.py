"""Runs the tests against each planted bug: first those that should catch it, then wider ones.

Each run is forked from a process that has imported what the tests need, and imports the modules of this tree anew; the
source with the bug lies in a scratch directory, whose `sitecustomize` has it imported in place of the module, by
processes that tests start, too. Invariant: the work tree is not written.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pytest

from gracectl.runtime.clock import Clock, SystemClock
from mutants.catalogue import ROOT, Mutant, Stale, load

A = TypeVar("A")
B = TypeVar("B")

FORK: Final = multiprocessing.get_context("fork")

LONGEST_TEST, LONGEST_RUN = 120, 1200
"""Seconds. A bug may make a test wait for ever: that is caught, too. A busy machine must not."""

ENDLESS: Final = "no end in"
"""Begins what is said of tests that hang."""

_OPTIONS: Final = (
    *("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::\S+?(?:\[.*?\])?)?)(?: - |$)", re.MULTILINE)

HOOK: Final = """\
import importlib.abc
import importlib.machinery
import importlib.util
import sys


class Planted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        places = found and found.submodule_search_locations  # of a package; None for a module
        return importlib.util.spec_from_file_location(name, {file!r}, submodule_search_locations=places)


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
        check_places(chosen)
        warm(options.tests or sorted({test for mutant in chosen for test in mutant.tests}))
        if not options.tests:
            _require_passing(sorted({test for mutant in chosen for test in mutant.tests}))
        width = max(len(mutant.name) for mutant in chosen)
        results = []
        print(f"{'MUTANT':<{width}}  {'SECONDS':>7}  CAUGHT BY")
        for result in spread(partial(judge, tests=options.tests, clock=clock or SystemClock()), chosen, options.jobs):
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


def check_places(mutants: Sequence[Mutant]) -> None:
    """Raise Stale with every bug that has no place in the code, so that one run names them all."""
    stale = []
    for mutant in mutants:
        try:
            compile(mutant.source(), mutant.file, "exec")
        except (Stale, SyntaxError) as error:
            stale.append(str(error))
    if stale:
        raise Stale("\n".join(stale))


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


def spread(function: Callable[[A], B], items: Sequence[A], jobs: int) -> Iterator[B]:
    """Results in the order of the items, of so many at a time."""
    if jobs == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=FORK) as pool:
        yield from pool.map(function, items)


def warm(tests: Sequence[str]) -> None:
    """Import what these tests import: the processes that run them are forked from this one."""
    with redirect_stdout(io.StringIO()):
        pytest.main([*_OPTIONS, "--collect-only", f"--rootdir={ROOT}", *tests])


def failing(tests: Sequence[str], overlay: Path | None) -> str:
    """The first test that fails, with the bug in this overlay; empty if all pass. Raises Unusable."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        process = FORK.Process(target=_run, args=(tests, overlay, Path(scratch)))
        process.start()
        process.join(LONGEST_RUN)
        if process.exitcode is None:
            process.kill()
            process.join()
            return f"{ENDLESS} {LONGEST_RUN} s: {' '.join(tests)}"
        output = (Path(scratch) / "output").read_text(encoding="utf-8", errors="replace")
    if process.exitcode == pytest.ExitCode.OK:
        return ""
    match = _FAILED.search(output)
    if process.exitcode == pytest.ExitCode.TESTS_FAILED and match:
        return match[1]
    if "Timeout" in output:
        return f"{ENDLESS} {LONGEST_TEST} s: {' '.join(tests)}"
    last = "\n".join(output.strip().splitlines()[-15:])
    raise Unusable(f"pytest {' '.join(tests)} ended with code {process.exitcode}:\n{last}")


def _run(tests: Sequence[str], overlay: Path | None, scratch: Path) -> None:
    """Run the tests in this process, which was forked for it; its exit code is that of pytest."""
    output = os.open(scratch / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch)
    _forget_modules()
    if overlay is not None:
        earlier = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(overlay), earlier)))
        exec((overlay / "sitecustomize.py").read_text(encoding="utf-8"), {})
    code = pytest.main([*_OPTIONS, f"--timeout={LONGEST_TEST}", *tests])
    sys.stdout.flush()
    os._exit(code)


def _forget_modules() -> None:
    """Have the modules of this tree imported again, but for those of the simulated cluster, which import no others."""
    for name, module in tuple(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if any(file.is_relative_to(ROOT / part) for part in ("gracectl", "tests", "benchmarks", "examples", "tools")):
            del sys.modules[name]
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(last, None)
