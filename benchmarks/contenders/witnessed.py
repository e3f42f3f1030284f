"""`gracectl` as it is shipped, with a witness between it and its socket: when did each DELETE of a pod leave?

    python -m benchmarks.contenders.witnessed FILE controller --kubeconfig …

Writes the first instant (Unix seconds) by the pod's name to FILE, as JSON, when the command ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec

from gracectl.cli import main
from gracectl.kube.http import HttpTransport

left: dict[str, float] = {}


_session_of = HttpTransport._session_of


def _witnessed(self: HttpTransport, pool: str) -> aiohttp.ClientSession:
    """As ever; and the body of a DELETE is noted when it is handed to the socket."""
    session = _session_of(self, pool)
    if not session.trace_configs:
        config = aiohttp.TraceConfig()
        config.on_request_chunk_sent.append(_note)
        config.freeze()
        session.trace_configs.append(config)
    return session


async def _note(
    session: aiohttp.ClientSession, context: SimpleNamespace, sent: aiohttp.TraceRequestChunkSentParams
) -> None:
    if sent.method == "DELETE" and "/pods/" in sent.url.path:
        left.setdefault(sent.url.name, time.time())


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    HttpTransport._session_of = _witnessed  # type: ignore[method-assign]  # the command makes it
    try:
        main()
    finally:
        file.write_bytes(msgspec.json.encode(left))
