"""Ports that a test names before it listens."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below those that Linux gives to connections: one of these could take the port before the test does.
_RANGE = range(20_000, 32_000)
_chance = random.SystemRandom()


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 at which nothing listens at the moment."""
    found: list[int] = []
    while len(found) < number:
        port = _chance.choice(_RANGE)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
