"""Signals to a real process: the first ends it in order, the second at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubesim_support.patience import PATIENCE

pytestmark = pytest.mark.real_time

# A process with a write under way that takes `sys.argv[1]` seconds; "busy" code neither awaits nor gives in.
PROGRAM = """
import sys, anyio
from gracectl.runtime.supervise import set_on_signal
from gracectl.runtime.supervise import run_components

async def write():
    with anyio.CancelScope(shield=True):
        print("writing", flush=True)
        await anyio.sleep(float(sys.argv[1]))
        print("written", flush=True)
    await anyio.sleep_forever()

async def main():
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(set_on_signal, stop)
        group.start_soon(tell, stop)
        await run_components({"writer": write}, stop)
        group.cancel_scope.cancel()

async def tell(stop):
    await stop.wait()
    print("stopping", flush=True)
    while sys.argv[2:] == ["busy"]:
        try:
            while True:
                pass
        except BaseException:
            print("not impressed", flush=True)

anyio.run(main)
"""


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_a_write_finish_and_the_process_ends_with_0(number: signal.Signals) -> None:
    with program("0.3") as process:
        assert said(process) == "writing"
        process.send_signal(number)
        assert [said(process), said(process)] == ["stopping", "written"]
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_the_process_at_once(number: signal.Signals, code: int) -> None:
    with program("3600") as process:
        assert said(process) == "writing"
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stopping"
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
        assert said(process) == ""


def test_the_second_signal_ends_even_a_process_whose_event_loop_does_not_run() -> None:
    with program("0", "busy") as process:
        assert [said(process), said(process)] == ["writing", "written"]
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stopping"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
