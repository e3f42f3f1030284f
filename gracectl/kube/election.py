"""Who leads: one process of several, by a Lease, and a fence that is open only while it surely does.

The rules are client-go's (see `leases`). What is added: the fence is opened by a successful renewal only, and counts
from when that was *sent*; a standby watches the Lease, so that it takes over at once what is released; who has lost
stands by again instead of ending. Invariants: nothing may begin later than `renew_deadline` after the last successful
renewal was sent; what is under way then is cut halfway between that and the instant at which another may take the
lease; the lease is released only when nothing of ours can still be on its way.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import anyio
import msgspec

from gracectl.kube.cache import Key
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.errors import ApiError, Conflict
from gracectl.kube.leases import ROUNDING_SECONDS, LeaseLock
from gracectl.kube.reflector import Reflector, ReflectorSettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES
from gracectl.kube.retry import RetrySettings
from gracectl.kube.transport import Transport
from gracectl.model.envelope import UndecodableObject
from gracectl.model.lease import Lease
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence

logger = logging.getLogger(__name__)

JITTER = 1.2
"""A standby waits between once and 2.2 times the retry period before it looks again."""

SETTLING_SECONDS = 0.75
"""What is under way when a term ends has so long for an answer before it is cancelled: most have it in milliseconds,
and what has none delays the release."""

PERMISSION_SECONDS = 15.0
"""Whether we may lead is asked this often while we do."""

FAREWELL_SECONDS = 2.0
"""A server that does not answer keeps nobody from ending: the lease then runs out by itself."""

QUIET_SECONDS = 5.0
"""Nor does a request that was given up, and may be on its way for longer."""


class ElectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which Lease, who we are, and the three times in seconds. Their relation is the settings file's to check."""

    namespace: str
    name: str
    identity: str
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    @property
    def slack(self) -> float:
        """Seconds for what was under way to be finished, and again as many for a request that was cut to arrive."""
        return (self.lease_duration - self.renew_deadline) / 2


class ElectionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`holder` as last seen ("" for nobody or not seen), since when by its clock, after how many changes of hands.

    `terms` we have begun, `renewals` that succeeded, `failures` of requests for the lease. `renewed`: the monotonic
    instant at which the last successful renewal was sent, None before the first.
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


