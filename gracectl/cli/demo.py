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
from typing import IO, Any, Final, Literal, TextIO

import anyio
import click
from rich.console import Group

from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.demo_play import Order, perform
from gracectl.cli.demo_report import Result, summary
from gracectl.cli.demo_single import SingleResult, perform_single, summary_single
from gracectl.cli.embedded import WORLD_FAILURES, world_options
from gracectl.cli.failures import FAILED, reporting_errors, run_async
from gracectl.cli.output import Choice, echo, is_structured, output_option, program
from gracectl.cli.report import structured
from gracectl.cli.status.view import SilentView, StatusView, View
from gracectl.telemetry import logs

SINGLE: Final = "single"
Ending = Result | SingleResult


@click.command()
@click.option(
    "--scenario",
    type=Choice(("nodes", SINGLE)),
    default="nodes",
    show_default=True,
    help="nodes: a mixed cluster. single: single replicas, and the requests to them.",
)
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
    output: Literal["text", "json", "yaml"],
    *,
    scenario: str,
    verbose: bool,
    trace_file: Path | None,
    ui: bool,
    **world: Any,
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

    --scenario single deletes the node of two single pods with a server process in each, and counts failed requests:
    one pod is replaced before its eviction, the other is plainly evicted. --nodes and --pods do not count. -o json:
    seconds, seed, speed, ok,
    workloads [{name, replacedFirst, requests, failed, secondsDown, generations}], failures [text].

    With OTEL_EXPORTER_OTLP_ENDPOINT set, it also exports the traces.

    Exit code 0: all nodes are gone, no budget was violated, every replacement pod runs, and no request failed to the
    pod that is replaced first; else 1.
    """
    if ui and is_structured(output):
        raise click.UsageError(f"give --ui or -o {output}, not both")
    if ui and scenario == SINGLE:
        raise click.UsageError(f"give --ui or --scenario {SINGLE}, not both")
    order = Order(**world, trace_file=trace_file, ui=ui)
    console = stdout_console()

    def show(result: Ending) -> None:
        shown = summary_single(result) if isinstance(result, SingleResult) else summary(result)
        print_on(console, Group("", shown))
        if trace_file is not None:
            print_on(console, f"The trace of each node is in {trace_file}; load it into Jaeger's UI.")

    view = SilentView() if is_structured(output) else StatusView(console, is_live=not verbose)
    with reporting_errors(WORLD_FAILURES), tempfile.TemporaryDirectory(prefix="gracectl-") as folder, _logging(verbose):
        ending = _given(order, Path(folder), view, show, is_single=scenario == SINGLE)
        if isinstance(ending, Ending):
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


def _given(
    order: Order, folder: Path, view: View, show: Callable[[Ending], None], *, is_single: bool
) -> Ending | signal.Signals:
    try:
        return run_async(lambda: _until_interrupted(order, folder, view, show, is_single=is_single))
    except BaseExceptionGroup as group:
        # The reader of the output is gone (`gracectl demo | head -1`): rich exits the program then.
        if group.subgroup(BrokenPipeError) is not None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        if group.subgroup(SystemExit) is None:
            raise
        sys.exit(FAILED)


async def _until_interrupted(
    order: Order, folder: Path, view: View, show: Callable[[Ending], None], *, is_single: bool
) -> Ending | signal.Signals:
    """Return the result, or the signal that came before it. With a board, show the result and keep serving."""
    ending: list[Ending | signal.Signals] = []

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
        if is_single:
            ending.append(await perform_single(order, folder, view))
        else:
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
