"""A command on a terminal of its own: what a person sees of it, and how it takes an answer."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from typing import NamedTuple

from kubesim_support.patience import PATIENCE

COMMAND = (sys.executable, "-W", "error", "-m", "gracectl")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Seen(NamedTuple):
    """Exit code, and all that was printed, without colours and movements of the cursor."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """The text line by line."""
        return self.text.splitlines()


def on_terminal(*arguments: str, columns: int = 80, answers: Sequence[tuple[str, str]] = ()) -> Seen:
    """Run gracectl to its end. `answers`: pairs of what must have been printed, and what is typed then."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for variable in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(variable, None)
    left, seen = list(answers), ""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
    ) as process:
        os.close(slave)
        try:
            while chunk := _read(master):
                seen += chunk
                if left and left[0][0] in seen:
                    os.write(master, left.pop(0)[1].encode())
            code = process.wait(PATIENCE)
        finally:
            process.kill()
            os.close(master)
    assert not left, f"never printed: {left[0][0]!r}; but: {seen}"
    return Seen(code, ANSI.sub("", seen.replace("\r\n", "\n")))


def _read(master: int) -> str:
    """The next text; empty when nothing has the terminal open any more."""
    try:
        return os.read(master, 65536).decode(errors="replace")
    except OSError:
        return ""
