"""The end of a node or a claim while it is under way: what is known of it beyond the objects themselves.

Nothing here must survive: after a restart it is built anew from the object, and every step finds out for itself what is
done already. It keeps the object as fresh as we have seen it, the deadline, when the provider is to be asked next, and
how long each step has taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from gracectl.controllers.cluster.tracked import AnyHeld, H, Held
from gracectl.controllers.pipeline.failures import Failures
from gracectl.controllers.pipeline.observer import NO_OBSERVER, TerminationObserver
from gracectl.controllers.pipeline.statistics import EndKind
from gracectl.controllers.settings import InstanceSettings
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline
from gracectl.runtime.backoff import Backoff


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for people: where an end stands. Times are Unix seconds, `seconds` durations by step."""

    name: str
    uid: str
    kind: EndKind
    step: str
    started: float
    step_since: float
    seconds: Mapping[str, float]
    waits_for: str
    pods_left: int = 0
    """Of a node: how many hold it."""
    is_at_standstill: bool = False
    """Of a node: for a minute nobody has left, or was on his way, though somebody should."""
    nodes: tuple[str, ...] = ()
    """Of a claim: those that are waited for; their own terminations say more. Without any it has its own way to go."""
    deadline: float | None = None
    finished: float | None = None

    @property
    def kept(self) -> bool:
        """Of a node: it is drained and stays. It rests at the step "kept", and is given back at "uncordon"."""
        return self.kind == "kept"


class InstanceWait(msgspec.Struct):
    """When to speak to the provider again, and how patiently. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    provider_id: str = ""
    """Of which instance all of this is."""
    is_gone: bool = False
    """The provider has said so: it is not asked again, for a machine may come back under the same providerID."""
    asked_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """Before this instant nobody asks whether the instance of a node that is not Ready is still there."""

    @classmethod
    def of(cls, settings: InstanceSettings, backoff: Callable[[float, float], Backoff]) -> InstanceWait:
        """As patient as the settings say; `backoff` makes one of its initial and its longest wait (seconds)."""
        return cls(
            poll=backoff(settings.poll_initial_seconds, settings.poll_maximum_seconds),
            retry=backoff(settings.retry_initial_seconds, settings.retry_maximum_seconds),
        )

    def configure(self, settings: InstanceSettings) -> None:
        """As patient as the settings say now, from the next wait on."""
        self.poll.configure(settings.poll_initial_seconds, settings.poll_maximum_seconds)
        self.retry.configure(settings.retry_initial_seconds, settings.retry_maximum_seconds)

    def turn_to(self, provider_id: str) -> None:
        """It is about this instance; what was remembered of another one does not count."""
        if provider_id != self.provider_id:
            self.provider_id, self.is_gone, self.asked_at, self.next_call = provider_id, False, None, 0.0
            self.poll.reset()
            self.retry.reset()

    @property
    def was_tried(self) -> bool:
        """Whether the provider was asked to end the instance, with or without success."""
        return self.asked_at is not None or self.next_call > 0


class Ending(ABC, Generic[H]):
    """The memory of one end; identified by the object's uid, as a namesake is another object."""

    kind: EndKind = "node"

    fate = "is being terminated"
    """What is done to the object, for people."""

    outcome = "is terminated"
    """The same when it is over."""

    looks_first = False
    """Whether somebody else may have ended the instance already, so that the provider is looked at before it is asked.
    """

    def __init__(self, held: Held[H], instance: InstanceWait, now: float) -> None:
        begun = held.state.deletion_timestamp
        self.held = held
        self.uid = held.uid
        self.started = now if begun is None else begun
        self.instance = instance
        self.deadline: Deadline | None = None
        # A predecessor of ours has come as far as the drain, and has told people of it.
        drained = condition_of(held.state.conditions, names.DRAINED)
        self.is_resumed = drained is not None and drained.reason != names.STEP_FAILING
        self.observer: TerminationObserver = NO_OBSERVER
        self.failures = Failures()  # by step
        self.complained: set[tuple[str, str]] = set()  # by uid, what is told once: unreadable annotations, rivals
        self.waits_for = ""
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}

    @property
    @abstractmethod
    def lack(self) -> str:
        """Where `provider_id` was looked for, for people: `node worker-1 has no spec.providerID`."""

    @property
    @abstractmethod
    def provider_id(self) -> str:
        """Which instance; empty when nobody knows."""

    @property
    @abstractmethod
    def source(self) -> Node | None:
        """The node whose instance that is, if it is known from a node, or is a node's."""

    @property
    @abstractmethod
    def objects(self) -> tuple[AnyHeld, ...]:
        """Where people are told of it: the object itself first."""

    @property
    def ends_by(self) -> float | None:
        """The instant of the deadline; None without one."""
        return None if self.deadline is None else self.deadline.at

    def is_overdue(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline.at <= now

    def forget_steps(self, now: float) -> None:
        """From now on it stands nowhere, and has come nowhere before."""
        self._step, self._step_since, self._seconds, self.waits_for = "", now, {}, ""

    def pass_through(self, step: str, now: float) -> None:
        """A walk has come to this step: it is where the end stands, unless a walk has come so far before."""
        if step not in self._seconds:
            self._stand_at(step, now)

    def rest_at(self, step: str, now: float, waits_for: str) -> None:
        """A walk has ended at this step, for this reason; it may be an earlier one than before (a late pod)."""
        self._stand_at(step, now)
        self.waits_for = waits_for

    def _stand_at(self, step: str, now: float) -> None:
        """Time counts for the step at which the end stands."""
        if step != self._step:
            self._leave(now)
            self._step, self._step_since = step, now
            self._seconds.setdefault(step, 0.0)
            self.waits_for = ""

    def finish(self, now: float) -> None:
        """It is over, and stands nowhere any more."""
        self._leave(now)
        self._step_since = now

    def _leave(self, now: float) -> None:
        if self._step:
            self._seconds[self._step] += now - self._step_since
            self.observer.step_over(self._step, self._step_since, now, self.waits_for)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        running = {self._step: self._seconds[self._step] + now - self._step_since} if self._step else {}
        return Progress(
            name=self.held.name,
            uid=self.uid,
            kind=self.kind,
            step=self._step,
            started=self.started,
            step_since=self._step_since,
            seconds={**self._seconds, **running},
            waits_for=self.waits_for,
            deadline=self.ends_by,
        )


AnyEnding = Ending[Any]
"""A node's or a claim's."""

E = TypeVar("E", bound=AnyEnding)
