"""Watch of logind for shutdowns, with an inhibitor lock that delays them while pods terminate in order.

Once connected, it subscribes first and reads then, so that nothing is missed between the two; whatever it hears, and
whatever is requested, everything is read again and put right. So it makes no difference whether a change was signalled,
or happened while the bus or logind was away.

Invariants: there is never a gap between two locks; a lock is kept while bus and logind are away (logind honours it as
long as it is open, even a restarted one) and closed when `run` ends; the granted delay is never lowered.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import anyio
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type

from gracectl.agent.bus import AccessDenied, Bus, CallFailed, ConnectionLost, NoReply
from gracectl.agent.inhibit_delay import DropIn, raise_delay
from gracectl.agent.logind import InhibitorLock, Logind, LogindSignal, ShutdownInProgress
from gracectl.interruption.metadata import Service
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.supervise import ungrouped

logger = logging.getLogger(__name__)

INHIBITOR_NAME = "gracectl agent"
"""Name of the lock in `systemd-inhibit --list`."""

_KUBELET = "kubelet"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `reply`: how long a call may take; `look`: interval of reads without a signal; the pauses between
    attempts double from `initial_pause` to `maximum_pause`."""

    reply: float = 10.0
    look: float = 60.0
    initial_pause: float = 0.2
    maximum_pause: float = 10.0


