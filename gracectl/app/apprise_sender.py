"""Sending of notifications by apprise, in a process of its own for each.

apprise knows a hundred services, with clients of HTTP, mail and more that read answers whole and wait as long as they
like. Invariants: a service that answers without end costs this process nothing; the other one has LONGEST_MEMORY, and
is killed when its time is over.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from gracectl.cloud.exec import ProcessTimeout, run
from gracectl.runtime.documents import DocumentError, read_file

SEND_SECONDS: Final = 60.0
LONGEST_MEMORY: Final = 256 << 20
"""Bytes; a process that has sent a notification has 60 MiB."""
MOST_URLS: Final = 20
TITLE, TEXT = "GRACECTL_TITLE", "GRACECTL_TEXT"
"""Environment variables of the process."""

_LONGEST_REASON: Final = 1000
_STACK: Final = 1 << 20
_REFUSED: Final = 1


class AppriseSender:
    """Sends to the URLs of a file, which is read again each time."""

    def __init__(self, url_file: str) -> None:
        self._path = Path(url_file)

    def check(self) -> None:
        """Raise ValueError, with the field in front, if nothing could be sent."""
        try:
            _load(self._path)
        except ImportError as error:
            remedy = "install gracectl[notify], or leave urlFile empty"
            raise ValueError(f"urlFile: apprise is not installed; {remedy}") from error
        except ValueError as error:
            raise ValueError(f"urlFile: {self._path} {error}") from error

    async def send(self, title: str, text: str) -> None:
        """See Send."""
        command = (sys.executable, "-P", "-m", __name__, str(self._path))
        environment = {**os.environ, TITLE: title, TEXT: text}
        try:
            result = await run(command, environment, seconds=SEND_SECONDS, most=_LONGEST_REASON)
        except ProcessTimeout as error:
            raise NotSentError(f"not sent in {SEND_SECONDS:g} s") from error
        if result.code:
            reason = result.stdout.decode(errors="replace").strip()
            raise NotSentError(reason or f"its process ended with exit code {result.code}")


class NotSentError(Exception):
    """A notification was not sent."""


def _load(path: Path) -> Any:
    """Apprise with all URLs. Raises ImportError or ValueError."""
    import apprise

    found = apprise.Apprise(asset=apprise.AppriseAsset(app_id="gracectl", secure_logging=True))
    try:
        lines = read_file(path).splitlines()
    except DocumentError as error:
        raise ValueError(str(error)) from error
    urls = [(number, text) for number, line in enumerate(lines, 1) if (text := line.strip()) and text[0] != "#"]
    if not 0 < len(urls) <= MOST_URLS:
        raise ValueError(f"has {len(urls)} URLs; give 1 to {MOST_URLS}, one per line")
    for number, url in urls:
        if not found.add(url):
            raise ValueError(f"line {number} is no URL that apprise knows; see https://appriseit.com/services/")
    return found


def main(url_file: str) -> int:
    """Send one notification; a reason that has no secret goes to stdout. Returns the exit code."""
    import resource  # not on Windows, where commands run

    logging.disable(logging.CRITICAL)  # messages have URLs
    threading.stack_size(_STACK)  # one thread per URL
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = LONGEST_MEMORY if hard == resource.RLIM_INFINITY else min(LONGEST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    reason = "a service has refused it, or cannot be reached; test the URLs with the command apprise"
    try:
        if _load(Path(url_file)).notify(body=os.environ[TEXT], title=os.environ[TITLE], body_format="text"):
            return 0
    except ImportError:
        reason = "apprise is not installed"
    except ValueError as error:
        reason = f"{url_file} {error}"
    except MemoryError:
        pass
    sys.stdout.write(f"{reason}\n")
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
