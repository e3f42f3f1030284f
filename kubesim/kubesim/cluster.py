"""A simulated cluster: API server, controllers, kubelets and a cloud.

Runs on the real clock or on virtual time, without sockets or behind `kubesim.http`. Every part is a client of the
server and can be switched off and run from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio
import msgspec
from anyio.abc import TaskStatus

from kubesim.admission.caller import WebhookCaller
from kubesim.apiserver import ApiServer
from kubesim.clock import Clock, ShiftedClock
from kubesim.controllers import cloud as clouds
from kubesim.controllers.client import JSON, MERGE, InProcess, ask
from kubesim.controllers.cloud import Cloud, CloudSettings, Instance
from kubesim.controllers.informers import Informers
from kubesim.controllers.kubelet import HollowKubelet, KubeletSettings
from kubesim.controllers.nodeclaims import NODE_CLAIMS, ClaimSpec, claim_manifest, claim_status, owned_by
from kubesim.controllers.pace import Pace
from kubesim.controllers.parts import KUBELET, MAKERS, NODE_LIFECYCLE, Part, PartOptions
from kubesim.controllers.parts import PARTS as PARTS
from kubesim.controllers.paths import KINDS, NODES, PODS, path_of
from kubesim.controllers.readiness import Readiness
from kubesim.discovery import VERSION
from kubesim.kinds.eventttl import EVENT_TTL
from kubesim.kinds.nodes import NodeStrategy
from kubesim.server.api import Json, JsonObject
from kubesim.server.calls import User

PROVIDER_ID = "sim:///zone-a/"
USER = "kubesim"
"""User agent of the controllers and kubelets, and their user name where there are tokens."""


class ClusterOptions(PartOptions, frozen=True, kw_only=True):
    """How an embedded cluster behaves. Seconds are simulated: `speed` 10 makes each of them ten times shorter.

    `seed` fixes names, uids and every chance. `parts`: which of PARTS run (see PartOptions for how they behave).
    `window`: how many changes per kind a watch can go back. `event_seconds`: how long an Event is kept. `tokens`: users
    by bearer token (a bare name is a superuser; None: no token is needed). `service_accounts`: every pod needs one.
    `definitions`: CustomResourceDefinitions that are served from the first moment.
    """

    speed: float = 1.0
    seed: int = 0
    parts: frozenset[str] = PARTS
    kubelet: KubeletSettings = KubeletSettings()
    cloud: CloudSettings = CloudSettings()
    event_seconds: float = EVENT_TTL
    window: int = 10_000
    clock_offset_seconds: float = 0.0
    tokens: Mapping[str, str | User] | None = None
    service_accounts: bool = False
    definitions: tuple[JsonObject, ...] = ()


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node to add. `pods`: its pod limit; `capacity`, `labels`: on top of the defaults of every node; `taints` as in
    manifests. `claim`: its NodeClaim, if the cluster has the definition."""

    name: str
    pods: int = 110
    zone: str = "zone-a"
    instance_type: str = "sim.large"
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[JsonObject, ...] = ()
    capacity: Mapping[str, str] = {}
    claim: ClaimSpec | None = None

    @property
    def own_labels(self) -> dict[str, str]:
        """The labels that not every node has, those that come with the claim too."""
        return {**(self.claim.node_labels if self.claim else {}), **self.labels}


