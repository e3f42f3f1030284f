"""Foreign connections, from a process of its own: `python -m e2e_support.flood METRICS WEBHOOK PATH`, two
ports and the path of a webhook.

Asks for metrics and reads nothing, connects to the webhooks and says nothing, and sends them half a body each. Prints a
line once all has been sent that was taken; holds on until its standard input ends.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

HOST = "127.0.0.1"
MANY = 1_000
HALVES = 200
HALF = 7 * 1024 * 1024
"""Bytes; all the halves are more than the controller's limit of memory."""
SECONDS = 20
"""For each connection, to get something in."""


def main(metrics: int, webhook: int, path: str) -> None:
    """All at once, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * MANY + HALVES + 100)), hard))
    scrape = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    begin = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {HALF + 1}\r\n\r\n".encode()
    body = b"{" * HALF
    held: list[socket.socket] = []
    attempts: list[Callable[[], None]] = [
        *(partial(attempt, held, metrics, (scrape,)) for _ in range(MANY)),
        *(partial(attempt, held, webhook, ()) for _ in range(MANY)),
        *(partial(attempt, held, webhook, (begin, body), unverified()) for _ in range(HALVES)),
    ]
    with ThreadPoolExecutor(HALVES) as threads:
        for each in attempts:
            threads.submit(each)
    print("sent", flush=True)
    sys.stdin.read()


def attempt(held: list[socket.socket], port: int, parts: Iterable[bytes], tls: ssl.SSLContext | None = None) -> None:
    """One connection, and what can be sent over it; being refused or cut off is an answer, too."""
    with suppress(OSError):
        stream = socket.create_connection((HOST, port), timeout=SECONDS)
        held.append(stream)
        if tls:
            stream = tls.wrap_socket(stream)
            held.append(stream)
        for part in parts:
            stream.sendall(part)


def unverified() -> ssl.SSLContext:
    """A client that verifies no certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
