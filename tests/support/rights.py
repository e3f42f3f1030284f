"""What rendered manifests allow an account, and an installation with these rights on a stage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import anyio
import msgspec
import pytest
import yaml
from aiohttp import web
from kubesim.admission.caller import InProcessWebhooks, Reply
from kubesim.apiserver import ApiServer
from kubesim.auth.attributes import Attempt, attempt_of
from kubesim.auth.rbac import first_subject
from kubesim.auth.rules import Rule, rule_from
from kubesim.controllers.paths import KINDS, path_of
from kubesim.server import api
from kubesim.server.api import JsonObject
from kubesim.server.calls import User
from kubesim_support.accounts import ADMIN, as_admin

from gracectl.admission.registration import is_complete, wanted
from gracectl.admission.settings import CertificateFiles
from gracectl.admission.webhooks import WEBHOOKS, secret_path
from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.config import Settings
from gracectl.kube.auth import credentials
from gracectl.kube.rbac import Permission
from gracectl.kube.transport import Request, Response
from gracectl.runtime.certificates import issue
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.server import _Listener
from support.chart import read_yaml
from support.inprocess import Executed, InProcessTransport
from support.instances import DEFINITION, DRAIN_RULES_DEFINITION
from support.stage import SELDOM, Stage, staged

# What rendered manifests allow an account, right by right; and those manifests with one of the rights taken out.
#
# Read from the roles and bindings as they stand there, by the rules of RBAC itself: no second list of rights.

CLUSTER_WIDE = ("ClusterRoleBinding",)
BINDINGS = (*CLUSTER_WIDE, "RoleBinding")


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    @property
    def user(self) -> User:
        """The user name of the account for API servers."""
        return User(f"system:serviceaccount:{self.namespace}:{self.name}")


class Grant(NamedTuple):
    """One verb on one resource (and, if `name` is not empty, on that object only), as a bound role gives it.
    `namespace`: where it holds; "" is everywhere. `role`: kind, namespace, name."""

    role: tuple[str, str, str]
    namespace: str
    verb: str
    group: str
    resource: str
    name: str

    def allows(self, attempt: Attempt) -> bool:
        """Whether it is enough for this."""
        is_there = not self.namespace or attempt.namespace == self.namespace
        return is_there and self.rule.allows(attempt)

    @property
    def rule(self) -> Rule:
        """The smallest rule that gives it."""
        names = (self.name,) if self.name else ()
        return Rule((self.verb,), groups=(self.group,), resources=(self.resource,), names=names)

    @property
    def right(self) -> Permission:
        """The same as the controller asks for it."""
        plural, _, subresource = self.resource.partition("/")
        return Permission(self.verb, plural, self.group, subresource, self.namespace, self.name)

    def __str__(self) -> str:
        return str(self.right)


def grants_of(objects: Iterable[JsonObject], account: Account) -> list[Grant]:
    """All that these objects allow an account, in their order; a right that is given twice is there twice."""
    things = list(objects)
    return [grant for binding in things if binding["kind"] in BINDINGS for grant in _bound(things, binding, account)]


def _bound(objects: list[JsonObject], binding: JsonObject, account: Account) -> Iterator[Grant]:
    home = binding["metadata"].get("namespace", "")
    if first_subject(binding, account.user, home) is None:
        return
    namespace = "" if binding["kind"] in CLUSTER_WIDE else home
    role = _role_of(objects, binding)
    for rule in role["rules"]:
        assert "nonResourceURLs" not in rule, f"{_key(role)} is about paths"
        for part in rule_from(rule).parts():
            (verb,), (group,), (resource,) = part.verbs, part.groups, part.resources
            yield Grant(_key(role), namespace, verb, group, resource, part.names[0] if part.names else "")


def _role_of(objects: list[JsonObject], binding: JsonObject) -> JsonObject:
    reference = binding["roleRef"]
    home = binding["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
    wanted = (reference["kind"], home, reference["name"])
    (role,) = (each for each in objects if each["kind"] in ("Role", "ClusterRole") and _key(each) == wanted)
    return role


def _key(thing: JsonObject) -> tuple[str, str, str]:
    return thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def without(objects: Iterable[JsonObject], grant: Grant) -> list[JsonObject]:
    """These objects, but that the grant's role does not give it any more."""
    changed = deepcopy(list(objects))
    for role in changed:
        if _key(role) == grant.role:
            role["rules"] = [_raw(part) for rule in role["rules"] for part in rule_from(rule).parts()]
            role["rules"].remove(_raw(grant.rule))
    return changed


