"""What `helm test` runs in its pod: whether exactly one replica leads, as their metrics say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from support.chart import Release, needs_helm

needs_helm()

pytestmark = pytest.mark.real_time

LEADS = """# HELP gracectl_leader Whether this process leads.
# TYPE gracectl_leader gauge
gracectl_leader 1.0
"""


@contextmanager
def serving(page: str) -> Iterator[str]:
    """A replica whose metrics say this; its URL."""

    class Replica(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Replica) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def asked(url: str) -> subprocess.CompletedProcess[str]:
    """The pod's own program, about a replica at this URL; it is patient for a moment only."""
    (container,) = Release().one("Pod")["spec"]["containers"]
    script, usual, _ = container["args"]
    assert usual == "http://gracectl-metrics.gracectl.svc:9090/metrics"
    assert container["command"] == ["python", "-I", "-c"]
    command = [sys.executable, "-I", "-c", script, url, "0.1"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_that_leads_is_named() -> None:
    with serving(LEADS) as url:
        done = asked(url)
    assert (done.returncode, done.stdout) == (0, "127.0.0.1 leads, of 1\n"), done.stderr


@pytest.mark.parametrize("page", [LEADS.replace("1.0", "0.0"), LEADS.replace("1.0", "0"), ""])
def test_if_none_leads_it_fails_and_says_so(page: str) -> None:
    with serving(page) as url:
        done = asked(url)
    assert done.returncode == 1
    assert done.stderr == "one replica should lead: 0 of 1 replicas lead; look at their logs\n"


def test_without_an_answer_it_fails_and_says_why() -> None:
    with serving(LEADS) as url:
        pass
    done = asked(url)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr


def test_it_has_no_rights_at_all() -> None:
    spec = Release().one("Pod")["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
