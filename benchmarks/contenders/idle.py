"""What a running controller takes while nothing is to be done, beside a bare client that decodes the same streams."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec

from benchmarks.contenders.gracectl import Program
from benchmarks.ground.ground import service
from benchmarks.ground.process import cpu_seconds, wakeups

WINDOWS, SECONDS = 3, 6.0
"""The quietest of so many windows counts for CPU: a busy machine only adds."""


class Idle(msgspec.Struct, frozen=True):
    """`cpu`: share of a processor; `beyond`: without what decoding takes. `requests` per minute, of which `others` are
    not for leases; `wakeups` of its threads per second."""

    cpu: float
    beyond: float
    requests: float
    others: float
    wakeups: float


async def idle(program: Program, kubeconfig: Path) -> Idle:
    """Measure for some windows."""
    async with service("benchmarks.contenders.bare_reader", "watch", str(kubeconfig)) as bare:
        await anyio.sleep(2)
        before, woken = await program.reading(), wakeups(program.pid)
        shares, cpu, decoding = [], program.cpu, cpu_seconds(bare.pid)
        for _ in range(WINDOWS):
            await anyio.sleep(SECONDS)
            cpu_now, decoding_now = program.cpu, cpu_seconds(bare.pid)
            shares.append(((cpu_now - cpu) / SECONDS, (decoding_now - decoding) / SECONDS))
            cpu, decoding = cpu_now, decoding_now
        woken, usage = wakeups(program.pid) - woken, (await program.reading()).since(before)
    minutes = WINDOWS * SECONDS / 60
    requests = {name: count for name, count in usage.requests.items() if not name.endswith(" leases")}
    return Idle(
        cpu=min(whole for whole, _ in shares),
        beyond=min(max(whole - decoded, 0.0) for whole, decoded in shares),
        requests=sum(usage.requests.values()) / minutes,
        others=sum(requests.values()) / minutes,
        wakeups=woken / (60 * minutes),
    )
