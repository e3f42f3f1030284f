"""The server in a pod of `gracectl demo --scenario single`: `python -m gracectl.cli.demo_server`.

Prints its port when it listens. After SIGTERM it serves on for a moment, for clients that know its endpoint still, and
ends when its last request is answered.
"""

from __future__ import annotations

import signal
from typing import Final

import anyio
from aiohttp import web

from gracectl.runtime.clock import SystemClock

WORK_SECONDS: Final = 0.02
"""What an answer takes."""
LINGER_SECONDS: Final = 0.3
FINISH_SECONDS: Final = 10.0


async def serve() -> None:
    """Serve until SIGTERM."""
    clock = SystemClock()

    async def answer(request: web.Request) -> web.Response:
        await clock.sleep(WORK_SECONDS)
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=FINISH_SECONDS, access_log=None)
    await runner.setup()
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        async for _ in signals:
            break
    await clock.sleep(LINGER_SECONDS)
    await runner.cleanup()


if __name__ == "__main__":
    anyio.run(serve)
