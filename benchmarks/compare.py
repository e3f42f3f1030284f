"""`make bench-compare BASE=rev`: has anything become slower than it was at another revision?

The micro-benchmarks of this tree measure the package of both, in turns, so that both meet the same machine. Exit code
0: nothing is slower, 1: something is, 2: it cannot be said.

Invariant: whatever happens, the worktree of BASE is taken away again; nothing of this tree is changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, NoReturn

import click
import msgspec
from rich.console import Console

from benchmarks.micro.budgets import THRESHOLD, YARDSTICK
from benchmarks.micro.comparison import CANNOT_SAY, compare, lost_here, table_of
from benchmarks.micro.result import Report, Unreadable, read_report

TREE: Final = Path(__file__).resolve().parent.parent
MICRO: Final = "benchmarks/micro"
INTERRUPTED: Final = 130
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WIDTH: Final = 120
"""Of the table in a file."""
LAST_WORDS: Final = 15
"""Lines of what pytest has said that are shown when a run fails."""


class CannotCompare(click.ClickException):
    """Nothing can be said about the two; says why, and what to do."""

    exit_code = CANNOT_SAY


@click.command()
@click.argument("base", required=False, default="")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="How often each is measured.")
@click.option(
    "--threshold",
    type=click.FloatRange(min=1, min_open=True),
    help=f"From how many times as much on something is slower; left out: each has its own, {THRESHOLD:g} most of them.",
)
@click.option("-k", "only", default="", help="Only these benchmarks: an expression of pytest's -k.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
def main(base: str, rounds: int, threshold: float | None, only: str, output: str) -> None:
    """Compare this tree, with all that is not committed, with revision BASE."""
    try:
        with _interrupts(_interrupt), sides(resolved(base, TREE), TREE) as (there, here):
            pairs = [(_measured(there, only, number), _measured(here, only, number)) for number in range(1, rounds + 1)]
    except KeyboardInterrupt:
        click.echo("interrupted; the worktree of BASE is gone", err=True)
        sys.exit(INTERRUPTED)
    if lost := lost_here(pairs):
        raise CannotCompare(f"{', '.join(sorted(lost))}: fails in this tree; see make micro")
    if pairs[0][1].results.keys() <= {YARDSTICK}:
        raise CannotCompare(f"no benchmark matches -k {only}; make micro ARGS=--collect-only lists them")
    found = compare(base, pairs, threshold=threshold, why_missing=pairs[0][0].failures)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(table_of(found))
        for note in found.notes:
            click.echo(note)
    sys.exit(found.exit_code)


def resolved(base: str, tree: Path) -> str:
    """The commit that BASE names. Raises CannotCompare."""
    if not base:
        raise CannotCompare("with which revision? make bench-compare BASE=main names one")
    found = _git(tree, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if found.returncode:
        why = found.stderr.strip()
        raise CannotCompare(
            f"there is no revision {base} here{': ' + why if why else ''}; name a commit, branch or tag "
            "(git log --oneline shows some)"
        )
    return found.stdout.strip()


@contextmanager
def sides(commit: str, tree: Path) -> Iterator[tuple[Path, Path]]:
    """Two folders, while the block runs: gracectl at `commit` and as it is in `tree`, each with the tree's benchmarks.

    That of the tree is a copy, so that it may be worked on meanwhile. Raises CannotCompare.
    """
    folder = Path(mkdtemp(prefix="gracectl-compare-"))
    there, here = folder / "base", folder / "here"
    try:
        added = _git(tree, "worktree", "add", "--quiet", "--detach", str(there), commit)
        if added.returncode:
            raise CannotCompare(f"git cannot check out {commit}: {added.stderr.strip()}")
        if not (there / "gracectl").is_dir():
            raise CannotCompare(f"revision {commit} has no package gracectl; name a later one")
        shutil.copytree(tree / "gracectl", here / "gracectl", ignore=shutil.ignore_patterns("__pycache__"))
        for side in (there, here):
            shutil.rmtree(side / "benchmarks", ignore_errors=True)
            shutil.copytree(tree / MICRO, side / MICRO, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(tree / "benchmarks" / "__init__.py", side / "benchmarks")
        yield there, here
    finally:
        with _interrupts(signal.SIG_IGN):  # you may press Ctrl-C twice
            _git(tree, "worktree", "remove", "--force", str(there))
            shutil.rmtree(folder, ignore_errors=True)


def _measured(side: Path, only: str, number: int) -> Report:
    """Run the benchmarks once. Raises CannotCompare."""
    click.echo(f"round {number}: {side.name} …", err=True)
    report = side / f"report-{number}.json"
    command = [sys.executable, "-m", "pytest", "-c", f"{MICRO}/pytest.ini", MICRO]
    # The yardstick knows nothing of gracectl, so that every revision can tell of something.
    chosen = f"yardstick or ({only})" if only else ""
    command += ["--continue-on-collection-errors", f"--benchmark-json={report}", "-k", chosen]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    # With the same seed both have the same collisions in their dicts.
    environment |= {"PYTHONPATH": str(side), "PYTHONHASHSEED": str(number)}
    run = subprocess.run(command, cwd=side, env=environment, text=True, capture_output=True, check=False)
    try:
        found = read_report(report.read_bytes(), f"what pytest wrote about {side.name}")
    except (OSError, Unreadable) as error:
        last = "\n".join((run.stdout + run.stderr).splitlines()[-LAST_WORDS:])
        raise CannotCompare(f"the benchmarks of {side.name} did not run ({error}); pytest said:\n{last}") from error
    measured = Path(found.gracectl).resolve()
    if not measured.is_relative_to(side.resolve()):
        raise CannotCompare(f"not the gracectl of {side} was measured but {measured}; is PYTHONPATH changed by a site?")
    return found


@contextmanager
def _interrupts(handler: Callable[[int, object], NoReturn] | signal.Handlers) -> Iterator[None]:
    """Handle what ends this program so while the block runs."""
    before = {number: signal.signal(number, handler) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _git(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a session of its own: Ctrl-C must not end what cleans up. Hooks are for people who check something out."""
    command = ["git", "-C", str(tree), "-c", f"core.hooksPath={os.devnull}", *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=False, start_new_session=True)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
