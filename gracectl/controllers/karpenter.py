"""Whether a live Karpenter leads on this cluster, as its Lease shows it.

It owns the same finalizer: where both act, one lets nodes go that the other still drains, and instances are left over.
So nothing of ours begins while its Lease is fresh, and the leader looks again and steps back when one has come later;
a Lease that has run out, or was released, is no obstacle. A controller that may not read Leases of a namespace sees no
Karpenter there, which is reported once and stops nothing.

Many may write a Lease, so little of it is believed. It counts from when it was seen to change, for LONGEST_SECONDS at
most whatever its record says, and only where Karpenter is installed: its NodePools are served, which needs the right to
create definitions, and a pod of Karpenter runs in the Lease's namespace under the holder's host name. At first sight
its `renewTime` counts, if that is near: a process that starts must not act for the first seconds. Invariant: a Lease
that is not renewed stops nothing for longer than LONGEST_SECONDS.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import msgspec

from gracectl.kube.cache.reading import is_served
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden, NotFound
from gracectl.kube.leader.leases import counted_seconds, record_of
from gracectl.kube.requests import Key, Selection
from gracectl.kube.resources import LEASES, NODE_POOL_VERSIONS, PODS
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import Lease
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

LONGEST_SECONDS: Final = 60.0
"""Maximum time for which one state of a rival's Lease counts. Karpenter's own has 15 s."""


_HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """A Karpenter that leads. `since`, `renewed`: Unix seconds, by its clock; `seconds`: how long a state of its Lease
    counts; `until`: monotonic, when it has run out unless it is renewed."""

    lease: Key
    uid: str
    holder: str
    since: float | None
    renewed: float
    seconds: float
    until: float

    @property
    def message(self) -> str:
        """Message with the Lease and the holder."""
        namespace, name = self.lease
        since = "" if self.since is None else f" since {format_time(self.since)}"
        return (
            f"a Karpenter leads on this cluster: {harmless(self.holder)} holds the Lease {namespace}/{name}{since} and "
            f"renewed it at {format_time(self.renewed)}; Karpenter owns the same finalizer {names.FINALIZER}"
        )

    @property
    def remedy(self) -> str:
        """Next step for the operator."""
        return (
            f"uninstall Karpenter or scale it to zero (kubectl -n {self.lease[0]} scale deployment karpenter "
            f"--replicas=0), and try again when that Lease has run out, {max(1, round(self.seconds))} s after it was "
            "renewed last"
        )


class LiveKarpenter(Exception):
    """A live Karpenter, the `rival`, leads: gracectl does not start."""

    def __init__(self, rival: Rival) -> None:
        super().__init__(f"{rival.message}. Nothing was changed; {rival.remedy}")
        self.rival = rival


class KarpenterWatch:
    """Reads Karpenter's Lease in these namespaces. Invariant: needs no permission but `get`, by name."""

    def __init__(self, client: KubeClient, clock: Clock, namespaces: Iterable[str], *, own: Key | None = None) -> None:
        """`own`: the Lease of gracectl itself, which never counts as a rival's, regardless of its name."""
        self._client = client
        self._clock = clock
        keys = dict.fromkeys((namespace, names.KARPENTER_LEASE) for namespace in namespaces)
        self._keys = [key for key in keys if key != own]
        self._unseen: dict[str, None] = {}
        self._logged_holder = ""
        self._seen: Rival | None = None
        self._leases: dict[Key, tuple[Lease, float]] = {}  # the newest state of each, and until when it counts

    @property
    def rival(self) -> Rival | None:
        """The leader that `look` found last, while its Lease would still be fresh: a process that does not lead itself
        does not look any more."""
        seen = self._seen
        return seen if seen is not None and self._clock.monotonic() < seen.until else None

    @property
    def unseen(self) -> tuple[str, ...]:
        """Namespaces in which the credentials may not read Leases."""
        return tuple(self._unseen)

    async def look(self) -> Rival | None:
        """The Karpenter that leads now; None if none is found. Raises ApiError."""
        found = [rival for key in self._keys if (rival := await self._rival_at(key)) is not None]
        if found and not await is_served(self._client, NODE_POOL_VERSIONS):
            found.clear()
        self._seen = max(found, key=lambda rival: rival.until, default=None)
        return self._seen

    async def refuse(self) -> None:
        """Raises LiveKarpenter if one leads; or ApiError."""
        if (rival := await self.look()) is not None:
            raise LiveKarpenter(rival)

    async def is_clear(self) -> bool:
        """Whether no Karpenter leads; logs changes since the last call. Raises ApiError."""
        rival = await self.look()
        holder = "" if rival is None else rival.holder
        if rival is not None and holder != self._logged_holder:
            logger.warning("%s; on standby; %s", rival.message, rival.remedy)
        elif rival is None and self._logged_holder:
            logger.info("no Karpenter leads now: this process may lead again")
        self._logged_holder = holder
        return rival is None

    async def _has_pod(self, lease: Lease) -> bool:
        """Whether a pod of Karpenter runs under the holder's host name (`<host name>_<uuid>`): the pod's own name or,
        with hostNetwork, its node's. Without permission to list pods, it counts as running."""
        host = lease.holder.rpartition("_")[0]
        if _HOST_NAME.fullmatch(host) is None:
            return False
        try:
            for field in ("metadata.name", "spec.nodeName"):
                selection = Selection(fields=f"{field}={host}")
                async with aclosing(self._client.list(PODS, namespace=lease.namespace, selection=selection)) as pages:
                    async for page in pages:
                        if any(_is_running_karpenter(pod) for pod in page.items):
                            return True
                        break  # a namespace has few pods of one node, or a tenant wants this to cost much
        except Forbidden:
            return True
        return False

    async def _rival_at(self, key: Key) -> Rival | None:
        try:
            lease = await self._client.get(LEASES, key)
        except NotFound:
            return None
        except Forbidden as refusal:
            if key[0] not in self._unseen:
                logger.info("cannot read Karpenter's Lease in namespace %s: %s", key[0], refusal)
            self._unseen[key[0]] = None
            return None
        if not lease.holder or lease.renew_time is None:
            self._leases.pop(key, None)
            return None
        seconds, now = counted_seconds(lease, LONGEST_SECONDS), self._clock.monotonic()
        newest, until = self._leases.get(key, (None, 0.0))
        if newest is None:
            age = self._clock.now() - lease.renew_time
            until = now + seconds - max(age, 0.0) if abs(age) <= LONGEST_SECONDS else now  # its clock may be ahead
        elif record_of(lease) != record_of(newest):
            until = now + seconds
        self._leases[key] = lease, until
        if until <= now or not await self._has_pod(lease):
            return None
        return Rival(
            lease=lease.key,
            uid=lease.uid,
            holder=lease.holder,
            since=lease.acquire_time,
            renewed=lease.renew_time,
            seconds=seconds,
            until=until,
        )


def _is_running_karpenter(pod: Pod) -> bool:
    return pod.phase == "Running" and any("karpenter" in text for text in (pod.name, *pod.labels.values()))
