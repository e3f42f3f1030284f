"""As the first process of a container, from which the kernel keeps the signals that it has no handler for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from kubesim_support.patience import PATIENCE

# SIGTERM comes while a command still loads, to a process that believes to be number `sys.argv[1]`.
LOADING = """
import os, signal, sys, types
number, before = int(sys.argv[1]), sys.argv[2]
itself = os.getpid()
os.getpid = lambda: number
signal.signal(signal.SIGTERM, getattr(signal, before))
slow = sys.modules["gracectl.cli.root"] = types.ModuleType("gracectl.cli.root")
def loads(**_):
    os.kill(itself, signal.SIGTERM)
    print("still there", flush=True)
slow.root = loads
from gracectl.cli import main
main()
"""


@pytest.mark.real_time
@pytest.mark.parametrize(("number", "before", "code"), [
    # Ended by our handler, by the kernel, and not at all: who told it to ignore the signal is obeyed.
    (1, "SIG_DFL", 128 + signal.SIGTERM), (7, "SIG_DFL", -signal.SIGTERM), (1, "SIG_IGN", 0),
])  # fmt: skip
def test_a_sigterm_while_it_is_still_loading_ends_it(number: int, before: str, code: int) -> None:
    command = [sys.executable, "-c", LOADING, str(number), before]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (code, "still there\n" if code == 0 else ""), ended.stderr
