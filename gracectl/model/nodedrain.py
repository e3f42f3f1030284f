"""NodeDrain: a campaign over nodes, as it is requested and as its status records it.

Invariants: what is kept of one is bounded; a node in scope is `NAME/UID`, so that a later node with the same name is
another node; enumerations have only the values of the definition, an object with others is set aside.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names, wire
from gracectl.model.bounds import OverLimit, cut
from gracectl.model.durations import parse_seconds
from gracectl.model.meta import ClusterObject, Condition
from gracectl.model.parts import (
    LONGEST_NAME,
    bound,
    checked_selector,
    conditions,
    created,
    finalizers,
    identity_of,
    instant,
    windows,
)
from gracectl.model.selectors import LabelSelector
from gracectl.model.sharing import Sharing
from gracectl.model.untrusted import Decoder
from gracectl.model.windows import Window

MOST_NODES: Final = 5_000
"""Nodes of one campaign."""
MOST_SHOWN: Final = 100
"""Nodes in status.nodes."""
MOST_BLOCKERS: Final = 3
"""Blockers of a node in status.nodes."""
MOST_GATES: Final = 32
_LONGEST_REFERENCE: Final = LONGEST_NAME + 1 + 128


class Action(StrEnum):
    """What happens to each node."""

    DRAIN = "Drain"
    TERMINATE = "Terminate"


class Order(StrEnum):
    """Order in which nodes begin."""

    BY_FORECAST = "ByForecast"
    OLDEST_FIRST = "OldestFirst"
    BY_NAME = "ByName"


class OnUndrainable(StrEnum):
    """What happens to a node that cannot be drained."""

    WAIT = "Wait"
    SKIP = "Skip"
    FAIL = "Fail"


class OnTimeout(StrEnum):
    """What happens to a node with the action Drain that is not drained in time."""

    KEEP_CORDONED = "KeepCordoned"
    UNCORDON = "Uncordon"


class NodeState(StrEnum):
    """Where a node is, in status.nodes."""

    PENDING = "Pending"
    GATED = "Gated"
    DRAINING = "Draining"
    TERMINATING = "Terminating"
    SETTLING = "Settling"
    """Finished, except that displaced pods are not Ready elsewhere, or their budgets not whole."""
    DRAINED = "Drained"
    TERMINATED = "Terminated"
    SKIPPED = "Skipped"
    FAILED = "Failed"
    CANCELED = "Canceled"


class Blocker(msgspec.Struct, frozen=True, gc=False):
    """An object that blocks a node."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    message: str = ""
    until: float | None = None


class NodeProgress(msgspec.Struct, frozen=True, gc=False):
    """An entry of status.nodes."""

    name: str
    uid: str
    state: NodeState
    since: float | None = None
    pods_left: int | None = None
    """None: not counted."""
    blocked_by: tuple[Blocker, ...] = ()
    message: str = ""
    trace_id: str = ""


class Counts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """status.counts."""

    total: int = 0
    done: int = 0
    pending: int = 0
    in_progress: int = 0
    drained: int = 0
    terminated: int = 0
    skipped: int = 0
    failed: int = 0
    canceled: int = 0


