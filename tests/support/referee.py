"""Watches a cluster from the server's side and remembers every rule that a controller breaks.

It gets each stored change in the moment of the change (`stored`), and does its own sums (`promises`). What was
done is judged at once; what was not done in time, at the end (`verdict`), when it is known how long a
controller was there to do it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil

import msgspec
from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import parse_time
from support.inprocess import uid_of
from support.promises import NEVER, Deadlines, annotated, is_waited_for, own_grace, protected_until
from support.stage import Stage
from support.stored import Deed, follow, options_of

WARM_UP = 1.0
"""Seconds that a controller has from its start until it must be in charge."""

NOISE = 1e-3
"""Instants that are nearer to each other are the same."""


COUNTING = 0.5
"""For so many seconds after a pod has left otherwise, a server may not yet count it and agree to one eviction too many.
"""

STUCK = 60.0
"""For so many seconds after its grace a pod that is still there is waited for."""


class PodLife(msgspec.Struct):
    """A pod's way out. Instants are the server's Unix time, NEVER while they have not come."""

    name: str
    node: str
    grace: int
    waited_for: bool
    bound: float
    asked: float = NEVER
    over: float = NEVER
    granted: list[tuple[float, int]] = msgspec.field(default_factory=list)


class Referee:
    """`periods`: the TGP of the nodes that have one, in seconds. `needed`: how many pods of an app its budget keeps.

    `is_fair`: nothing but kills stands between the controllers and the server, so that omissions can be judged by the
    clock, and what they do is done once.
    """

    def __init__(self, stage: Stage, periods: Mapping[str, float], *, is_fair: bool = False) -> None:
        self.broken: list[str] = []
        self.needed: dict[str, int] = {}
        self.deadlines = Deadlines(periods)
        self.deletions = 0
        self._stage = stage
        self._is_fair = is_fair
        self._lives: list[tuple[float, float]] = []
        self._pods: dict[str, PodLife] = {}
        self._ready: defaultdict[str, set[str]] = defaultdict(set)
        self._uncounted: dict[str, float] = {}
        self._over: dict[str, float] = {}
        self._told: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        follow(stage, "pods", self._pod_changed)
        follow(stage, "nodes", self._node_changed)
        follow(stage, "nodeclaims.karpenter.sh", self._claim_changed)

    @property
    def now(self) -> float:
        """The server's Unix time."""
        return self._stage.cluster.server_clock.now()

    @contextmanager
    def life(self) -> Iterator[None]:
        """A controller lives while the block lasts."""
        began = self.now
        try:
            yield
        finally:
            self._lives.append((began, self.now))

    def graces_on(self, node: str) -> list[int]:
        """The graces of the pods that are on a node now."""
        return [life.grace for life in self._pods.values() if life.node == node and life.over == NEVER]

    # -- what is done --------------------------------------------------------------------------------------------------

    def _pod_changed(self, deed: Deed) -> None:
        pod = deed.object
        node = pod["spec"].get("nodeName", "")
        life = self._pods.get(pod["metadata"]["uid"])
        if life is None and node:
            name = pod["metadata"]["name"]
            life = PodLife(name, node, own_grace(pod), is_waited_for(pod), deed.at)
            self._pods[pod["metadata"]["uid"]] = life
        if deed.is_by("delete", "pods"):
            self.deletions += 1
            self._judge_deletion(deed)
        elif deed.is_by("create", "pods/eviction"):
            self._judge_eviction(deed)
        elif deed.request is not None:
            self.broken.append(f"pod {pod['metadata']['name']} was changed by {deed.request.method}")
        self._judge_health(deed)
        if life is not None:
            _advance(life, deed)

    def _judge_deletion(self, deed: Deed) -> None:
        pod, before = deed.object, deed.old
        assert before is not None
        if deed.new is None and "deletionTimestamp" in before["metadata"]:
            return  # the second of the two changes by which a pod goes at once; the first was judged
        node, name = pod["spec"].get("nodeName", ""), pod["metadata"]["name"]
        deadline = self._deadline_at_least(node)
        if deadline == NEVER:
            self.broken.append(f"{name} was deleted, and nothing says that node {node!r} has a deadline")
            return
        left, own = deadline - deed.at, own_grace(before)
        granted = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        if "deletionTimestamp" not in before["metadata"]:
            if left > own + NOISE:
                self.broken.append(f"{name} was deleted {left - own:.3f} s before its time")
            most = max(1, min(own, ceil(left) + 1))
        else:
            ends = parse_time(before["metadata"]["deletionTimestamp"])
            if left > NOISE and ends <= deadline:
                self.broken.append(f"the grace of {name} was cut though it ended {deadline - ends:.3f} s before")
            most = max(1, ceil(left) + 1)
        least = max(1.0, min(float(own), left))
        if not least - NOISE <= granted <= (most if self._is_fair else max(own, 1)):
            self.broken.append(f"{name} (own grace {own}) was granted {granted} s when {left:.3f} s were left")

    def _deadline_at_least(self, node: str) -> float:
        if not self._is_fair:
            return self.deadlines.earliest(node)
        due = self.deadlines.of(node)
        return due.at if due else NEVER

    def _judge_eviction(self, deed: Deed) -> None:
        pod = deed.old
        assert pod is not None
        node, name = pod["spec"].get("nodeName", ""), pod["metadata"]["name"]
        found = self._stage.node(node)
        if found is None or not ("deletionTimestamp" in found["metadata"] or is_to_be_drained(found)):
            self.broken.append(f"{name} was evicted from {node!r}, which is neither deleted nor to be drained")
        if (until := protected_until(pod)) > deed.at + NOISE:
            self.broken.append(f"{name} was evicted and is protected until {until}")
        due = self.deadlines.of(node)
        if self._is_fair and due is not None and deed.at > max(due.at - own_grace(pod), due.known) + COUNTING:
            self.broken.append(f"{name} was evicted when it should have been deleted")

    def _judge_health(self, deed: Deed) -> None:
        """No eviction breaks a budget. Other removals (at a deadline, with the machine) may."""
        pod = deed.object
        app, uid = pod["metadata"].get("labels", {}).get("app", ""), pod["metadata"]["uid"]
        ready, needed = self._ready[app], self.needed.get(app, 0)
        before = len(ready)
        if deed.new is not None and is_ready(deed.new):
            ready.add(uid)
        else:
            ready.discard(uid)
        if len(ready) >= before:
            return
        if not deed.is_by("create", "pods/eviction"):
            self._uncounted[app] = deed.at
        elif len(ready) < needed and deed.at > self._uncounted.get(app, 0.0) + COUNTING:
            self.broken.append(f"an eviction left {len(ready)} pods of {app} ready, {needed} are needed")

    def _node_changed(self, deed: Deed) -> None:
        self.deadlines.node_changed(deed)
        name = deed.object["metadata"]["name"]
        if deed.request is not None and (at := annotated(deed.new)) < annotated(deed.old):
            self._told[name].append((deed.at, at))
        if deed.new is not None:
            return
        self._over[name] = deed.at
        if deed.request is None:
            return  # another client has removed the finalizer
        if (state := self._state_behind(deed.object)) != "terminated":
            self.broken.append(f"node {name} was let go while its instance is {state}")
        if (due := self.deadlines.of(name)) is None or due.at > deed.at:
            attachments = self._stage.server.store.table("volumeattachments.storage.k8s.io")
            if any(each["spec"]["nodeName"] == name for each in attachments):
                self.broken.append(f"node {name} was let go with a volume attached")

    def _claim_changed(self, deed: Deed) -> None:
        self.deadlines.claim_changed(deed)
        node = deed.object.get("status", {}).get("nodeName", "")
        if deed.new is None and node:
            if self._stage.node(node) is not None:
                self.broken.append(f"the claim of {node} was let go before its node")
            if self._state_of(deed.object["status"].get("providerID", "")) != "terminated":
                self.broken.append(f"the claim of {node} was let go before its instance had ended")

    def _state_behind(self, node: JsonObject) -> str:
        """The state of its instance; `terminated` while another node stands for the same one."""
        provider_id = node["spec"].get("providerID", "")
        is_shared = any(each["spec"].get("providerID") == provider_id for each in self._stage.nodes())
        return "terminated" if is_shared else self._state_of(provider_id)

    def _state_of(self, provider_id: str) -> str:
        """The state of an instance; `terminated` if there is none of that name."""
        instances = {each.id: each.state for each in self._stage.cluster.cloud.instances}
        return instances.get(provider_id.rsplit("/", 1)[-1], "terminated")

    # -- what is not done ----------------------------------------------------------------------------------------------

    def verdict(self, bound: float = 0.2) -> list[str]:
        """Every broken rule, those about things that were not done in time too.

        `bound`: the longest (seconds) that a controller which is in charge may take for anything.
        """
        broken = [*self.broken, *self.deadlines.broken, *self._requests(), *self._instances(bound)]
        return [*broken, *self._pods_in_time(bound)] if self._is_fair else broken

    def _requests(self) -> Iterator[str]:
        """Deletions as they were asked for: by uid, with at least a second, and (`is_fair`) never the same twice."""
        asked: Counter[tuple[str, int]] = Counter()
        for each in self._stage.transport.of("delete", "pods"):
            uid, grace = uid_of(each.request), options_of(each.request).get("gracePeriodSeconds", -1)
            if not uid or grace < 1:
                yield f"{each.operation} with grace {grace} and uid {uid!r}"
            if each.status < 300 and uid in self._pods:
                asked[uid, grace] += 1
        if self._is_fair:
            twice = ((uid, grace) for (uid, grace), times in asked.items() if times > 1)
            yield from (f"{self._pods[uid].name} was deleted twice with grace {grace}" for uid, grace in twice)

    def _instances(self, bound: float) -> Iterator[str]:
        """At its deadline an instance is terminated, or as soon as a controller runs; before, when no pod is
        left."""
        asked: dict[str, float] = {}
        ended: dict[str, float] = {}
        for entry in self._stage.cluster.cloud.journal:
            if entry.what != "created":
                asked.setdefault(entry.id, entry.instant)
            if entry.what == "shutting-down":
                ended[entry.id] = entry.instant
        for node, id_ in self._stage.instances.items():
            end = asked.get(id_, self.now)
            late = max((self._idle(max(at, since), end, since) for since, at in self._known(node)), default=0.0)
            if late > bound:
                yield f"the instance of {node} was asked to end {late:.3f} s after its deadline"
            if id_ in ended and self.deadlines.earliest(node) > ended[id_] + NOISE:
                left = [life.name for life in self._on(node, ended[id_])]
                if left:
                    yield f"the instance of {node} ended before its deadline, and with it {', '.join(left)}"

    def _on(self, node: str, at: float) -> Iterator[PodLife]:
        """The pods for which a drain waits and that are there; one that has just been bound cannot be known."""
        for life in self._pods.values():
            is_stuck = life.granted and at > life.granted[-1][0] + life.granted[-1][1] + STUCK
            if life.node == node and life.waited_for and life.bound < at - COUNTING and life.over > at and not is_stuck:
                yield life

    def _known(self, node: str) -> list[tuple[float, float]]:
        """Since when the deadline of a node is known, and what it is: to every process that runs from then on, or (not
        `is_fair`) to the controller that has written it down, as it is unknown what else it has seen."""
        if not self._is_fair:
            return self._told[node]
        due = self.deadlines.of(node)
        return [(due.known, due.at)] if due else []

    def _pods_in_time(self, bound: float) -> Iterator[str]:
        """A pod that would outlive the deadline is deleted its grace before it, and has a second at its end."""
        for life in self._pods.values():
            due = self.deadlines.of(life.node)
            if due is None or not life.waited_for:
                continue
            end = min(life.over, self._over.get(life.node, NEVER), self.now)
            late = self._idle(max(due.at - life.grace, due.known, life.bound), min(life.asked, end))
            if late > bound:
                yield f"{life.name} was told to end {late:.3f} s after its time"
            short = next((at for at, seconds in life.granted if seconds <= 1), NEVER)
            late = self._idle(max(due.at, due.known, life.bound), min(short, end))
            if late > bound:
                yield f"{life.name} was still granted more than a second {late:.3f} s after the deadline"

    def _idle(self, since: float, until: float, known: float = 0.0) -> float:
        """The longest that one controller was in charge between two instants.

        Where the judgement is not fair, only one counts that was there at the instant `known`.
        """
        lives = [life for life in self._lives if self._is_fair or life[0] <= known <= life[1]]
        return max((min(end, until) - max(began + WARM_UP, since) for began, end in lives), default=0.0)


def _advance(life: PodLife, deed: Deed) -> None:
    """Note how far a pod has come on its way out."""
    metadata = deed.object["metadata"]
    if deed.new is None or not is_waited_for(deed.new):
        life.over = min(life.over, deed.at)
    if "deletionTimestamp" in metadata:
        life.asked = min(life.asked, deed.at)
        granted = metadata.get("deletionGracePeriodSeconds", 0)
        if not life.granted or life.granted[-1][1] != granted:
            life.granted.append((deed.at, granted))


def is_ready(pod: JsonObject) -> bool:
    """As a budget counts it: Ready, and not on its way out."""
    conditions = pod["status"].get("conditions") or []
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and any(each["type"] == names.READY and each["status"] == "True" for each in conditions)


def is_to_be_drained(node: JsonObject) -> bool:
    """Whether its maintenance is requested."""
    return names.KEEP_DRAINED in node["metadata"].get("annotations", {})