def _raw(rule: Rule) -> JsonObject:
    named = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": list(rule.groups), "resources": list(rule.resources), "verbs": list(rule.verbs), **named}


def given_only_by(grants: Iterable[Grant], attempts: Iterable[Attempt]) -> dict[Grant, list[Attempt]]:
    """By grant, the attempts for which nothing else would do. Invariant: a grant with none could be
    removed without any effect."""
    given = list(grants)
    needed: dict[Grant, list[Attempt]] = {}
    for attempt in dict.fromkeys(attempts):
        enough = [grant for grant in given if grant.allows(attempt)]
        if len(enough) == 1:
            needed.setdefault(enough[0], []).append(attempt)
    return needed


# An installation as its manifests describe it, on a stage: the account, what it is allowed, and the settings.
#
# Everything is read from the rendered objects. What a process of a test cannot have is exchanged: it listens nowhere,
# reviews are handed to its handlers, and instances are ended by the stage's own provider.

CONFIGURATIONS = {
    f"{kind}WebhookConfiguration": f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
    for kind in ("Mutating", "Validating")
}
INSTALLED = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", *CONFIGURATIONS)
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PATHS = {**KINDS, **CONFIGURATIONS}
DAY = 86_400.0
TOKENS = {ADMIN["authorization"].removeprefix("Bearer "): "admin"}


class Installed(msgspec.Struct, frozen=True, dict=True):
    """What `helm template`, or a file for kubectl, gives. `served`: what the cluster has defined before, as helm calls
    it (GROUP/VERSION/KIND)."""

    objects: tuple[JsonObject, ...]
    served: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, served: tuple[str, ...] = ()) -> Installed:
        """The documents of a YAML stream."""
        return cls(tuple(each for each in read_yaml(text) if each), served)

    @cached_property
    def definitions(self) -> dict[str, JsonObject]:
        """Those of the cluster, by name, once this is installed."""
        by_name = {each["metadata"]["name"]: each for each in self.of_kind("CustomResourceDefinition")}
        for each in (*shipped_definitions(), DEFINITION, DRAIN_RULES_DEFINITION):
            kind = each["spec"]["names"]["kind"]
            versions = (version["name"] for version in each["spec"]["versions"])
            if any(f"{each['spec']['group']}/{version}/{kind}" in self.served for version in versions):
                by_name[each["metadata"]["name"]] = each
        return by_name

    def one(self, kind: str, component: str = "") -> JsonObject:
        """The only one of that kind (and that component, if one is named)."""
        (thing,) = (each for each in self.of_kind(kind) if component in ("", component_of(each)))
        return thing

    def of_kind(self, *kinds: str) -> list[JsonObject]:
        """All of these kinds."""
        return [each for each in self.objects if each["kind"] in kinds]

    def account(self, kind: str = "Deployment", component: str = "") -> Account:
        """The account of the pods of a workload."""
        workload = self.one(kind, component)
        pod = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
        return Account(workload["metadata"]["namespace"], pod["serviceAccountName"])

    @cached_property
    def settings(self) -> JsonObject:
        """The settings file that the controller's pods see; empty without a controller."""
        if not self.of_kind("Deployment"):
            return {}
        pod = self.one("Deployment", "controller")["spec"]["template"]["spec"]
        (name,) = (each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each)
        (config_map,) = (each for each in self.of_kind("ConfigMap") if each["metadata"]["name"] == name)
        read: JsonObject = yaml.safe_load(config_map["data"]["config.yaml"]) or {}
        return read


