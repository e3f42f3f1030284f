"""Cluster cache: caches of all kinds, joined into the view of one node that a plan is made from."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar

import msgspec

from gracectl.cloud.provider import InstanceKey
from gracectl.controllers.karpenter import Presence
from gracectl.kube.cache import Cache, Key
from gracectl.kube.resources import NODE_CLAIMS, NODES, PODS, Resource
from gracectl.kube.transport.operation import Operation
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim, belongs, only_claim, surviving_nodes
from gracectl.model.machine import Machine
from gracectl.model.meta import ConfigMap
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.model.selectors import LabelSelector
from gracectl.model.sharing import PackedLabels
from gracectl.policy.budget_index import BudgetIndex, Names
from gracectl.policy.budgets import BudgetKey, unknown_budget_of
from gracectl.policy.deadlines import Deadline
from gracectl.policy.evictability import ignored
from gracectl.policy.finalizers import has_finalizer
from gracectl.policy.freeze import Freeze, read_freeze
from gracectl.policy.maintenance import is_maintenance_requested
from gracectl.policy.owners import ManagedNodes, Ownership, other_owner, other_owner_of_claim
from gracectl.policy.pace import is_starting
from gracectl.policy.plan import NodeView
from gracectl.policy.protection import asks_for_protection
from gracectl.policy.release import release_of
from gracectl.policy.replacement import WorkloadFacts, facts_key
from gracectl.policy.returning import recreating_controller
from gracectl.policy.settings import PolicySettings
from gracectl.policy.stalled import is_due
from gracectl.runtime.slices import Sliced, Slices, run_at_once

C = TypeVar("C", Node, NodeClaim)

BY_NAME = "name"
BY_NODE = "node"
BY_PROVIDER_ID = "providerID"
BY_ASKING = "node of a pod that asks for protection"
BY_STARTING = "controller of a pod that is not Ready"
BY_RELEASED = "ReplicaSet of a released pod"


class ClusterCache(msgspec.Struct, frozen=True):
    """Caches that terminations read. Nothing is decided before all caches are live."""

    nodes: Cache[Node]
    pods: Cache[Pod]
    budgets: Cache[PodDisruptionBudget]
    attachments: Cache[VolumeAttachment]
    claims: Cache[NodeClaim]
    """Live and empty where the cluster has no node claims."""
    machines: Cache[Machine]
    """Machines of Cluster API; not live unless their drains are assisted."""
    freezes: Cache[ConfigMap]
    """The ConfigMap of a freeze, or none; live only in the controller."""
    instance_key: InstanceKey
    """Canonical key of an instance, by its providerID."""
    matcher: BudgetMatcher
    slices: Slices
    volumes: dict[tuple[str, str], str]
    """Volumes of pods that stay, by the UID of the pod and the name of its claim (see `read_volumes`)."""
    workloads: dict[Key, WorkloadFacts]
    """What was read of workloads with pods that may be replaced (see `read_facts`), by `facts_key`."""
    unbound: list[Pod]
    """What was read of pods without a node where not all pods are cached (see `read_unbound`)."""
    presence: Presence

    async def wait_live(self) -> None:
        """Return when each cache has taken over its first complete list."""
        for cache in self.caches:
            await cache.wait_live()

    @contextmanager
    def scoped_subscriptions(self) -> Iterator[None]:
        """Subscriptions made while the block runs end with it."""
        with ExitStack() as stack:
            for cache in (*self.caches, self.machines, self.freezes):
                stack.enter_context(cache.scoped_subscriptions())
            yield

    @property
    def caches(self) -> tuple[Cache[Any], ...]:
        """All caches that must be live."""
        return (self.nodes, self.pods, self.budgets, self.attachments, self.claims)

    def freeze(self, now: float) -> Freeze | None:
        """The freeze that is in force."""
        found = (read_freeze(each.data) for each in self.freezes.values())
        return next((each for each in found if each.is_in_force(now)), None)

    def witness(self, operation: Operation) -> Callable[[], None] | None:
        """See kube.client.Witness: what the server does not find is gone, however late the watch shows that."""
        followed: tuple[tuple[Resource[Any], Cache[Any]], ...] = (
            (PODS, self.pods),
            (NODES, self.nodes),
            (NODE_CLAIMS, self.claims),
        )
        key = operation.namespace, operation.name
        for resource, cache in followed:
            if (operation.group, operation.plural) == (resource.group, resource.plural):
                thing = cache.get(*key)
                return None if thing is None else partial(cache.learn_gone, key, thing.uid)
        return None

    def learn_gone(self, thing: Node | NodeClaim) -> None:
        """A response shows that this node or claim is gone."""
        if isinstance(thing, Node):
            self.nodes.learn_gone(thing.key, thing.uid)
        else:
            self.claims.learn_gone(thing.key, thing.uid)

    def node(self, name: str) -> Node | None:
        """The node of that name."""
        return self.nodes.get("", name)

    def claim(self, name: str) -> NodeClaim | None:
        """The claim of that name."""
        return self.claims.get("", name)

    def claims_of(self, node: Node) -> tuple[NodeClaim, ...]:
        """The claims of the instance of a node: one, unless something is wrong or there is none."""
        if not self.claims:
            return ()
        found = {claim.name: claim for claim in self.claims.by_index(BY_NODE, node.name)}
        if node.provider_id:
            found |= {claim.name: claim for claim in self._by_instance(self.claims, node.provider_id)}
        return tuple(claim for claim in found.values() if belongs(node, claim))

    def claim_ending_with(self, node: Node) -> NodeClaim | None:
        """The claim that ends when this node is deleted. None: it has none, or several, of which none counts; or it is
        left over.
        """
        return None if self.is_left_over(node) else only_claim(self.claims_of(node))

    def machines_of(self, node: Node) -> tuple[Machine, ...]:
        """The Machines with the providerID of a node: one, unless something is wrong or it has none."""
        return self.machines.by_index(BY_PROVIDER_ID, node.provider_id) if node.provider_id else ()

    def is_left_over(self, node: Node) -> bool:
        """Whether another node of its claim lives on, so that this one is deleted without it (see `surviving_nodes`).

        A claim that is being deleted takes all its nodes along.
        """
        claim = only_claim(self.claims_of(node))
        if claim is None or claim.deletion_timestamp is not None:
            return False
        return bool(surviving_nodes(node, self.nodes_of(claim)))

    def nodes_of(self, claim: NodeClaim) -> tuple[Node, ...]:
        """The nodes of a claim: one once it has registered, unless something is wrong."""
        found = {}
        if claim.node_name and (node := self.node(claim.node_name)):
            found[node.name] = node
        if claim.provider_id:
            found |= {node.name: node for node in self._by_instance(self.nodes, claim.provider_id)}
        return tuple(node for node in found.values() if belongs(node, claim))

    def nodes_on(self, provider_id: str) -> tuple[Node, ...]:
        """The nodes of an instance: one, unless something is wrong or there is none."""
        return self._by_instance(self.nodes, provider_id)

    def others_on(self, node: Node, provider_id: str) -> tuple[Node, ...]:
        """Other nodes of the same instance, or of the same claim: none, unless something is wrong. Includes nodes that
        survive (see `surviving_nodes`) and nodes that we terminate; excludes nodes that are being deleted without our
        finalizer.
        """
        found = {other.name: other for other in self._by_instance(self.nodes, provider_id)}
        if (claim := only_claim(self.claims_of(node))) is not None:
            found |= {other.name: other for other in self.nodes_of(claim)}
        ending = tuple(other for other in found.values() if other.uid != node.uid and is_finalizing(other))
        return surviving_nodes(node, found.values()) + ending

    def strangers_on(self, provider_id: str, claim: NodeClaim) -> tuple[Node, ...]:
        """Nodes that stand for an instance and do not belong to this claim: none, unless something is wrong."""
        found = self._by_instance(self.nodes, provider_id)
        return tuple(
            node
            for node in found
            if not belongs(node, claim) and (is_finalizing(node) or node.deletion_timestamp is None)
        )

    def rivals_of(self, claim: NodeClaim) -> tuple[NodeClaim, ...]:
        """Other claims that promise the same instance and are not being deleted: none, unless something is wrong."""
        found = [other for node in self.nodes_of(claim) for other in self.claims_of(node)]
        if claim.provider_id:
            found += self._by_instance(self.claims, claim.provider_id)
        rivals = {each.name: each for each in found if each.uid != claim.uid and each.deletion_timestamp is None}
        return tuple(rivals.values())

    def _by_instance(self, cache: Cache[C], provider_id: str) -> tuple[C, ...]:
        key = self.instance_key(provider_id)
        return cache.by_index(BY_PROVIDER_ID, key) if key else ()

    def manages(self, managed: ManagedNodes, node: Node) -> bool:
        """Whether a node is managed."""
        return managed.includes(node, self.owning_claims_of(node))

    def manages_claim(self, managed: ManagedNodes, claim: NodeClaim) -> bool:
        """Whether a claim is managed: its nodes decide, and before it has any, its own labels."""
        nodes = self.nodes_of(claim)
        if nodes:
            return any(self.manages(managed, node) for node in nodes)
        return managed.selector.matches(claim.labels) and (managed.of_any_owner or self.owner_of_claim(claim) is None)

    def owner_of(self, node: Node) -> Ownership | None:
        """The other controller that drains a node; None: ours, if the settings select it."""
        return other_owner(node, self.owning_claims_of(node))

    def owner_of_claim(self, claim: NodeClaim) -> Ownership | None:
        """The other controller that terminates a claim; None: ours, if the settings select it."""
        return other_owner_of_claim(claim) if self.presence.owns_claims else None

    def owning_claims_of(self, node: Node) -> tuple[NodeClaim, ...]:
        """The claims that may show another owner of a node."""
        return self.claims_of(node) if self.presence.owns_claims else ()

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """The pods bound to a node."""
        return self.pods.by_index(BY_NODE, node)

    def pods_that_ask(self) -> tuple[Pod, ...]:
        """The pods that ask for protection, valid or not, and that a drain would wait for."""
        return self.pods.indexed(BY_ASKING)

    def starting_of(self, controller: str) -> tuple[Pod, ...]:
        """The pods of a workload controller, by its UID, that are to become Ready."""
        return self.pods.by_index(BY_STARTING, controller)

    def released_of(self, replica_set: Key) -> tuple[Pod, ...]:
        """The released pods of a ReplicaSet, by its namespace and name."""
        return self.pods.by_index(BY_RELEASED, replica_set)

    def released(self) -> tuple[Pod, ...]:
        """All released pods."""
        return self.pods.indexed(BY_RELEASED)

    def starting(self) -> tuple[Pod, ...]:
        """Starting pods of all workload controllers."""
        return self.pods.indexed(BY_STARTING)

    def due_under(self, budgets: Collection[BudgetKey], now: float) -> Mapping[BudgetKey, tuple[Pod, ...]]:
        """Pods of workload controllers that should have become Ready (see `is_due`) and that these budgets select."""
        namespaces = {namespace for namespace, _ in budgets}
        starting = chain((pod for pod in self.unbound if _starting(pod)), self.starting())
        due = (pod for pod in starting if pod.namespace in namespaces and is_due(pod, now))
        pods = tuple(islice(due, MOST_STARTING))
        found: dict[BudgetKey, list[Pod]] = {}
        by_pod = self.budgets_by_pod(pods) if pods else {}
        for pod in pods:
            for budget in by_pod.get(pod.uid, ()):
                if budget.key in budgets:
                    found.setdefault(budget.key, []).append(pod)
        return {key: tuple(each) for key, each in found.items()}

    def attachments_on(self, node: str) -> tuple[VolumeAttachment, ...]:
        """The volumes attached to a node."""
        return self.attachments.by_index(BY_NODE, node)

    def view_of(self, node: Node, policy: PolicySettings, deadline: Deadline | None = None) -> NodeView:
        """View of a node for a plan."""
        view = self.view_without_budgets(node, policy, deadline)
        return msgspec.structs.replace(view, budgets=self.budgets_by_pod(view.pods))

    async def view_in_slices(
        self, node: Node, policy: PolicySettings, deadline: Deadline | None, before_waiting: Callable[[], None]
    ) -> NodeView:
        """Compute the view in slices. A change meanwhile is a cache event, which queues the node again."""
        search = self.matcher.by_pod(self.pods_on(node.name))
        budgets = await self.slices.run(search, before_waiting)
        return msgspec.structs.replace(self.view_without_budgets(node, policy, deadline), budgets=budgets)

    def view_without_budgets(self, node: Node, policy: PolicySettings, deadline: Deadline | None = None) -> NodeView:
        """View without budgets: enough to find the pods that stay, and the pods to delete for the deadline."""
        at = None if deadline is None else deadline.at
        return NodeView(
            node=node,
            pods=self.pods_on(node.name),
            budgets={},
            attachments=self.attachments_on(node.name),
            volumes=dict(self.volumes),
            workloads=dict(self.workloads) if self.workloads else {},
            deadline=at,
            is_maintenance=is_maintenance_requested(node),
            settings=policy,
        )

    def budgets_by_pod(self, pods: tuple[Pod, ...]) -> BudgetsByPod:
        """Budgets by UID of the pods that any selects: one, or the first two."""
        return run_at_once(self.matcher.by_pod(pods))


def empty_cluster_cache(instance_key: InstanceKey = str.strip, *, by_name: bool = False) -> ClusterCache:
    """Empty caches with the indexes that terminations need; reflectors fill them. `instance_key`: the provider's.
    `by_name`: nodes have partitions by name."""

    def of_instance(thing: Node | NodeClaim) -> tuple[str, ...]:
        return (key,) if (key := instance_key(thing.provider_id)) else ()

    budgets: Cache[PodDisruptionBudget] = Cache("budgets", {BY_NAMESPACE: lambda budget: (budget.namespace,)})
    return ClusterCache(
        instance_key=instance_key,
        nodes=Cache(
            "nodes", {BY_PROVIDER_ID: of_instance, **({BY_NAME: lambda node: (node.name,)} if by_name else {})}
        ),
        pods=Cache(
            "pods",
            {
                BY_NODE: lambda pod: (pod.node_name,) if pod.node_name else (),
                BY_ASKING: _asking,
                BY_STARTING: _starting,
                BY_RELEASED: _released,
            },
        ),
        budgets=budgets,
        attachments=Cache("attachments", {BY_NODE: lambda attachment: (attachment.node_name,)}),
        claims=Cache(
            "claims",
            {
                BY_NODE: lambda claim: (claim.node_name,) if claim.node_name else (),
                BY_PROVIDER_ID: of_instance,
            },
        ),
        machines=Cache("machines", {BY_PROVIDER_ID: lambda machine: (machine.provider_id,)}),
        freezes=Cache("freezes"),
        matcher=BudgetMatcher(budgets),
        slices=Slices(),
        presence=Presence(),
        volumes={},
        workloads={},
        unbound=[],
    )


# Indexed by values that few pods share, since a place in a long list takes long to find.


def _asking(pod: Pod) -> tuple[str, ...]:
    # now=0: no pod counts as stuck then, and nothing else that makes a pod ignored depends on the time.
    return (pod.node_name,) if asks_for_protection(pod) and pod.node_name and ignored(pod, now=0.0) is None else ()


def _starting(pod: Pod) -> tuple[str, ...]:
    # Nearly all pods are Ready, and stand in no such index.
    return (owner.uid,) if is_starting(pod) and (owner := recreating_controller(pod)) else ()


def _released(pod: Pod) -> tuple[Key, ...]:
    is_released = names.RELEASED_FROM in pod.annotations and release_of(pod) is not None
    return (key,) if is_released and (key := facts_key(pod)) is not None else ()


def is_finalizing(thing: Node | NodeClaim) -> bool:
    """Whether the node or claim is being deleted and has our finalizer."""
    return thing.deletion_timestamp is not None and has_finalizer(thing)


SLICE: Final = 20_000
"""Labels or requirements per slice: one or two milliseconds."""

MEMO_BYTES: Final = 32 * 1024 * 1024
"""Bytes of label maps that the memo may keep alive; beyond that it is cleared."""

INDEXING: Final = 10
"""Cost of adding a label, requirement or value to an index."""

PATIENCE: Final = 10_000
"""Slices for which a search waits for another one that has unpacked labels."""

MOST_STARTING: Final = 2_000
"""Number of pods that are not Ready of which the budgets are looked for, for a forecast."""

BY_NAMESPACE: Final = "namespace"
"""Index of the budget cache."""

Search = Generator[int, None, Names]
BudgetsByPod = Mapping[str, tuple[PodDisruptionBudget, ...]]


class BudgetMatcher:
    """Matches of budget selectors and pod labels, memoised by label map until a selector of its namespace changes.

    Tenants write both, in any number and size, and the pods of a draining node are looked at often: a search is sliced,
    and the memo is bounded. Invariant: a memoised answer is what the selectors would say of the labels now.
    """

    def __init__(self, budgets: Cache[PodDisruptionBudget]) -> None:
        self._budgets = budgets
        self._namespaces: dict[str, _Namespace] = {}  # namespaces with budgets and inspected pods
        self._bytes = 0
        self._is_unpacked = False
        budgets.subscribe(self._changed)

    def by_pod(self, pods: Iterable[Pod]) -> Sliced[BudgetsByPod]:
        """Budgets that select each pod, by pod UID, in their current state: one, or the first two; pods without one are
        missing. Of a budget that is set aside and others, only that one."""
        spent = 0
        found: dict[str, tuple[str, Names]] = {}
        for pod in pods:
            namespace = self._namespace(pod.namespace)
            if namespace is None:
                continue
            names = namespace.recall(pod.labels)
            if names is None:
                search = self._search(pod, namespace)
                while names is None:
                    try:
                        spent += next(search)
                    except StopIteration as end:
                        names = end.value
                    if spent >= SLICE:
                        spent = 0
                        yield
            if names:
                found[pod.uid] = (pod.namespace, names)
        return {uid: matching for uid, place in found.items() if (matching := self._current(*place))}

    def _search(self, pod: Pod, namespace: _Namespace) -> Search:
        yield from self._index(pod.namespace, namespace)
        version = namespace.version
        names = yield from self._in_index(pod.labels, namespace.index)
        # Else a selector has changed since the search began.
        if self._namespaces.get(pod.namespace) is namespace and namespace.version == version:
            self._remember(pod.labels, namespace, names)
        return names

    def _index(self, name: str, namespace: _Namespace) -> Generator[int, None, None]:
        while namespace.unindexed:
            budget_name = next(iter(namespace.unindexed))
            selector = self._selector(name, budget_name)
            yield INDEXING * (1 if selector is None else selector.size)
            if namespace.unindexed.pop(budget_name, False):  # else another search was faster
                namespace.index.put(budget_name, self._selector(name, budget_name))

    def _selector(self, namespace: str, name: str) -> LabelSelector | None:
        budget = self._budgets.get(namespace, name)
        return None if budget is None else budget.selector

    def _in_index(self, labels: Mapping[str, str], index: BudgetIndex) -> Search:
        if not isinstance(labels, PackedLabels):
            return (yield from index.search(labels))
        # Unpacked they are quick to look up, and have 20 MB: one map at a time.
        for _ in range(PATIENCE):
            if not self._is_unpacked:
                break
            yield SLICE
        self._is_unpacked = True
        try:
            yield len(labels)
            return (yield from index.search(labels.unpacked()))
        finally:
            self._is_unpacked = False

    def _current(self, namespace: str, names: Names) -> tuple[PodDisruptionBudget, ...]:
        found = tuple([budget for name in names if (budget := self._budgets.get(namespace, name)) is not None])
        # It may select the pod or not: the others are no reason to call the pod ambiguous.
        unknown = unknown_budget_of(found)
        return found if unknown is None else (unknown,)

    def _namespace(self, name: str) -> _Namespace | None:
        """None: no budgets."""
        known = self._namespaces.get(name)
        if known is None and (budgets := self._budgets.by_index(BY_NAMESPACE, name)):
            known = self._namespaces[name] = _Namespace(budget.name for budget in budgets)
        return known

    def _remember(self, labels: Mapping[str, str], namespace: _Namespace, names: Names) -> None:
        if self._bytes > MEMO_BYTES:
            for each in self._namespaces.values():
                each.forget()
            self._bytes = 0
            return
        self._bytes += namespace.remember(labels, names)

    def _changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        assert budget is not None
        namespace = self._namespaces.get(budget.namespace)
        if namespace is None or (old is not None and new is not None and old.selector == new.selector):
            return
        self._bytes -= namespace.bytes
        namespace.changed(budget.name)
        if new is None and not self._budgets.by_index(BY_NAMESPACE, budget.namespace):
            del self._namespaces[budget.namespace]


class _Namespace:
    """Index of the budgets of a namespace; and the memo: names of budgets by identity of the label map."""

    def __init__(self, names: Iterable[str]) -> None:
        self.index = BudgetIndex()
        self.unindexed = dict.fromkeys(names, True)
        """Names of budgets with selectors that have changed since they were indexed."""
        self.version = 0
        """Counts these changes."""
        self.bytes = 0
        self._memo: dict[int, tuple[Mapping[str, str] | weakref.ref[PackedLabels], Names]] = {}

    def changed(self, name: str) -> None:
        """The selector of this budget is another one, or the budget is new or gone."""
        self.unindexed[name] = True
        self.version += 1
        self.forget()

    def forget(self) -> None:
        """Clear the memo."""
        self._memo.clear()
        self.bytes = 0

    def recall(self, labels: Mapping[str, str]) -> Names | None:
        known = self._memo.get(id(labels))
        if known is None:
            return None
        tracked, names = known
        return names if (tracked() if isinstance(tracked, weakref.ref) else tracked) is labels else None

    def remember(self, labels: Mapping[str, str], names: Names) -> int:
        """Remember an answer; returns the bytes that it keeps alive, roughly."""
        if isinstance(labels, PackedLabels):
            self._memo[id(labels)] = (weakref.ref(labels), names)
            size = 400
        else:
            self._memo[id(labels)] = (labels, names)
            size = 400 + 150 * len(labels)
        self.bytes += size
        return size