class WatchState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the watch. `delay`: seconds that logind grants (math.inf: unlimited; None: not known yet); `wanted`:
    None before the first `want`; `problem`: "" if all is well, else what is wrong and what to do; `kubelet`: process id
    of a kubelet that holds a lock of the same kind, so that it terminates pods itself, None if there is none."""

    is_locked: bool = False
    delay: float | None = None
    wanted: float | None = None
    problem: str = ""
    kubelet: int | None = None


class ShutdownListener(Protocol):
    """Listener of the watch; all methods must be quick and must not raise."""

    def shutting_down(self, delay: float) -> None:
        """A shutdown begins, and waits this many seconds from now (math.inf: unlimited); once per shutdown."""

    def cancelled(self) -> None:
        """The shutdown was cancelled; at most once after each `shutting_down`. A new lock is held already, or a problem
        says why not."""

    def state_changed(self, state: WatchState) -> None:
        """The state has changed."""


class ShutdownWatch:
    """Holds an inhibitor lock of the logind behind that bus `address`.

    `drop_in` is the file that raises logind's delay; None: it is not raised.
    """

    def __init__(
        self,
        address: str,
        drop_in: DropIn | None,
        clock: Clock,
        listener: ShutdownListener,
        *,
        timeouts: Timeouts | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._address = address
        self._drop_in = drop_in
        self._clock = clock
        self._listener = listener
        self._timeouts = timeouts or Timeouts()
        self._backoff = Backoff(self._timeouts.initial_pause, self._timeouts.maximum_pause, rng=rng)
        self._inhibitor = InhibitorState(clock, listener)
        self._problems = Problems()
        self._request: InhibitorRequest | None = None
        self._kubelet: int | None = None
        self._obstacle = ""
        self._tried: tuple[float, float] | None = None
        """Last attempt to raise the delay: wanted and resulting seconds; None: not with this logind."""
        self._wake = Wakeup()
        self._state = WatchState()

    def want(self, seconds: float, why: str) -> None:
        """Take a lock, and make a shutdown wait this many seconds for it. There is no lock before the first call."""
        self._request = InhibitorRequest(seconds, why)
        self._inhibitor.request()
        self._wake.set()

    def release(self) -> None:
        """Release the lock: the shutdown may proceed. The next `cancelled` or `want` takes a new one. Idempotent."""
        self._inhibitor.release()
        self._report()

    def state(self) -> WatchState:
        """State that the listener got last."""
        return self._state

    async def run(self) -> None:
        """Component: watch until cancelled, then release the lock. Never ends because of the bus or logind."""
        try:
            await AsyncRetrying(
                sleep=self._clock.sleep,
                wait=lambda _: self._backoff.next(),  # which a successful read resets
                retry=retry_if_exception_type(ConnectionLost),
            )(self._watch_until_lost)
        finally:
            self._inhibitor.close()

    async def _watch_until_lost(self) -> None:
        try:
            with ungrouped():
                await self._watch()
        except ConnectionLost as error:
            self._lose(str(error))
            raise

    async def _watch(self) -> None:
        """Watch over one connection. Raises ConnectionLost."""
        bus = await Bus.connect(self._address, self._timeouts.reply)
        async with anyio.create_task_group() as group:
            group.start_soon(bus.run)
            try:
                logind = Logind(bus)
                await self._subscribe(logind)
                group.start_soon(self._listen, logind)
                while True:
                    pause = await self._reconcile(logind)
                    self._report()
                    await self._wake.wait(pause)
            finally:
                bus.close()

    async def _subscribe(self, logind: Logind) -> None:
        try:
            await logind.subscribe()
        except (NoReply, AccessDenied, CallFailed) as error:
            raise ConnectionLost(f"message bus at {self._address}: cannot subscribe: {error}") from error
        self._tried = None

    async def _listen(self, logind: Logind) -> None:
        while True:
            match await logind.next_signal():
                case LogindSignal.SHUTTING_DOWN:
                    self._inhibitor.prepare(True)
                case LogindSignal.CANCELLED:
                    self._inhibitor.prepare(False)
                case LogindSignal.GONE:
                    self._inhibitor.disconnected()
                case LogindSignal.BACK:
                    self._inhibitor.disconnected()
                    self._tried = None
            self._wake.set()
            self._report()

    async def _reconcile(self, logind: Logind) -> float:
        """Read everything and put it right; returns the seconds until the next read, if there is no signal."""
        try:
            await self._read(logind)
            await self._lock(logind)
            self._notify_cancelled()
            await self._raise(logind)
            await self._find_kubelet(logind)
        except AccessDenied as error:
            self._problems.set(
                ProblemKind.LOCK, f"{error}; the agent must be root on the host, without a user namespace"
            )
            self._notify_cancelled()
        except (NoReply, CallFailed) as error:
            self._problems.set(ProblemKind.AWAY, f"logind: not watched: {error}")
            self._notify_cancelled()
            return self._backoff.next()
        self._problems.set(ProblemKind.AWAY, "")
        self._backoff.reset()
        return self._timeouts.look

    async def _read(self, logind: Logind) -> None:
        self._inhibitor.delay = await logind.delay()
        is_preparing = await logind.is_preparing()
        if is_preparing is not None:
            self._inhibitor.prepare(is_preparing)

    async def _lock(self, logind: Logind) -> None:
        request = self._request
        if request is None or not self._inhibitor.needs_lock(request):
            self._problems.set(ProblemKind.LOCK, "")
            return
        try:
            self._inhibitor.take(await logind.inhibit(INHIBITOR_NAME, request.reason), request)
        except ShutdownInProgress:
            if self._inhibitor.is_locked:
                logger.info("shutdown in progress: no new inhibitor lock; keeping the current one")
                return
            problem = "shutdown in progress: logind grants no more locks; pods terminate with the machine"
            self._problems.set(ProblemKind.LOCK, problem)
            return
        self._problems.set(ProblemKind.LOCK, "")

    async def _raise(self, logind: Logind) -> None:
        request, delay = self._request, self._inhibitor.delay
        if request is None or delay is None:
            return
        if delay < request.seconds and self._tried != (request.seconds, delay) and not self._inhibitor.is_preparing:
            raised = await raise_delay(logind, self._drop_in, request.seconds, self._clock)
            delay = self._inhibitor.delay = raised.delay
            self._tried = (request.seconds, delay)
            self._obstacle = raised.obstacle
        self._problems.set(
            ProblemKind.DELAY, "" if delay >= request.seconds else self._shortage(delay, request.seconds)
        )

    def _shortage(self, delay: float, wanted: float) -> str:
        because = f"; {self._obstacle}" if self._obstacle else ""
        return f"logind: delays a shutdown by {delay:g} s only, pods need {math.ceil(wanted)} s{because}"

    async def _find_kubelet(self, logind: Logind) -> None:
        try:
            inhibitors = await logind.inhibitors()
        except (AccessDenied, CallFailed) as error:
            logger.debug("kubelet's inhibitor lock: unknown: %s", error)
            return
        kubelets = [lock.pid for lock in inhibitors if lock.who == _KUBELET and lock.delays_shutdown]
        self._kubelet = kubelets[0] if kubelets else None

    def _lose(self, text: str) -> None:
        self._inhibitor.disconnected()
        self._problems.set(ProblemKind.AWAY, f"logind: not watched: {text}")
        self._notify_cancelled()

    def _notify_cancelled(self) -> None:
        """Notify of a cancelled shutdown, if that is pending; before it, of the state of the lock."""
        self._report()
        self._inhibitor.notify_cancelled()

    def _report(self) -> None:
        request = self._request
        state = WatchState(
            is_locked=self._inhibitor.is_locked,
            delay=self._inhibitor.delay,
            wanted=None if request is None else request.seconds,
            problem=self._problems.text,
            kubelet=self._kubelet,
        )
        if state != self._state:
            self._state = state
            self._listener.state_changed(state)


class ProblemKind(Enum):
    """Kind of a problem; the value is logged when the problem ends."""

    AWAY = "logind: reachable again"
    LOCK = "logind: inhibitor lock available again"
    DELAY = "logind: delay is long enough now"


_LEVELS = {ProblemKind.AWAY: logging.WARNING, ProblemKind.LOCK: logging.ERROR, ProblemKind.DELAY: logging.ERROR}


class Problems:
    """Current problems, one text per kind; each is logged when it begins, changes and ends."""

    def __init__(self) -> None:
        self._texts: dict[ProblemKind, str] = {}

    @property
    def text(self) -> str:
        """All problems; "" if there is none."""
        return "; ".join(self._texts[kind] for kind in ProblemKind if kind in self._texts)

    def set(self, kind: ProblemKind, text: str) -> None:
        """Set the text of a kind; "" if there is no such problem."""
        before = self._texts.get(kind, "")
        if text == before:
            return
        if text:
            self._texts[kind] = text
            logger.log(_LEVELS[kind], "%s", text)
        else:
            del self._texts[kind]
            logger.info("%s", kind.value)


class Watcher(Protocol):
    """Delays a shutdown of the machine, and notifies a listener of it (see ShutdownWatch)."""

    def want(self, seconds: float, why: str) -> None:
        """Have a shutdown wait this long, for this reason; may be called again at any time."""

    def release(self) -> None:
        """Let a shutdown proceed."""

    async def run(self) -> None:
        """Watch until cancelled."""


class Machine(msgspec.Struct, frozen=True):
    """The machine of an agent. `node`: its name in the cluster; `watcher` makes the watcher for a listener; `own_uid`:
    UID of the agent's own pod, "" outside of a pod; `metadata`: another metadata service than that of the settings."""

    node: str
    watcher: Callable[[ShutdownListener], Watcher]
    own_uid: str = ""
    metadata: Service | None = None


