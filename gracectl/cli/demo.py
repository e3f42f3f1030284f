"""`gracectl demo`: deletes three nodes of an embedded cluster and shows their termination."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TextIO

import anyio
import click
from rich.console import Group

from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.demo_play import Order, perform
from gracectl.cli.demo_report import Result, summary
from gracectl.cli.embedded import WORLD_FAILURES, world_options
from gracectl.cli.failures import FAILED, reporting_errors, run_async
from gracectl.cli.output import echo, is_structured, output_option, program
from gracectl.cli.report import structured
from gracectl.cli.status.view import SilentView, StatusView, View
from gracectl.telemetry import logs


@click.command()
@world_options
@output_option("text", help="json, yaml: one object.")
@click.option("-v", "--verbose", is_flag=True, help="Show the controller's log on stderr (and lines, no live table).")
@click.option(
    "--trace-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the trace of each node to this file, as OTLP JSON for Jaeger's UI.",
)
@click.option("--ui", is_flag=True, help="Also serve the board of gracectl ui, until Ctrl-C.")
def demo(
    output: Literal["text", "json", "yaml"], *, verbose: bool, trace_file: Path | None, ui: bool, **world: Any
) -> None:
    """Drain nodes of an embedded cluster, and watch.

    Starts a cluster in this process, runs the controller on it over HTTP, deletes three nodes and shows them as status
    -w does. An independent verifier watches the pods and counts violations of budgets.

    \b
    -o json prints one object:
      seconds, seed, speed, ok,
      nodes [{name, seconds, steps {cordon, drain, volumes, instance, finalizer}, pods}],
      evictions, evictionsSeen, refusals, budgetViolations,
      violations [{seconds, budget, pod, healthy, required}],
      budgets [{name, bound, pods, required, lowest, violations}],
      replacements {expected, running}, volumes {before, left}, instances {before, left},
      touchedTwice [pod], blindSeconds, failures [text]

    With OTEL_EXPORTER_OTLP_ENDPOINT set, it also exports the traces.

    Exit code 0: all nodes are gone, no budget was violated, every replacement pod runs; else 1.
    """
    if ui and is_structured(output):
        raise click.UsageError(f"give --ui or -o {output}, not both")
    order = Order(**world, trace_file=trace_file, ui=ui)
    console = stdout_console()

    def show(result: Result) -> None:
        print_on(console, Group("", summary(result)))
        if trace_file is not None:
            print_on(console, f"The trace of each node is in {trace_file}; load it into Jaeger's UI.")

    view = SilentView() if is_structured(output) else StatusView(console, is_live=not verbose)
    with reporting_errors(WORLD_FAILURES), tempfile.TemporaryDirectory(prefix="gracectl-") as folder, _logging(verbose):
        ending = _given(order, Path(folder), view, show)
        if isinstance(ending, Result):
            if is_structured(output):
                echo(structured(ending, output))
            elif not ui:
                show(ending)
            if not ending.ok:
                raise _Failed(*ending.failures)
            return
    echo(f"{program()}: interrupted", err=True)
    sys.exit(128 + ending)


class _Failed(click.ClickException):
    """The demo finished with failures: one line each."""

    exit_code = FAILED

    def __init__(self, *failures: str) -> None:
        super().__init__("\n".join(f"{program()}: {failure}" for failure in failures))

    def show(self, file: IO[str] | None = None) -> None:
        echo(self.message, err=True, file=file)


def _given(order: Order, folder: Path, view: View, show: Callable[[Result], None]) -> Result | signal.Signals:
    try:
        return run_async(lambda: _until_interrupted(order, folder, view, show))
    except BaseExceptionGroup as group:
        # The reader of the output is gone (`gracectl demo | head -1`): rich exits the program then.
        if group.subgroup(BrokenPipeError) is not None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        if group.subgroup(SystemExit) is None:
            raise
        sys.exit(FAILED)


async def _until_interrupted(
    order: Order, folder: Path, view: View, show: Callable[[Result], None]
) -> Result | signal.Signals:
    """Return the result, or the signal that came before it. With a board, show the result and keep serving."""
    ending: list[Result | signal.Signals] = []

    async def stay(result: Result) -> None:
        ending.append(result)
        show(result)
        view.echo("The page stays until Ctrl-C.")
        await anyio.sleep_forever()

    async def listen(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                ending.append(number)
                scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(listen, group.cancel_scope)
        ending.append(await perform(order, folder, view, stay if order.ui else None))
        group.cancel_scope.cancel()
    return ending[0]


@contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Log to stderr, or to a file that is kept and named on stderr if the demo fails."""
    if verbose:
        with _logging_to(sys.stderr):
            yield
        return
    handle, name = tempfile.mkstemp(prefix="gracectl-demo-", suffix=".log")
    is_kept = False
    try:
        with os.fdopen(handle, "w") as file, _logging_to(file):
            yield
    except Exception:  # not for an interruption or a broken pipe
        if is_kept := os.path.getsize(name) > 0:
            echo(f"{program()}: the controller's log is {name}", err=True)
        raise
    finally:
        if not is_kept:
            os.unlink(name)


@contextmanager
def _logging_to(stream: TextIO) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(stream, format="text")
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
