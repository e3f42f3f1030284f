"""`gracectl drain` and `terminate`, interrupted: they exit at once and say what was requested; webhooks that deny."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubesim_support.patience import PATIENCE
from support.fleet import STRICTLY, Fleet, errors, fleet, started
from support.servers import mute

from gracectl.model import names

pytestmark = pytest.mark.real_time

ASKED = "deletion requested"
CERTIFICATES = Path(__file__).parents[3] / "kubesim/tests/unit/certificates"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("interrupts")) as found:
        yield found


# -- while it watches --------------------------------------------------------------------------------------------------


def test_a_deletion_that_is_not_watched_any_more_goes_on(place: Fleet) -> None:
    place.held("worker-1")
    with place.running("terminate", "--yes", "worker-1") as process:
        process.until("worker-1: terminating for")
        process.interrupt()
        assert process.ended_soon() == (
            130,
            "gracectl: interrupted; the controller continues to terminate worker-1; the deletion cannot be undone; "
            "to watch: gracectl status -w worker-1\n",
        )
    assert place.is_deleted("worker-1")
    place.release("worker-1")


def test_a_drain_of_a_node_that_stays_can_be_taken_back(place: Fleet) -> None:
    place.held("worker-2")
    with place.running("drain", "worker-2") as process:
        process.until("worker-2: being drained for maintenance")
        process.interrupt()
        assert process.ended_soon() == (
            130,
            "gracectl: interrupted; the controller continues to drain worker-2; "
            "to watch: gracectl status -w worker-2; to undo: gracectl uncordon worker-2\n",
        )
    assert names.KEEP_DRAINED in place.annotations("worker-2")


# -- while the server does not answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("terminate", "--yes"), ("drain",), ("drain", "--no-wait")])
def test_before_anything_was_asked_for_that_is_said(tmp_path: Path, command: tuple[str, ...]) -> None:
    with (
        mute(tmp_path, "worker-1", deaf=True) as (server, kubeconfig),
        started([*STRICTLY, *command, "worker-1", "--kubeconfig", str(kubeconfig)]) as process,
    ):
        assert server.asked[""].wait(PATIENCE)
        process.interrupt()
        assert process.ended_soon() == (130, "gracectl: interrupted; nothing was requested\n")


def test_interrupted_while_it_asks_it_names_requested_and_unknown_nodes(tmp_path: Path) -> None:
    """Ten are asked at a time: of these ten are silent, and two wait behind them."""
    silent = tuple(f"silent-{n:02}" for n in range(10))
    with mute(tmp_path, "asked", *silent, "waiting-1", "waiting-2", silent=silent) as (server, kubeconfig):
        nodes = ("asked", *silent, "waiting-1", "waiting-2")
        with started([*STRICTLY, "terminate", "--yes", *nodes, "--kubeconfig", str(kubeconfig)]) as process:
            process.until(f"asked: {ASKED}")
            for name in silent:
                assert server.asked[name].wait(PATIENCE)
            process.interrupt()
            assert process.ended_soon() == (
                130,
                "gracectl: interrupted; deletion requested: asked (cannot be undone); outcome "
                f"unknown: {', '.join(silent)}; not requested: waiting-1, waiting-2\n",
            )
        assert not server.asked["waiting-1"].is_set()


# -- webhooks ----------------------------------------------------------------------------------------------------------


@contextmanager
def refusing(place: Fleet, status: dict[str, Any]) -> Iterator[None]:
    """A webhook that denies the deletion of nodes with the label `guarded`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"uid": review["request"]["uid"], "allowed": False, "status": status}
            body = json.dumps({**review, "request": None, "response": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """No process reads it."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "webhook.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        client = {
            "url": f"https://127.0.0.1:{server.server_address[1]}/",
            "caBundle": base64.b64encode((CERTIFICATES / "authority.pem").read_bytes()).decode(),
        }
        hook = {
            "name": "guard.example.com", "clientConfig": client,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"]}],
            "objectSelector": {"matchLabels": {"guarded": "yes"}}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }  # fmt: skip
        place.ask("POST", VALIDATING, {"metadata": {"name": "guard"}, "webhooks": [hook]})
        try:
            yield
        finally:
            place.ask("DELETE", f"{VALIDATING}/guard")
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "words"), [
    ({"code": 403, "message": "not on a Friday"}, "not on a Friday)\n"),
    ({"code": 429, "message": "one a minute", "details": {"retryAfterSeconds": 30}},
     "one a minute); retry after 30 s\n"),
])  # fmt: skip
def test_a_webhook_s_words_are_told_and_the_others_go_on(place: Fleet, status: dict[str, Any], words: str) -> None:
    guarded, free = f"guarded-{status['code']}", f"free-{status['code']}"
    place.held(guarded, guarded="yes")
    place.add(free, managed=True)
    with refusing(place, status):
        result = place.run("terminate", "--yes", guarded, free)
    assert result.exit_code == 3
    assert f"{free}: terminated after" in result.stdout
    assert errors(result.stderr) == (
        f"gracectl: {guarded}: delete nodes {guarded}: denied by an admission webhook or policy "
        f'(server: admission webhook "guard.example.com" denied the request: {words}'
    )
    assert not place.is_deleted(guarded)
