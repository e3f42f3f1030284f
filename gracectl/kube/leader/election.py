"""Leader election: one process of several leads, by a Lease, and its fence is open only while it surely does.

The rules are client-go's (see `leases`). In addition the fence is opened by a successful renewal only, and counts from
when that was *sent*; a standby watches the Lease: it takes over a released Lease immediately, counts from the last
renewal that it saw, and reads nothing while renewals come; a process that has lost returns to standby instead of
exiting. Invariants: nothing may begin later than `renew_deadline` after the last successful renewal was sent; requests
in flight then are cut halfway between that and the instant at which another may take the lease; the lease is released
only when no request of ours can still arrive.

    renewal sent ├──────── fence open ───────┤ renew_deadline
                 ├─ requests in flight ──────┼───── slack ────┤ cut
                 ├───────────────────────────┼────────────────┼───── slack ────┤ lease_duration: others may take it
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable

import anyio
import msgspec

from gracectl.kube.cache import Key
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.client.statistics import ClientStatistics
from gracectl.kube.errors import ApiError, Conflict
from gracectl.kube.leader.leases import ROUNDING_SECONDS, LeaseLock
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES
from gracectl.kube.transport import Transport
from gracectl.model.envelope import UndecodableObject
from gracectl.model.meta import Lease
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence
from gracectl.runtime.supervise import while_running

logger = logging.getLogger(__name__)

JITTER = 1.2
"""A standby reads the lease if its watch has shown no renewal for 1 to 2.2 retry periods."""

SETTLING_SECONDS = 0.75
"""Time for requests in flight at the end of a term before they are cancelled: most get a response in
milliseconds, and one without delays the release.
"""

DISPUTE_SECONDS = 15.0
"""Interval at which a term looks for contradicting clocks."""

RELEASE_TIMEOUT_SECONDS = 2.0
"""Timeout of the release at exit; without an answer the lease expires."""

LONGEST_QUIET_SECONDS = 5.0
"""Nor does an abandoned request that may arrive later than this."""

YIELDING_FACTOR = 2
"""Lease durations for which a reluctant process leaves a free lease to others; they look several times in each."""

RELUCTANT_TERM_SECONDS = 600.0
"""Time after which a reluctant term is interrupted: another process may have arrived."""


class ElectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lease, identity, and three times (seconds); the settings file checks their relation."""

    namespace: str
    name: str
    identity: str
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    @property
    def slack(self) -> float:
        """Seconds for requests in flight to be finished, and again as many for a request that was cut to arrive."""
        return (self.lease_duration - self.renew_deadline) / 2


class ElectionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`holder` as last seen ("" for none or not seen), since when by its clock, after how many changes of hands.

    `terms` of ours, `renewals` that succeeded, `failures` of requests for the lease. `renewed`: the monotonic instant
    at which the last successful renewal was sent, None before the first.
    """

    is_leading: bool
    identity: str
    holder: str
    since: float | None
    transitions: int
    terms: int
    renewals: int
    failures: int
    renewed: float | None


class _LeaseWatcher:
    """Watch on the Lease that wakes the election: the lease is free, or its holder is not the one expected.

    The watch may be old; it only triggers a read from the server. `needs_attention` is called with each state.
    """

    def __init__(self, needs_attention: Callable[[Lease], bool]) -> None:
        self._needs_attention = needs_attention
        self._woken = anyio.Event()
        self._keys: set[Key] = set()

    async def wait(self) -> None:
        """Return when woken."""
        await self._woken.wait()

    def wake(self) -> None:
        """Wake for a reason outside the Lease."""
        self._woken.set()

    def clear(self) -> None:
        """Forget earlier wake-ups."""
        self._woken = anyio.Event()

    def put(self, new: Lease) -> None:
        """See Writable."""
        self._keys.add(new.key)
        if self._needs_attention(new):
            self._woken.set()

    def remove(self, key: Key) -> None:
        """See Writable."""
        self._keys.discard(key)
        self._woken.set()

    def set_aside(self, found: UndecodableObject, stand_in: Lease | None = None) -> None:
        """See Writable; the read from the server then says more."""
        self._keys.add(found.key)
        self._woken.set()

    def replace(self, objects: Iterable[Lease], undecodable: Iterable[UndecodableObject] = ()) -> None:
        """See Writable."""
        self._keys.clear()
        for each in objects:
            self.put(each)
        for found in undecodable:
            self.set_aside(found)

    def held(self, new: Lease) -> Lease:
        """See Writable."""
        return new

    def __len__(self) -> int:
        return len(self._keys)


class Election:
    """Contender for one Lease over `transport`. It alone opens, extends and closes `fence`."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        fence: Fence,
        settings: ElectionSettings,
        *,
        rng: random.Random | None = None,
    ) -> None:
        """While the clock is in dispute the process is reluctant: it leads only if no other process does."""
        self._clock = clock
        self._stop_reason = ""
        self._free_since: float | None = None  # monotonic; as seen in this standby
        self._yields_at = -math.inf
        self._fence = fence
        self._settings = settings
        self._rng = rng or random.Random()
        # Half of the deadline, so that one request without a response does not end a term. Backoff and connections of
        # its own: neither a server that is busy with other requests, nor many of ours that hang, may end it.
        once = ClientSettings(
            timeout=settings.renew_deadline / 2,
            write_timeout=settings.renew_deadline / 2,
            longest_pause=settings.retry_period,
            pool="election",
            retry=RetrySettings(attempts=1),
        )
        client = KubeClient(transport, clock, settings=once, rng=self._rng)
        key = (settings.namespace, settings.name)
        self._client = client
        self._lock = LeaseLock(client, clock, key, settings.identity, settings.lease_duration)
        self._watcher = _LeaseWatcher(self._needs_attention)
        selection = Selection(fields=f"metadata.name={settings.name}")
        watching = ReflectorSettings(
            namespace=settings.namespace,
            selection=selection,
            proven=True,
            maximum_pause=settings.lease_duration,
            stall=settings.lease_duration,  # a leader renews more often
        )
        self._reflector = Reflector(client, LEASES, self._watcher, clock, settings=watching, rng=self._rng)
        self._is_leading = False
        self._seen_renewed = -math.inf
        self._last_error = ""
        self._logged_holder = ""
        self._terms = self._renewals = self._failures = 0
        self._renewed = -math.inf
        self.led_until: float | None = None
        """When the leader before this term has last renewed the lease, by its clock (Unix seconds); None: there was
        none."""

    @property
    def is_leading(self) -> bool:
        """Whether a term of ours is running."""
        return self._is_leading

    @property
    def lease_uid(self) -> str:
        """UID of the Lease; "" if it was not read yet."""
        return self._lock.uid

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run `lead` whenever this process leads, until cancelled.

        When a term ends, or on cancellation, nothing more may begin, requests in flight have a moment to be answered,
        then `lead` is cancelled, and has ended before anything else happens; the lease is released. Ends when `lead`
        returns, and raises what it raises, in a group.
        """
        async with while_running(self._reflector.run):
            try:
                while True:
                    await self._acquire()
                    if await self._hold(lead):
                        break
                    if self._stop_reason:
                        await self._release()
            finally:
                await self._release()

    def statistics(self) -> ElectionStatistics:
        """The leader as far as known, and the work done for it."""
        return ElectionStatistics(
            is_leading=self._is_leading,
            identity=self._settings.identity,
            holder=self._lock.holder,
            since=self._lock.acquired,
            transitions=self._lock.transitions,
            terms=self._terms,
            renewals=self._renewals,
            failures=self._failures,
            renewed=self._renewed if self._terms else None,
        )

    def requests(self) -> ClientStatistics:
        """Statistics of the requests for the lease."""
        return self._client.statistics()

    def _needs_attention(self, lease: Lease) -> bool:
        if self._lock.saw(lease):
            self._seen_renewed = self._clock.monotonic()
        identity = self._settings.identity
        known = (identity,) if self._is_leading else (identity, self._lock.holder)
        return not lease.holder or lease.holder not in known

    # Standby.

    async def _acquire(self) -> None:
        """Return when the lease is ours, and the fence open."""
        while True:
            self._watcher.clear()
            if await self._attempt(self._try_to_acquire):
                return
            self._log_holder()
            await self._stand_by()

    async def _stand_by(self) -> None:
        """Wait until the lease should be read: it may be free, or the watch is silent."""
        is_quiet = False
        while not is_quiet:
            began = self._clock.monotonic()
            wait = self._settings.retry_period * (1 + JITTER * self._rng.random())
            held_for = 0.0 if self._lock.is_ours else self._lock.held_for()
            with anyio.move_on_after(min(wait, held_for) if held_for else wait):
                await self._watcher.wait()
                return
            is_quiet = self._seen_renewed < began

    async def _try_to_acquire(self) -> bool:
        exists = await self._lock.look()
        # A Lease that was deleted still belongs to its holder until it would have run out.
        if self._lock.held_for() and not self._lock.is_ours:
            self._free_since = None
            return False
        if self._is_yielding():
            return False
        if not exists:
            await self._send(self._lock.create)
            self.led_until = None
            return True
        led_until = None if self._lock.renewed is None else min(self._lock.renewed, self._clock.now())
        await self._send(self._lock.take)
        self.led_until = led_until
        return True

    def _is_yielding(self) -> bool:
        """Whether to leave a lease that is free to a process that is not reluctant."""
        now = self._clock.monotonic()
        if self._free_since is None:
            self._free_since = now
        patience = YIELDING_FACTOR * self._settings.lease_duration
        return self._clock.is_disputed() and now - self._free_since < patience

    # Leading.

    async def _hold(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run `lead` until the lease is lost; True if `lead` has returned."""
        has_ended = False
        scope = anyio.CancelScope(shield=True)
        self._stop_reason = ""
        self._begin_term()
        try:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    nonlocal has_ended
                    with scope:
                        await lead()
                        has_ended = True
                    group.cancel_scope.cancel()

                group.start_soon(run)
                group.start_soon(self._watch_dispute)
                try:
                    reason = await self._keep_renewing()
                    logger.warning("lost leadership: %s; stopping", reason, extra=self._log_keys)
                finally:
                    await self._settle()
                    scope.cancel()
        finally:
            self._fence.close()
            self._is_leading = False
        return has_ended

    async def _watch_dispute(self) -> None:
        """End the term when clocks contradict each other, and another process may lead."""
        while not self._stop_reason:
            await self._clock.sleep(DISPUTE_SECONDS)
            if self._clock.is_disputed() and self._clock.monotonic() >= self._yields_at:
                self._stop_reason = "clocks contradict each other, and another process may lead"
        self._watcher.wake()

    async def _settle(self) -> None:
        """Begin nothing more, and let requests in flight be answered, if that is soon."""
        self._fence.shut()
        with anyio.move_on_after(SETTLING_SECONDS, shield=True):
            await self._fence.empty()

    def _begin_term(self) -> None:
        self._is_leading = True
        self._terms += 1
        self._free_since = None
        self._yields_at = self._clock.monotonic() + (RELUCTANT_TERM_SECONDS if self._clock.is_disputed() else 0.0)
        since = format_time(self._lock.acquired or self._clock.now())
        logger.info("this process leads (%s) since %s", self._settings.identity, since, extra=self._log_keys)

    async def _keep_renewing(self) -> str:
        """Renew the lease as long as that works; returns why it no longer does. The fence is shut by then."""
        settings, began = self._settings, self._clock.monotonic()
        while True:
            expires = self._renewed + settings.renew_deadline
            wait = min(began + settings.retry_period, expires) - self._clock.monotonic()
            with anyio.move_on_after(max(wait, 0.0)):
                await self._watcher.wait()
            if self._stop_reason:
                self._fence.shut()
                return self._stop_reason
            self._watcher.clear()
            began = self._clock.monotonic()
            left = expires - began
            if left <= ROUNDING_SECONDS:
                self._fence.shut()
                return f"it could not be renewed for {settings.renew_deadline:g} s ({self._last_error or 'no answer'})"
            with anyio.move_on_after(left):
                await self._attempt(self._try_to_renew)
            if not self._lock.is_ours:
                self._fence.close()
                return f"{self._lock.holder or 'no process'} has the lease"

    async def _try_to_renew(self) -> bool:
        try:
            await self._send(self._lock.take)
        except ApiError as error:
            # It may still have been carried out, or another process has written.
            self._note(error)
            if not await self._lock.look():
                await self._send(self._lock.create)
            elif self._lock.is_ours:
                await self._send(self._lock.take)
            else:
                return False
        return True

    async def _send(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write the lease, as ours; the fence is open from then on. Raises ApiError."""
        mark = self._fence.mark()
        await write()
        settings = self._settings
        self._fence.extend(mark, settings.renew_deadline, settings.lease_duration - settings.slack)
        self._renewed = mark.monotonic
        self._renewals += 1
        self._last_error = ""

    # Releasing.

    async def _release(self) -> None:
        """Release the lease if it is ours, unless a request of ours may still reach the server."""
        if not self._lock.is_ours and not self._lock.is_outcome_unknown:
            return
        quiet = self._fence.unanswered + self._settings.slack - self._clock.monotonic()
        if quiet > LONGEST_QUIET_SECONDS:
            logger.info("the lease is left to run out: a request without an answer may still be on its way")
            return
        with anyio.move_on_after(max(quiet, 0.0) + RELEASE_TIMEOUT_SECONDS, shield=True) as timeout:
            await self._clock.sleep(max(quiet, 0.0))
            try:
                await self._released()
            except Conflict:
                pass  # another process has it already
            except ApiError as error:
                logger.warning("the lease was not released, and expires: %s", error)
        if timeout.cancelled_caught:
            logger.warning("the lease was not released, and expires: no answer")

    async def _released(self) -> None:
        # The last write may have been carried out without a response.
        if self._lock.is_outcome_unknown and not await self._lock.look():
            return
        if self._lock.is_ours:
            await self._lock.release()
            logger.info("the lease is released", extra=self._log_keys)

    # Logging.

    @property
    def _log_keys(self) -> dict[str, str]:
        return {"lease": f"{self._settings.namespace}/{self._settings.name}", "identity": self._settings.identity}

    async def _attempt(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await attempt()
        except ApiError as error:
            self._note(error)
            return False

    def _note(self, error: ApiError) -> None:
        """Count a failure, and log it unless it is a Conflict or repeats the last logged error."""
        self._failures += 1
        text = str(error)
        if isinstance(error, Conflict) or text == self._last_error:
            return
        self._last_error = text
        logger.warning("lease: %s; retrying", text, extra=self._log_keys)

    def _log_holder(self) -> None:
        holder = self._lock.holder
        if holder and holder != self._logged_holder:
            logger.info("standby: %s leads", holder, extra=self._log_keys)
        self._logged_holder = holder