class _Bell:
    """Follows the Lease, and rings when it is worth a look: nobody holds it, or not who thinks that he does.

    What a watch shows may be old; so it only wakes whoever then asks the server.
    """

    def __init__(self, is_worth_a_look: Callable[[str], bool]) -> None:
        self._is_worth_a_look = is_worth_a_look
        self._rung = anyio.Event()
        self._keys: set[Key] = set()

    async def wait(self) -> None:
        """Return when it rings."""
        await self._rung.wait()

    def ring(self) -> None:
        """For a reason outside the election."""
        self._rung.set()

    def silence(self) -> None:
        """Forget what has rung so far."""
        self._rung = anyio.Event()

    def put(self, new: Lease) -> None:
        """See Writable."""
        self._keys.add(new.key)
        if self._is_worth_a_look(new.holder):
            self._rung.set()

    def remove(self, key: Key) -> None:
        """See Writable."""
        self._keys.discard(key)
        self._rung.set()

    def set_aside(self, found: UndecodableObject, stand_in: Lease | None = None) -> None:
        """See Writable; the server's answer to what is asked then says more."""
        self._keys.add(found.key)
        self._rung.set()

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
    """Contends for one Lease over `transport`. `fence` is opened, moved and closed by nobody else."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        fence: Fence,
        settings: ElectionSettings,
        *,
        may_lead: Callable[[], Awaitable[bool]] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`may_lead` is asked before the lease is taken: as long as it says no, or raises ApiError, we stand by. And it
        is asked while we lead: when it says no, the lease is released, and we stand by."""
        self._clock = clock
        self._may_lead = may_lead
        self._is_stopped = False
        self._fence = fence
        self._settings = settings
        self._rng = rng or random.Random()
        # Half of the deadline, so that one request without an answer is not the end of a term.
        # Its own measure of patience too, and its own connections: it asks for little, and neither a server that is
        # busy with all the rest, nor a crowd of our own that waits for one that hangs, may cost us the lead.
        once = ClientSettings(
            timeout=settings.renew_deadline / 2,
            write_timeout=settings.renew_deadline / 2,
            longest_pause=settings.retry_period,
            pool="election",
            retry=RetrySettings(attempts=1),
        )
        client = KubeClient(transport, clock, settings=once, rng=self._rng)
        key = (settings.namespace, settings.name)
        self._lock = LeaseLock(client, clock, key, settings.identity, settings.lease_duration)
        self._bell = _Bell(self._is_worth_a_look)
        selection = Selection(fields=f"metadata.name={settings.name}")
        watching = ReflectorSettings(
            namespace=settings.namespace,
            selection=selection,
            proven=True,
            maximum_pause=settings.lease_duration,
            stall=settings.lease_duration,  # whoever leads is heard of more often
        )
        self._reflector = Reflector(client, LEASES, self._bell, clock, settings=watching, rng=self._rng)
        self._is_leading = False
        self._complaint = ""
        self._told_of = ""
        self._terms = self._renewals = self._failures = 0
        self._renewed = -math.inf

    @property
    def is_leading(self) -> bool:
        """Whether a term of ours is running."""
        return self._is_leading

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run `lead` whenever we lead, until cancelled; it is cancelled when we no longer do, and has ended before
        anything else happens. Cancelled ourselves we end it likewise, and release the lease. In both cases nothing
        more may begin from then on, and what is under way has a moment to be answered before `lead` is cancelled.

        Ends when `lead` returns, and raises what it raises, in a group.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._reflector.run)
            try:
                while True:
                    await self._acquire()
                    if await self._hold(lead):
                        break
                    if self._is_stopped:
                        await self._release()
            finally:
                await self._release()
            group.cancel_scope.cancel()

    def statistics(self) -> ElectionStatistics:
        """Who leads as far as we know, and what we have done for it."""
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

    def _is_worth_a_look(self, holder: str) -> bool:
        return holder != self._settings.identity if self._is_leading else not holder

    # Standing by.

    async def _acquire(self) -> None:
        """Return when the lease is ours, and the fence open."""
        while True:
            self._bell.silence()
            if await self._tried(self._try_to_acquire):
                return
            self._tell_who_leads()
            period = self._settings.retry_period
            wait = period * (1 + JITTER * self._rng.random())
            held_for = 0.0 if self._lock.is_ours else self._lock.held_for()
            with anyio.move_on_after(min(wait, held_for) if held_for else wait):
                await self._bell.wait()

    async def _try_to_acquire(self) -> bool:
        if not await self._lock.look():
            # One that was deleted under its holder is still his until it would have run out.
            if (self._lock.held_for() and not self._lock.is_ours) or not await self._is_free_to_lead():
                return False
            await self._send(self._lock.create)
            return True
        if (self._lock.held_for() and not self._lock.is_ours) or not await self._is_free_to_lead():
            return False
        await self._send(self._lock.take)
        return True

    async def _is_free_to_lead(self) -> bool:
        return self._may_lead is None or await self._may_lead()

    # Leading.

    async def _hold(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run `lead` until we lose the lease; True if it has ended by itself."""
        has_ended = False
        office = anyio.CancelScope(shield=True)
        self._is_stopped = False
        self._begin()
        try:
            async with anyio.create_task_group() as group:

                async def live() -> None:
                    nonlocal has_ended
                    with office:
                        await lead()
                        has_ended = True
                    group.cancel_scope.cancel()

                group.start_soon(live)
                group.start_soon(self._watch_permission)
                try:
                    reason = await self._keep()
                    logger.warning("leadership is lost: %s; what is under way is ended", reason, extra=self._log_keys)
                finally:
                    await self._settle()
                    office.cancel()
        finally:
            self._fence.close()
            self._is_leading = False
        return has_ended

    async def _watch_permission(self) -> None:
        """Have the term ended when we may lead no longer. A server that does not answer changes nothing."""
        if self._may_lead is None:
            return
        while not self._is_stopped:
            await self._clock.sleep(PERMISSION_SECONDS)
            with suppress(ApiError):
                self._is_stopped = not await self._may_lead()
        self._bell.ring()

    async def _settle(self) -> None:
        """Begin nothing more, and let what is under way have its answers, if they come soon."""
        self._fence.shut()
        with anyio.move_on_after(SETTLING_SECONDS, shield=True):
            await self._fence.empty()

    def _begin(self) -> None:
        self._is_leading = True
        self._terms += 1
        since = format_time(self._lock.acquired or self._clock.now())
        logger.info("this process leads (%s) since %s", self._settings.identity, since, extra=self._log_keys)

    async def _keep(self) -> str:
        """Renew the lease for as long as that works; why it no longer does. The fence is shut by then."""
        settings, began = self._settings, self._clock.monotonic()
        while True:
            expires = self._renewed + settings.renew_deadline
            wait = min(began + settings.retry_period, expires) - self._clock.monotonic()
            with anyio.move_on_after(max(wait, 0.0)):
                await self._bell.wait()
            if self._is_stopped:
                self._fence.shut()
                return "it may not lead any more"
            self._bell.silence()
            began = self._clock.monotonic()
            left = expires - began
            if left <= ROUNDING_SECONDS:
                self._fence.shut()
                return f"it could not be renewed for {settings.renew_deadline:g} s ({self._complaint or 'no answer'})"
            with anyio.move_on_after(left):
                await self._tried(self._try_to_renew)
            if not self._lock.is_ours:
                self._fence.close()
                return f"{self._lock.holder or 'nobody'} holds the lease"

    async def _try_to_renew(self) -> bool:
        try:
            await self._send(self._lock.take)
        except ApiError as error:
            # Perhaps it was carried out all the same; perhaps somebody else has written.
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
        self._complaint = ""

    # The end.

    async def _release(self) -> None:
        """Give the lease up if it is ours, unless something of ours may still reach the server."""
        if not self._lock.is_ours and not self._lock.is_outcome_unknown:
            return
        quiet = self._fence.unanswered + self._settings.slack - self._clock.monotonic()
        if quiet > QUIET_SECONDS:
            logger.info("the lease is left to run out: a request without an answer may still be on its way")
            return
        with anyio.move_on_after(max(quiet, 0.0) + FAREWELL_SECONDS, shield=True) as farewell:
            await self._clock.sleep(max(quiet, 0.0))
            try:
                await self._released()
            except Conflict:
                pass  # somebody else has it already
            except ApiError as error:
                logger.warning("the lease could not be released, and runs out by itself: %s", error)
        if farewell.cancelled_caught:
            logger.warning("the lease could not be released, and runs out by itself: no answer")

    async def _released(self) -> None:
        # What was written last may have been carried out, and its answer not waited for.
        if self._lock.is_outcome_unknown and not await self._lock.look():
            return
        if self._lock.is_ours:
            await self._lock.release()
            logger.info("the lease is released", extra=self._log_keys)

    # Words.

    @property
    def _log_keys(self) -> dict[str, str]:
        return {"lease": f"{self._settings.namespace}/{self._settings.name}", "identity": self._settings.identity}

    async def _tried(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await attempt()
        except ApiError as error:
            self._note(error)
            return False

    def _note(self, error: ApiError) -> None:
        """Count a failure; say it unless it has been said since the last success."""
        self._failures += 1
        text = str(error)
        if isinstance(error, Conflict) or text == self._complaint:
            return
        self._complaint = text
        logger.warning("the lease: %s; tried again", text, extra=self._log_keys)

    def _tell_who_leads(self) -> None:
        holder = self._lock.holder
        if holder and holder != self._told_of:
            logger.info("standing by: %s leads", holder, extra=self._log_keys)
        self._told_of = holder