def component_of(thing: JsonObject) -> str:
    """What of gracectl an object belongs to, as its label says."""
    component: str = (thing["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "")
    return component


def for_a_test(settings: JsonObject, folder: Path) -> Settings:
    """Settings as the controller reads them, but that nothing serving at fixed ports; and the certificate that
    another client keeps is in `folder`."""
    admission = dict(settings.get("admission") or {})
    if admission.get("listen"):
        admission["listen"] = "127.0.0.1:0"
    # The stage's own provider terminates machines; a story does not wait for a quarter of an hour.
    lost = {"type": "Ready", "status": "Unknown", "tolerationSeconds": 60.0}
    health = {**(settings.get("health") or {}), "enabled": True, "conditions": [lost]}
    own = {"admission": admission, "health": health, "metrics": {"listen": ""}, "probes": {"listen": ""}}
    read = msgspec.convert({**settings, **own}, Settings)
    if not read.admission.certificates.are_given:
        return read
    issued = issue(read.admission.hosts, LoopClock().now(), 365 * DAY)
    contents = {"tls.crt": issued.pair.certificate, "tls.key": issued.pair.key, "ca.crt": issued.authority}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    paths = [str(folder / name) for name in contents]
    if not read.admission.certificates.ca_file:  # it is written from outside
        paths[2] = ""
    files = CertificateFiles(paths[0], paths[1], paths[2], read.admission.certificates.inject_from)
    return msgspec.structs.replace(read, admission=msgspec.structs.replace(read.admission, certificates=files))


@contextmanager
def in_a_pod_of(namespace: str, folder: Path) -> Iterator[None]:
    """This process finds itself in a pod of that namespace, and its servers listen on no socket."""
    (folder / "namespace").write_text(namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials, "SERVICE_ACCOUNT", folder)
        patch.setattr(_Listener, "open", _listen_nowhere)
        yield


class Recording(InProcessTransport):
    """Notes what is tried, as access control sees it; `refused` is set by the first 403. `is_let_in`: whether each
    question about rights is answered with yes."""

    def __init__(self, stage: Stage, token: str) -> None:
        super().__init__(stage.server, stage.clock, token=token)
        self.is_let_in = False
        self.attempts: list[Attempt] = []
        self.forbidden: list[Attempt] = []
        self.refused = anyio.Event()

    async def send(self, request: Request) -> Response:
        """See Transport."""
        if self.is_let_in and request.path == REVIEWS:
            return Response(status=201, headers={}, body=b'{"status": {"allowed": true}}')
        return await super().send(request)

    def _note(self, request: Request, answer: api.Response) -> None:
        super()._note(request, answer)
        attempt = attempt_of(self._translated(request))
        attempts = self._impersonating(attempt) if request.impersonate else (attempt,)
        self.attempts += attempts
        if answer.status in (401, 403):
            refused = next((each for each in attempts if each.verb in str(answer.body)), attempts[0])
            self.forbidden.append(refused)
            self.refused.set()

    def _impersonating(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """What an account must be allowed, to do this as the node of its token."""
        on = attempt._replace(verb=f"impersonate-on:associated-node:{attempt.verb}")
        return (on, Attempt("impersonate:associated-node", "authentication.k8s.io", "nodes", name="*"))

    async def bind(self, account: Account, node: str) -> None:
        """Use a token of the account that is bound to this node, as that of a pod there names it."""
        self._credentials = {"authorization": f"Bearer {await _token(self._server, account, node)}"}


class Place:
    """A stage on which what was rendered is installed. `wire`: that of the account, and what it has tried."""

    def __init__(self, stage: Stage, installed: Installed, webhooks: InProcessWebhooks) -> None:
        self.stage = stage
        self.installed = installed
        self._webhooks = webhooks
        self.wire = Recording(stage, "")

    async def install(self, objects: Iterable[JsonObject], account: Account) -> None:
        """Accounts, roles, bindings, webhook configurations, and the namespaces of all that; from now on the stage's
        controllers are that account."""
        wanted = {each["metadata"].get("namespace", "") for each in objects} | {"shop"}
        there = {each["metadata"]["name"] for each in self.stage.server.store.table("namespaces")}
        for name in sorted(wanted - there - {""}):
            await self.stage.call("POST", KINDS["Namespace"], {"metadata": {"name": name}})
        for each in objects:
            if each["kind"] in INSTALLED:
                path = path_of(PATHS[each["kind"]], each["metadata"].get("namespace", ""))
                await self.stage.call("POST", path, each)
        self.wire = await self.as_(account)
        self.stage.transport = self.wire

    async def as_(self, account: Account) -> Recording:
        """A line of its own for an account."""
        return Recording(self.stage, await _token(self.stage.server, account))

    async def put(self, kind: str, manifest: JsonObject) -> None:
        """An object of another client."""
        await self.stage.call("POST", path_of(KINDS[kind], manifest["metadata"].get("namespace", "")), manifest)

    def executed(self, verb: str, resource: str) -> list[Executed]:
        """What has succeeded."""
        return [each for each in self.wire.of(verb, resource) if each.status < 300]

    async def register(self, controller: Controller) -> None:
        """Let API servers reach this controller's admission server: the webhook configurations are written by a client
        with all rights, if there are none, as soon as a leader has written the Secret."""
        admission = controller._admission
        assert admission is not None
        settings = self.stage.settings.admission
        while not is_complete(admission._shared.state, settings):
            await self.stage.clock.sleep(0.5)
        state = admission._shared.state
        for body in wanted(settings, state).values():
            path = CONFIGURATIONS[body["kind"]]
            if (await self.stage.cluster.api.call("GET", f"{path}/{settings.name}"))[0] == 404:
                await self.stage.call("POST", path, body)
        for webhook in WEBHOOKS:
            handler = admission._handlers.http_handlers[webhook.path]

            async def answer(review: JsonObject, handler: Any = handler) -> Reply:
                response = cast(web.Response, await handler(_Question(review), _Bodies()))
                body = response.body
                assert isinstance(body, bytes)
                return Reply(response.status, body, response.content_type)

            (host, *_) = settings.hosts
            self._webhooks.register(f"https://{host}:443{secret_path(webhook, state.segment)}", answer)


async def _token(server: ApiServer, account: Account, node: str = "") -> str:
    path = path_of(KINDS["ServiceAccount"], account.namespace, account.name, "token")
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
    answer = await as_admin(server, "POST", path, {"spec": {"expirationSeconds": 1_000_000, **bound}})
    token: str = answer["status"]["token"]
    return token


async def _listen_nowhere(listener: _Listener) -> str:
    return ""


class _Question:
    """As much of a request as the admission server looks at."""

    def __init__(self, review: JsonObject) -> None:
        self._review = review
        self.query: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self._review)


class _Bodies:
    """Reads bodies, as telemetry.connections.Bodies."""

    @asynccontextmanager
    async def read(self, question: _Question) -> AsyncIterator[bytes]:
        yield question.body


@asynccontextmanager
async def place_for(
    installed: Installed,
    objects: Iterable[JsonObject],
    folder: Path,
    account: Account | None = None,
    **options: Any,
) -> AsyncIterator[Place]:
    """An installation of `installed` with these objects (its own, or fewer rights). `folder`: of the test; `options`:
    of the cluster."""
    webhooks = InProcessWebhooks()
    account = account or installed.account()
    with in_a_pod_of(account.namespace, folder):
        settings = for_a_test(installed.settings, folder)
        definitions = tuple(installed.definitions.values())
        options = {"kubelet": SELDOM, "definitions": definitions, "tokens": TOKENS, **options}
        async with staged(settings=settings, webhooks=webhooks, **options) as stage:
            place = Place(stage, installed, webhooks)
            await place.install(tuple(objects), account)
            yield place