class Scope(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """status.scope: each node of the campaign as `NAME/UID`, in the field of its state."""

    pending: tuple[str, ...] = ()
    in_progress: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    terminated: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    canceled: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    """Nodes that were skipped once, and try again; each is in another field, too."""


class NodeDrain(ClusterObject, frozen=True, gc=True, weakref=True, kw_only=True):
    """One campaign."""

    generation: int = 0
    created: float = 0.0
    deletion_timestamp: float | None = None
    finalizers: tuple[str, ...] = ()
    requested_by: str = ""
    """User who created it, by our admission webhook; empty: unknown."""
    gates: tuple[str, ...] = ()
    """Names of its gates (annotations `gate.gracectl.io/NAME`)."""

    # spec
    action: Action
    node_names: tuple[str, ...] = ()
    """spec.nodeName or spec.nodeNames."""
    selector: LabelSelector | None = None
    selector_error: str = ""
    """Why spec.nodeSelector is invalid."""
    max_concurrent: int | str = 1
    wait_for_replacement: bool = True
    order: Order = Order.BY_FORECAST
    on_undrainable: OnUndrainable = OnUndrainable.WAIT
    timeout: float | None = None
    """Seconds."""
    on_timeout: OnTimeout = OnTimeout.KEEP_CORDONED
    windows: tuple[Window, ...] = ()
    """When nodes may begin; empty: always."""
    reason: str = ""
    paused: bool = False
    ttl: int | None = None
    """Seconds after it has finished."""

    # status
    observed_generation: int = 0
    start_time: float | None = None
    completion_time: float | None = None
    estimated_end: float | None = None
    counts: Counts = Counts()
    nodes: tuple[NodeProgress, ...] = ()
    scope: Scope = Scope()
    conditions: tuple[Condition, ...] = ()

    @property
    def keeps_cordoned(self) -> bool:
        """Whether a failed node stays cordoned."""
        return self.action is Action.DRAIN and self.on_timeout is OnTimeout.KEEP_CORDONED

    @property
    def reference(self) -> str:
        """`NAME/UID`, as in the annotation of its nodes."""
        return f"{self.name}/{self.uid}"


class _Annotations(wire.Object):
    requested_by: str | None = msgspec.field(default=None, name=names.REQUESTED_BY)


class _Meta(wire.Meta):
    annotations: _Annotations | None = None


class _Spec(wire.Object):
    action: Action
    node_name: str | None = None
    node_names: tuple[str, ...] | None = None
    selector: msgspec.Raw = msgspec.field(default=wire.ABSENT, name="nodeSelector")
    max_concurrent: wire.Integer | str | None = None
    wait_for_replacement: bool | None = None
    order: Order | None = None
    on_undrainable: OnUndrainable | None = None
    timeout: str | None = None
    on_timeout: OnTimeout | None = None
    windows: tuple[wire.Window, ...] | None = None
    reason: str | None = None
    paused: bool | None = None
    ttl: wire.Integer | None = msgspec.field(default=None, name="ttlSecondsAfterFinished")


class _Blocker(wire.Object):
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    message: str | None = None
    until: wire.Instant | None = None


class _Node(wire.Object):
    name: str | None = None
    state: str | None = None
    uid: str | None = None
    since: wire.Instant | None = None
    pods_left: wire.Integer | None = None
    blocked_by: tuple[_Blocker, ...] | None = None
    message: str | None = None
    trace_id: str | None = msgspec.field(default=None, name="traceID")


class _Counts(wire.Object):
    total: wire.Integer | None = None
    done: wire.Integer | None = None
    pending: wire.Integer | None = None
    in_progress: wire.Integer | None = None
    drained: wire.Integer | None = None
    terminated: wire.Integer | None = None
    skipped: wire.Integer | None = None
    failed: wire.Integer | None = None
    canceled: wire.Integer | None = None


class _Scope(wire.Object):
    pending: tuple[str, ...] | None = None
    in_progress: tuple[str, ...] | None = None
    drained: tuple[str, ...] | None = None
    terminated: tuple[str, ...] | None = None
    skipped: tuple[str, ...] | None = None
    failed: tuple[str, ...] | None = None
    canceled: tuple[str, ...] | None = None
    retried: tuple[str, ...] | None = None


class _Status(wire.Conditions):
    observed_generation: wire.Integer | None = None
    start_time: wire.Instant | None = None
    completion_time: wire.Instant | None = None
    estimated_end: wire.Instant | None = None
    counts: _Counts | None = None
    nodes: tuple[_Node, ...] | None = None
    scope: _Scope | None = None


class WireNodeDrain(wire.Object):
    """The JSON of a NodeDrain."""

    metadata: _Meta
    spec: _Spec
    status: _Status | None = None


class NodeDrainDecoder:
    """Reads NodeDrains, and charges large ones to the quota of `sharing` (its own, unless one is given)."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.sharing = sharing or Sharing()

    def __call__(self, raw: bytes | msgspec.Raw) -> NodeDrain:
        """Decode the NodeDrain in this JSON object. Also raises OverLimit."""
        read = _NODE_DRAIN.decode(raw)
        meta, spec, status = read.metadata, read.spec, read.status or _Status()
        name, uid, resource_version = identity_of(meta)
        selector, selector_error = checked_selector(spec.selector)
        node_names = spec.node_names or ((spec.node_name,) if spec.node_name else ())
        drain = NodeDrain(
            name=name,
            uid=uid,
            resource_version=resource_version,
            generation=meta.generation or 0,
            created=created(meta.creation_timestamp),
            deletion_timestamp=instant(meta.deletion_timestamp),
            finalizers=finalizers(meta),
            requested_by=cut(meta.annotations.requested_by if meta.annotations else None),
            gates=gates_of(raw),
            action=spec.action,
            node_names=_few("spec.nodeNames", node_names, LONGEST_NAME),
            selector=selector,
            selector_error=selector_error,
            max_concurrent=1 if (at_once := bound(spec.max_concurrent)) is None else at_once,
            wait_for_replacement=spec.wait_for_replacement is not False,
            order=spec.order or Order.BY_FORECAST,
            on_undrainable=spec.on_undrainable or OnUndrainable.WAIT,
            timeout=_seconds("spec.timeout", spec.timeout),
            on_timeout=spec.on_timeout or OnTimeout.KEEP_CORDONED,
            windows=windows(spec.windows),
            reason=cut(spec.reason),
            paused=bool(spec.paused),
            ttl=spec.ttl,
            observed_generation=status.observed_generation or 0,
            start_time=instant(status.start_time),
            completion_time=instant(status.completion_time),
            estimated_end=instant(status.estimated_end),
            counts=_counts(status.counts),
            nodes=tuple([_progress(each) for each in (status.nodes or ())[:MOST_SHOWN] if each.state in _STATES]),
            scope=_scope(status.scope),
            conditions=conditions(status, cut),
        )
        self.sharing.quota.charge(drain, (NodeDrain, name))
        return drain


def decode_node_drain(raw: bytes | msgspec.Raw) -> NodeDrain:
    """One NodeDrain that is charged alone: a cache uses a NodeDrainDecoder."""
    return NodeDrainDecoder()(raw)


def gates_of(raw: bytes | msgspec.Raw) -> tuple[str, ...]:
    """Names of the gates of the object in this JSON, sorted, the first few; ValidationError unless it is an object."""
    if _GATE not in bytes(raw):  # as nearly every object
        return ()
    found = _ANNOTATED.decode(raw).metadata.annotations or {}
    gates = sorted(cut(each.removeprefix(names.GATE), LONGEST_NAME) for each in found if each.startswith(names.GATE))
    return tuple(gates[:MOST_GATES])


class _AnyAnnotations(wire.Object):
    annotations: dict[str, str | None] | None = None


class _Annotated(wire.Object):
    metadata: _AnyAnnotations


def _few(field: str, found: tuple[str, ...], longest: int) -> tuple[str, ...]:
    if len(found) > MOST_NODES:
        raise OverLimit(f"{field} has {len(found):,} entries, more than {MOST_NODES:,}; use several NodeDrains")
    if max(map(len, found), default=0) > longest:
        raise OverLimit(f"{field} has an entry of more than {longest} characters")
    return found


def _seconds(field: str, text: str | None) -> float | None:
    if text is not None and len(text) > LONGEST_NAME:
        raise OverLimit(f"{field} has {len(text):,} characters; a duration has {LONGEST_NAME} at most")
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise msgspec.ValidationError(f"{field}: {error}") from error


def _counts(read: _Counts | None) -> Counts:
    if read is None:
        return Counts()
    return Counts(**{field: getattr(read, field) or 0 for field in Counts.__struct_fields__})


def _scope(read: _Scope | None) -> Scope:
    if read is None:
        return Scope()
    fields = {
        field: _few(f"status.scope.{field}", getattr(read, field) or (), _LONGEST_REFERENCE)
        for field in Scope.__struct_fields__
    }
    return Scope(**fields)


def _progress(read: _Node) -> NodeProgress:
    return NodeProgress(
        cut(read.name, LONGEST_NAME),
        cut(read.uid, LONGEST_NAME),
        NodeState(read.state or ""),
        instant(read.since),
        read.pods_left,
        tuple(
            [
                Blocker(cut(each.kind), cut(each.namespace), cut(each.name), cut(each.message), instant(each.until))
                for each in (read.blocked_by or ())[:MOST_BLOCKERS]
            ]
        ),
        cut(read.message),
        cut(read.trace_id, LONGEST_NAME),
    )


_STATES: Final = frozenset(NodeState)
_GATE: Final = f'"{names.GATE}'.encode()
_NODE_DRAIN: Final = Decoder(WireNodeDrain)
_ANNOTATED: Final = Decoder(_Annotated)