class EmbeddedCluster:
    """An API server (`server`), its controllers, and the instances under it (`cloud`). Nothing happens before `run`."""

    def __init__(
        self, clock: Clock, options: ClusterOptions | None = None, *, webhooks: WebhookCaller | None = None
    ) -> None:
        """`webhooks`: how the server reaches admission webhooks (None: over HTTPS). Raises ValueError for a part that
        does not exist or a speed that is not positive."""
        self.options = options or ClusterOptions()
        if unknown := self.options.parts - PARTS:
            raise ValueError(f"no such part of a cluster: {', '.join(sorted(unknown))}")
        self.pace = Pace(clock, speed=self.options.speed, seed=self.options.seed)
        tokens, headers = self.options.tokens, {"user-agent": USER}
        if tokens is not None:
            token = f"{USER}-{self.pace.chance('token').getrandbits(128):032x}"
            tokens, headers["authorization"] = {**tokens, token: USER}, f"Bearer {token}"
        self.server_clock = ShiftedClock(clock, self.options.clock_offset_seconds)
        self.server = ApiServer(
            self.server_clock,
            seed=self.options.seed,
            window=self.options.window,
            tokens=tokens,
            service_accounts=self.options.service_accounts,
            webhooks=webhooks,
        )
        self.server.predefine(*self.options.definitions)
        self.api = InProcess(self.server.handle, headers)
        self.informers = Informers(self.api, clock)
        self.kubelet = HollowKubelet(self.informers, self.pace, self._kubelet_settings())
        self.cloud = Cloud(self.pace, self.options.cloud, self._instance_ended)
        self.server.mount(clouds.PREFIX, self.cloud)
        self._pods = self.informers.of(PODS)
        self._nodes = self.informers.of(NODES)
        self._readiness = Readiness(self.informers, self.options.parts)
        self._parts = self._compose()

    def _compose(self) -> list[Part]:
        options = self.options
        self.server.event_expiry.ttl = self.pace.real(options.event_seconds)
        if NODE_LIFECYCLE in options.parts:
            self._taint_new_nodes()
        parts: list[Part] = [self.kubelet] if KUBELET in options.parts else []
        made = (make(self.informers, self.pace, options) for name, make in MAKERS.items() if name in options.parts)
        return [*parts, *made]

    def _kubelet_settings(self) -> KubeletSettings:
        """Without the controllers that attach volumes, kubelets do not wait for them."""
        settings = self.options.kubelet
        volumes = settings.volumes and {"provisioner", "attachments"} <= self.options.parts
        return msgspec.structs.replace(settings, volumes=volumes)

    def _taint_new_nodes(self) -> None:
        """No pod may be bound to a node before the node lifecycle controller has seen it."""
        nodes = self.server.registry.find("", "v1", "nodes")
        assert nodes is not None
        self.server.registry.add(msgspec.structs.replace(nodes, strategy=NodeStrategy(new_are_tainted=True)))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; started once every part has begun."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.informers.run)
                group.start_soon(self.cloud.run)
                await self._pods.synced.wait()
                await self._nodes.synced.wait()
                for part in self._parts:
                    group.start_soon(part.run)
                task_status.started()
        finally:
            with anyio.CancelScope(shield=True):
                await self.server.aclose()

    def _instance_ended(self, instance: Instance) -> None:
        self.kubelet.kill(instance.node)

    # -- putting things in ---------------------------------------------------------------------------------------------

    async def add_node(self, spec: NodeSpec) -> str:
        """Start an instance, register its node and claim, return the instance's id. Raises Refused (409)."""
        chance = self.pace.chance("instance", spec.name, self.cloud.count)
        id_ = f"i-{chance.getrandbits(68):017x}"
        node, claim = _node(spec, PROVIDER_ID + id_), None
        if spec.claim is not None:
            _, claim = await ask(self.api, "POST", NODE_CLAIMS, claim_manifest(spec.claim, node))
            node = owned_by(claim, node)
        _, node = await ask(self.api, "POST", NODES, node)
        if claim is not None:
            status = {"status": claim_status(node, self.server.stamps.now)}
            path = path_of(NODE_CLAIMS, name=claim["metadata"]["name"], subresource="status")
            await ask(self.api, "PATCH", path, status, content_type=MERGE)
        self.cloud.create(id_, spec.name)
        self.kubelet.revive(spec.name)
        self._nodes.remember(node)
        return id_

    def add_static_pod(self, node: str, manifest: JsonObject) -> None:
        """Let the kubelet of a node run a static pod (metadata.name without the node's name)."""
        self.kubelet.static_pods.add(node, manifest)

    async def create(self, manifest: JsonObject) -> JsonObject:
        """Create an object; its namespace too, if it is not there. Raises Refused."""
        namespace = manifest["metadata"].get("namespace", "")
        if namespace:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await ask(self.api, "POST", KINDS["Namespace"], body, allow=(409,))
        path = NODE_CLAIMS if manifest["kind"] == "NodeClaim" else KINDS[manifest["kind"]]
        _, created = await ask(self.api, "POST", path_of(path, namespace), manifest)
        self._readiness.learn(path, created)
        answer: JsonObject = created
        return answer

    async def call(self, method: str, path: str, body: Json = None, *, content_type: str = JSON) -> Json:
        """Send a request to the API server; returns the body of the answer. Raises Refused."""
        _, answer = await ask(self.api, method, path, body, content_type=content_type)
        return answer

    # -- looking -------------------------------------------------------------------------------------------------------

    def pods(self) -> list[JsonObject]:
        """All pods, as the controllers see them."""
        return self._pods.values()

    @property
    def pod_count(self) -> int:
        """How many pods there are."""
        return len(self._pods)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on pods, nodes and workloads holds; asked again at each change of one."""
        with self._changes() as changed:
            while not condition():
                await changed.wait()
                changed.clear()

    async def until_ready(self) -> None:
        """Wait until there are pods, every workload has as many as it wants, and all but those that end are Ready."""
        await self.until(self._readiness.is_reached)

    @contextmanager
    def _changes(self) -> Iterator[_Bell]:
        bell = _Bell()

        def ring(old: JsonObject | None, new: JsonObject | None) -> None:
            bell.ring()

        self._readiness.subscribe(ring)
        self._nodes.subscribe(ring)
        try:
            yield bell
        finally:
            self._readiness.unsubscribe(ring)
            self._nodes.unsubscribe(ring)


class _Bell:
    """An event that can be heard again and again."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def clear(self) -> None:
        self._event = anyio.Event()


def _node(spec: NodeSpec, provider_id: str) -> JsonObject:
    # A machine that takes more pods than the usual 110 has more of everything.
    size = max(1, -(-spec.pods // 110))
    usual = {"cpu": str(16 * size), "memory": f"{64 * size}Gi", "ephemeral-storage": f"{100 * size}Gi"}
    room = {**usual, **spec.capacity, "pods": str(spec.pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": spec.name,
                "node.kubernetes.io/instance-type": spec.instance_type,
                "topology.kubernetes.io/region": "sim",
                "topology.kubernetes.io/zone": spec.zone,
                **spec.own_labels,
            },
            **({"annotations": dict(spec.annotations)} if spec.annotations else {}),
        },
        "spec": {"providerID": provider_id, **({"taints": list(spec.taints)} if spec.taints else {})},
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "Hostname", "address": spec.name}],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "sim://1",
                "kernelVersion": "sim",
                "kubeProxyVersion": "",
                "kubeletVersion": f"{VERSION['gitVersion']}-sim",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "hollow",
                "systemUUID": "",
            },
        },
    }
