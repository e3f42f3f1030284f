"""Webhooks for tests: registered with a server, answering as told, keeping what they were asked."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import anyio
import orjson
from kubesim.admission.caller import InProcessWebhooks, Reply
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Json, JsonObject, Request, Response
from kubesim.server.calls import User

from kubesim_support.caller import Caller

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NAME = "a.rec.example"
FAILED = f'Internal error occurred: failed calling webhook "{NAME}": '
Response_ = Callable[[JsonObject], JsonObject | Reply]


class Hook:
    """One webhook. `answer` makes the response (without its uid) of a request; `delay` in seconds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: Response_ = lambda request: {"allowed": True}
        self.delay = 0.0
        self.requests: list[Any] = []

    async def __call__(self, review: JsonObject) -> JsonObject | Reply:
        request = review["request"]
        self.requests.append(request)
        await anyio.sleep(self.delay)
        response = self.answer(request)
        if isinstance(response, Reply):
            return response
        return {**review, "request": None, "response": {"uid": request["uid"], **response}}

    @property
    def last(self) -> Any:
        """What it was asked last."""
        return self.requests[-1]

    def patches(self, *operations: Json) -> None:
        """Allow from now on, with a JSON patch."""
        self.answer = lambda request: patching(orjson.dumps(operations))

    def denies(self, **status: Json) -> None:
        """Deny from now on; without words if there is no status."""
        self.answer = lambda request: {"allowed": False, **({"status": status} if status else {})}


def patching(raw: bytes, type_: str = "JSONPatch") -> JsonObject:
    """A response that allows with a patch."""
    return {"allowed": True, "patchType": type_, "patch": base64.b64encode(raw).decode()}


class Stage(Caller):
    """A client of a server of its own, whose webhooks live in this process."""

    def __init__(self) -> None:
        self.webhooks = InProcessWebhooks()
        self.clock = LoopClock()
        alice = User("alice", uid="1", groups=("system:masters",), extra={"team": ("a", "b")})
        super().__init__(ApiServer(self.clock, webhooks=self.webhooks, tokens={"alice": alice}))

    async def call(self, method: str, path: str, body: Json = None, *, headers: Any = None, **query: str) -> Response:
        """Send one request as alice."""
        headers = {"authorization": "Bearer alice", **(headers or {})}
        request = Request(method=method, path=path, query=query, headers=headers, body=body)
        return await self.server.handle(request)

    async def hook(self, kind: str, *, configuration: str = "rec", name: str = NAME, **more: Json) -> Hook:
        """Register a webhook (`kind`: mutating, validating) in a configuration of its own; by default for all that
        happens to config maps."""
        hook = Hook(f"https://{name}/{kind}")
        self.webhooks.register(hook.url, hook)
        raw = webhook(name=name, clientConfig={"url": hook.url}) | more
        await self.configure(kind, raw, name=configuration)
        return hook

    async def configure(self, kind: str, *webhooks: JsonObject, name: str = "rec") -> Any:
        """Create a configuration; returns it."""
        return await self.create(CONFIGURATIONS.format(kind), configuration(kind, *webhooks, name=name))


def configuration(kind: str, *webhooks: JsonObject, name: str = "rec") -> JsonObject:
    """A webhook configuration."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind.capitalize()}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": list(webhooks),
    }


def webhook(**more: Json) -> JsonObject:
    """A valid webhook for config maps."""
    return {
        "name": NAME,
        "clientConfig": {"url": "https://hook.example/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [rule()],
        **more,
    }


def rule(*resources: str, operations: tuple[str, ...] = ("*",), groups: tuple[str, ...] = ("*",), **more: Json) -> Json:
    """A rule; by default about all that happens to config maps."""
    return {
        "apiGroups": list(groups),
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": list(resources or ("configmaps",)),
        **more,
    }


def config_map(name: str, **labels: str) -> JsonObject:
    """A config map."""
    return {"metadata": {"name": name, "labels": labels}}


async def attempt(stage: Stage) -> Response:
    """Create a config map, whatever comes of it."""
    return await stage.call("POST", CONFIGMAPS, config_map("one", x="y"))


def internal(response: Response) -> str:
    """The message of a 500 whose one cause repeats it."""
    assert (response.status, response.body["reason"]) == (500, "InternalError"), response.body
    [cause] = response.body["details"]["causes"]
    message: str = response.body["message"]
    assert message == f"Internal error occurred: {cause['message']}"
    return message