class InhibitorRequest(msgspec.Struct, frozen=True):
    """Request for a lock: seconds of delay, and the reason that `systemd-inhibit --list` shows."""

    seconds: float
    reason: str


class InhibitorState:
    """State of the inhibitor lock: pure, fed by the watch with what logind says.

    Invariants: a new lock is taken before the old one is released; the listener gets `shutting_down` once per shutdown,
    and `cancelled` once after it, never without it; a lock released at the end of a sequence is not taken again before
    the shutdown is cancelled or a new request arrives.
    """

    def __init__(self, clock: Clock, listener: ShutdownListener) -> None:
        self._clock = clock
        self._listener = listener
        self._lock: InhibitorLock | None = None
        self._request: InhibitorRequest | None = None
        self._is_stale = False
        self._is_released = False
        self._is_preparing = False
        self._began = 0.0
        self._disconnected_since: float | None = None
        self._has_notified = False
        self._is_cancel_pending = False
        self.delay: float | None = None
        """Seconds that logind grants, as far as known; math.inf: unlimited."""

    @property
    def is_locked(self) -> bool:
        """Whether a shutdown waits for a lock held here."""
        return self._lock is not None

    @property
    def is_preparing(self) -> bool:
        """Whether the machine is shutting down, as far as known."""
        return self._is_preparing

    def needs_lock(self, request: InhibitorRequest) -> bool:
        """Whether a lock must be taken for that request now."""
        if self._is_released:
            return False
        if self._lock is None:
            return True
        # logind grants none during a shutdown; the current one counts.
        return not self._is_preparing and (self._is_stale or request != self._request)

    def take(self, lock: InhibitorLock, request: InhibitorRequest) -> None:
        """Hold this lock, and release the one before it."""
        if self._is_released:
            lock.close()
            return
        before, self._lock = self._lock, lock
        self._request = request
        self._is_stale = False
        if before is not None:
            before.close()
        self._notify_shutdown()

    def release(self) -> None:
        """Release the lock, and take none until the next request. Idempotent.

        Ignored while a cancellation is still to be notified: the lock is for the next shutdown already.
        """
        if self._is_cancel_pending:
            return
        self._is_released = True
        self.close()

    def request(self) -> None:
        """Allow a lock to be taken again."""
        self._is_released = False

    def close(self) -> None:
        """Release the lock. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def mark_stale(self) -> None:
        """The lock outlives the logind that granted it; a lock of the new logind must replace it."""
        self._is_stale = True

    def disconnected(self) -> None:
        """Signals may be missed from here on: a shutdown that is found later may have begun now."""
        self.mark_stale()
        if self._disconnected_since is None:
            self._disconnected_since = self._clock.monotonic()

    def prepare(self, is_preparing: bool) -> None:
        """Update whether the machine is shutting down, from a signal or a property."""
        if is_preparing and not self._is_preparing:
            self.notify_cancelled()
            self._began = self._clock.monotonic() if self._disconnected_since is None else self._disconnected_since
        self._is_preparing = is_preparing
        self._disconnected_since = None
        if self._has_notified and not is_preparing:
            self._is_cancel_pending = True
            self._is_released = False
            self._is_stale = True
        self._notify_shutdown()

    def notify_cancelled(self) -> None:
        """Notify of a pending cancellation; by now there is a new lock, or none can be taken."""
        if self._is_cancel_pending:
            self._is_cancel_pending = self._has_notified = False
            self._listener.cancelled()

    def _notify_shutdown(self) -> None:
        if self._is_preparing and self._lock is not None and not self._has_notified:
            self._has_notified = True
            delay = self.delay or 0.0
            self._listener.shutting_down(max(delay - (self._clock.monotonic() - self._began), 0.0))
