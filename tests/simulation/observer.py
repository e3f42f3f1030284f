"""The server's history as an observer beside the store sees it: each stored change, each request, and what is so now.

It knows nothing of a controller's memory. Instants are monotonic seconds of the event loop; stamps, which the server
writes in Unix seconds, are converted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec
from kubesim.controllers.cloud import Entry
from kubesim.server.api import JsonObject
from kubesim.values import parse_time
from support.clients import Deed, follow
from support.inprocess import Arrived
from support.stage import Stage

from gracectl.config import Settings
from gracectl.kube.transport import Request
from gracectl.model import names
from simulation.contract import (
    NEVER,
    STUCK,
    Ranges,
    annotations_of,
    is_deleted,
    is_silent,
    is_waited_for,
    labels_of,
    own_grace,
    ranges_of,
)
from simulation.terms import Terms

CALM_LAG = 1.0
"""Seconds after which a controller knows what the server has stored, if nothing disturbs its watches."""

SETTLING = 150.0
"""After the last fault watches that show nothing are given up, backoffs are over, and one controller leads."""

NOISE = 1e-3
"""Instants that are nearer to each other are the same."""


class PodFacts(msgspec.Struct):
    """A pod, and its way out. NEVER: an instant that has not come."""

    uid: str
    name: str
    object: JsonObject
    bound: float = NEVER
    waited: float = NEVER
    """Since when a drain waits for it; NEVER: it does not."""
    asked: float = NEVER
    over: float = NEVER
    relabelled: float = -NEVER
    """When its labels changed last."""
    granted: list[tuple[float, int]] = msgspec.field(default_factory=list)

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.object["metadata"].get("namespace", ""))

    @property
    def node(self) -> str:
        """The name of its node; empty until it is bound."""
        return str(self.object["spec"].get("nodeName", ""))

    @property
    def grace(self) -> int:
        """The seconds that it asks for."""
        return own_grace(self.object)

    def is_stuck(self, at: float) -> bool:
        """Whether its grace has been over for so long that nothing waits for it; its stamp has whole seconds."""
        return bool(self.granted) and at > self.granted[-1][0] - 1.0 + self.granted[-1][1] + STUCK


class ThingFacts(msgspec.Struct):
    """A node or claim. `deleted`: when that was stored; `stamp`: its deletionTimestamp."""

    uid: str
    name: str
    object: JsonObject
    since: float
    deleted: float = NEVER
    deleted_by: str = ""
    """The controller that has deleted it; empty: another client."""
    stamp: float = NEVER
    gone: float = NEVER
    claims: set[str] = msgspec.field(default_factory=set)
    """Of a node: uids of the claims that it ever had."""

    @property
    def provider_id(self) -> str:
        """That of its instance; empty if it is not known."""
        provider_id = self.object.get("spec", {}).get("providerID") or self.object.get("status", {}).get("providerID")
        return str(provider_id or "")

    @property
    def instance(self) -> str:
        """The id of its instance in the simulated cloud."""
        return self.provider_id.rsplit("/", 1)[-1]


class Rule:
    """Part of the contract that can be judged by what the server sees. `name` stands before its violations."""

    name = ""

    def __init__(self, observer: Observer) -> None:
        self.seen = observer

    def violated(self, text: str) -> None:
        """Report a violation, at this instant."""
        self.seen.violations.append(f"{self.seen.now:.3f} {self.name}: {text}")

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        """A pod has changed; `facts` are those from before."""

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        """A node has changed; `facts` are those from before."""

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        """A claim has changed; `facts` are those from before."""

    def request(self, arrived: Arrived, request: Request) -> None:
        """The server begins with a request of a controller."""

    def tick(self) -> None:
        """Some seconds have passed."""

    def end(self, calm: bool) -> None:
        """The run is over; `calm`: after its faults it had the time that its terms grant."""


class Observer:
    """See the module. Rules that are added are told of everything from then on."""

    def __init__(self, stage: Stage, terms: Terms) -> None:
        self.stage = stage
        self.terms = terms
        self.violations: list[str] = []
        self.settings: list[Settings] = [stage.settings]
        """Every one that has been in force, the newest last."""
        self.pods: dict[str, PodFacts] = {}
        self.nodes: dict[str, ThingFacts] = {}
        self.claims: dict[str, ThingFacts] = {}
        self.lists: dict[str, float] = {}
        """By process, when it read all pods first: it knows whatever had been stored by then."""
        self.selectors_changed: dict[str, float] = {}
        """By namespace, when the selector of a budget changed last."""
        self._on_node: defaultdict[str, dict[str, PodFacts]] = defaultdict(dict)
        self._rules: list[Rule] = []
        for name, listener in self._tables():
            follow(stage, name, listener)
        stage.transport.listeners.append(self._request)

    def add(self, *rules: Rule) -> None:
        """Judge by these rules as well."""
        self._rules += rules

    def replay(self) -> None:
        """Take in what there is already."""
        for name, listener in self._tables():
            for thing in tuple(self.stage.server.store.table(name)):
                listener(Deed(self.unix, None, thing, None))

    def _tables(self) -> tuple[tuple[str, Callable[[Deed], None]], ...]:
        return (
            ("nodes", self._node),
            ("nodeclaims.karpenter.sh", self._claim),
            ("pods", self._pod),
            ("poddisruptionbudgets.policy", self._budget),
        )

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.stage.clock.monotonic()

    @property
    def unix(self) -> float:
        """The server's Unix time."""
        return self.stage.cluster.server_clock.now()

    def instant(self, stamp: str | float) -> float:
        """The monotonic instant of a stamp of the server."""
        return (parse_time(stamp) if isinstance(stamp, str) else stamp) - self.unix + self.now

    @property
    def calm_since(self) -> float:
        """From when on nothing disturbs the controllers; NEVER: something may."""
        end = self.terms.faults_end
        return end if end <= 0 else end + SETTLING

    @property
    def ahead(self) -> float:
        """Now, by the clock that is furthest ahead."""
        return self.now + self.terms.clock_error

    def must_know(self, sender: str, since: float, at: float | None = None) -> bool:
        """Whether a process cannot but know what has been so since an instant; now, or at another one."""
        now = self.now if at is None else at
        if since <= self.lists.get(sender, -NEVER):
            return True
        lag = CALM_LAG if self.terms.fair or now >= self.calm_since else SETTLING
        return now - since > lag

    # -- what is so ----------------------------------------------------------------------------------------------------

    def pods_on(self, node: str) -> Iterator[PodFacts]:
        """The pods that are on a node now, finished and terminating ones as well."""
        return iter(tuple(self._on_node[node].values()))

    def named(self, node: str) -> ThingFacts | None:
        """The node of this name, if there is one."""
        return next((each for each in self.nodes.values() if each.name == node and each.gone == NEVER), None)

    def is_stuck(self, pod: PodFacts, at: float) -> bool:
        """Whether nothing waits for a pod any longer: it, or on a silent node another one, has outlived its grace."""
        if pod.is_stuck(at):
            return True
        node = self.named(pod.node)
        if pod.asked == NEVER or node is None or not is_silent(node.object):
            return False
        return any(other.is_stuck(at) for other in self.pods_on(pod.node))

    def node_of(self, pod: PodFacts) -> ThingFacts | None:
        """The node to which a pod was bound."""
        named = (each for each in self.nodes.values() if each.name == pod.node)
        return next((each for each in named if each.since <= pod.bound + NOISE and pod.bound <= each.gone), None)

    def ranges(self, node: ThingFacts) -> set[Ranges]:
        """Every order of waves that has been in force for a node."""
        return {ranges_of(each, labels_of(node.object)) for each in self.settings}

    def claims_of(self, node: ThingFacts) -> list[ThingFacts]:
        """The claims that are there and have this node."""
        return [claim for uid in node.claims if (claim := self.claims[uid]).gone == NEVER]

    def living_nodes(self) -> list[ThingFacts]:
        """The nodes that are there, also those that are being deleted."""
        return [each for each in self.nodes.values() if each.gone == NEVER]

    def is_kept(self, node: ThingFacts) -> bool:
        """Whether it is requested that the node be drained and kept."""
        return not is_deleted(node.object) and names.KEEP_DRAINED in annotations_of(node.object)

    def has_rivals(self, node: ThingFacts) -> bool:
        """Whether another node that is there uses the same instance."""
        others = (each for each in self.living_nodes() if each.uid != node.uid)
        return any(each.provider_id == node.provider_id for each in others)

    def journal(self, instance: str) -> list[Entry]:
        """What has happened to an instance in the cloud, without its creation. Instants are Unix seconds."""
        return [each for each in self.stage.cluster.cloud.journal if each.id == instance and each.what != "created"]

    def instance_state(self, instance: str) -> str:
        """As the cloud has it; a missing one has terminated."""
        states = (each.state for each in self.stage.cluster.cloud.instances if each.id == instance)
        return next(states, "terminated")

    # -- what happens --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let the rules look at what has not happened."""
        self._note_settings()
        for rule in self._rules:
            rule.tick()

    def end(self, calm: bool) -> None:
        """The run is over."""
        for rule in self._rules:
            rule.end(calm)

    def _note_settings(self) -> None:
        if self.stage.settings is not self.settings[-1]:
            self.settings.append(self.stage.settings)

    def _request(self, arrived: Arrived, request: Request) -> None:
        operation = arrived.operation
        if (operation.verb, operation.resource) == ("list", "pods"):
            self.lists.setdefault(arrived.sender, self.now)
        for rule in self._rules:
            rule.request(arrived, request)

    def _budget(self, deed: Deed) -> None:
        old, new = deed.old, deed.new
        if old is not None and new is not None and old["spec"].get("selector") != new["spec"].get("selector"):
            self.selectors_changed[new["metadata"]["namespace"]] = self.now

    def _pod(self, deed: Deed) -> None:
        self._note_settings()
        pod, uid = deed.object, deed.object["metadata"]["uid"]
        facts = self.pods.get(uid)
        if facts is None:
            facts = self.pods[uid] = PodFacts(uid, pod["metadata"]["name"], pod)
        for rule in self._rules:
            rule.pod(deed, facts)
        if labels_of(facts.object) != labels_of(pod):
            facts.relabelled = self.now
        facts.object = pod
        if facts.node and facts.bound == NEVER:
            facts.bound = self.now
        waited = deed.new is not None and bool(facts.node) and is_waited_for(pod)
        facts.waited = min(facts.waited, self.now) if waited else NEVER
        if is_deleted(pod):
            facts.asked = min(facts.asked, self.now)
            seconds = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            if not facts.granted or facts.granted[-1][1] != seconds:
                facts.granted.append((self.now, seconds))
        if deed.new is None or not waited:
            facts.over = min(facts.over, self.now) if facts.node else facts.over
        if deed.new is None:
            self._on_node[facts.node].pop(uid, None)
        elif facts.node:
            self._on_node[facts.node][uid] = facts

    def _node(self, deed: Deed) -> None:
        self._note_settings()
        self._thing(deed, self.nodes, claims=False)

    def _claim(self, deed: Deed) -> None:
        self._note_settings()
        self._thing(deed, self.claims, claims=True)

    def _thing(self, deed: Deed, known: dict[str, ThingFacts], *, claims: bool) -> None:
        thing, uid = deed.object, deed.object["metadata"]["uid"]
        facts = known.get(uid)
        if facts is None:
            facts = known[uid] = ThingFacts(uid, thing["metadata"]["name"], thing, self.now)
        for rule in self._rules:
            (rule.claim if claims else rule.node)(deed, facts)
        facts.object = thing
        if (is_deleted(thing) or deed.new is None) and facts.deleted == NEVER:
            facts.deleted, facts.stamp = self.now, self.now
            facts.deleted_by = "" if deed.request is None else deed.sender
            if is_deleted(thing):
                facts.stamp = self.instant(thing["metadata"]["deletionTimestamp"])
        if deed.new is None:
            facts.gone = self.now
        self._match()

    def _match(self) -> None:
        """Note which claims have which nodes."""
        for claim in self.claims.values():
            status = claim.object.get("status", {})
            for node in self.living_nodes() if claim.gone == NEVER else ():
                if claim.provider_id and node.provider_id:
                    belongs = claim.provider_id == node.provider_id
                else:
                    belongs = status.get("nodeName") == node.name
                if belongs:
                    node.claims.add(claim.uid)
