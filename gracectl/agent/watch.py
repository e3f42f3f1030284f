"""Watches for the machine to go down, and holds it back for as long as pods need to end in order.

Once connected, it hears first and looks then, so that nothing is missed between the two; whatever it hears, and
whatever is wanted, has one consequence: everything is looked at again, and put right. So it makes no difference
whether a change was heard, or happened while the bus or logind was away.

Invariants: there is never a gap between two locks; a lock is kept while bus and logind are away (logind honours it for
as long as it is open, even one that is started anew) and closed when `run` ends; what is granted is never lowered.
"""

from __future__ import annotations

import logging
import math
import random
from typing import Protocol

import anyio
import msgspec

from gracectl.agent.bus import Bus, BusLost, Denied, Refused, Unanswered
from gracectl.agent.dropin import DropIn
from gracectl.agent.hold import Hold, Purpose
from gracectl.agent.logind import Heard, InProgress, Logind
from gracectl.agent.raising import raise_delay
from gracectl.agent.troubles import Trouble, Troubles
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import ungrouped

logger = logging.getLogger(__name__)

WHO = "gracectl agent"
"""As `systemd-inhibit --list` shows us."""

_KUBELET = "kubelet"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: `answer` is how long a call may take; `look` is between two looks while nothing is heard; the pauses
    between attempts double from `initial_pause` to `maximum_pause`, for ever."""

    answer: float = 10.0
    look: float = 60.0
    initial_pause: float = 0.2
    maximum_pause: float = 10.0


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand. `delay`: seconds that logind grants (math.inf: for ever; None: not known yet); `wanted`: None
    before the first `want`; `problem`: "" if all is well, else what, where, and what to do, for people; `kubelet`: the
    process of a kubelet that has a lock of the same kind, so that it ends pods itself, None if there is none."""

    is_locked: bool = False
    delay: float | None = None
    wanted: float | None = None
    problem: str = ""
    kubelet: int | None = None


class ShutdownListener(Protocol):
    """Who is told what happens; all of it must be quick and must not raise."""

    def shutting_down(self, delay: float) -> None:
        """The machine waits for us for so many seconds more, from now (math.inf: for ever); once per shutdown."""

    def cancelled(self) -> None:
        """It does not go down after all; once after each `shutting_down` for which that is so. There is a new lock
        already, or a problem that says why not."""

    def watched(self, state: Watched) -> None:
        """Something of that has changed."""


class ShutdownWatch:
    """Holds a lock of the logind behind that bus `address` for what is wanted.

    `drop_in` is the file by which what logind grants is raised; None: it is not.
    """

    def __init__(
        self,
        address: str,
        drop_in: DropIn | None,
        clock: Clock,
        listener: ShutdownListener,
        *,
        patience: Patience | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._address = address
        self._drop_in = drop_in
        self._clock = clock
        self._listener = listener
        self._patience = patience or Patience()
        self._backoff = Backoff(self._patience.initial_pause, self._patience.maximum_pause, rng=rng)
        self._hold = Hold(clock, listener)
        self._troubles = Troubles()
        self._purpose: Purpose | None = None
        self._kubelet: int | None = None
        self._obstacle = ""
        self._tried: tuple[float, float] | None = None
        """What was wanted when we last tried to raise the delay, and what came of it; None: not with this logind."""
        self._wake = anyio.Event()
        self._state = Watched()

    def want(self, seconds: float, why: str) -> None:
        """Hold a lock, and have the machine wait so many seconds for it. Nothing is locked before the first one."""
        self._purpose = Purpose(seconds, why)
        self._hold.want()
        self._wake.set()

    def release(self) -> None:
        """Let the lock go: the machine may go down now. The next `cancelled` or `want` takes a new one. Idempotent."""
        self._hold.release()
        self._report()

    def state(self) -> Watched:
        """As the listener was told last."""
        return self._state

    async def run(self) -> None:
        """A part: watch until cancelled; the lock is let go then. Never ends because of a bus or logind."""
        try:
            while True:
                try:
                    with ungrouped():
                        await self._follow()
                except BusLost as error:
                    self._lose(str(error))
                    await self._clock.sleep(self._backoff.next())
        finally:
            self._hold.close()

    async def _follow(self) -> None:
        """Watch over one connection. Raises BusLost."""
        bus = await Bus.connect(self._address, self._patience.answer)
        async with anyio.create_task_group() as group:
            group.start_soon(bus.carry)
            try:
                logind = Logind(bus)
                await self._begin(logind)
                group.start_soon(self._listen, logind)
                while True:
                    self._wake = anyio.Event()
                    pause = await self._look(logind)
                    self._report()
                    with anyio.move_on_after(pause):
                        await self._wake.wait()
            finally:
                bus.hang_up()

    async def _begin(self, logind: Logind) -> None:
        try:
            await logind.follow()
        except (Unanswered, Denied, Refused) as error:
            raise BusLost(f"the message bus at {self._address} does not let us listen: {error}") from error
        self._tried = None

    async def _listen(self, logind: Logind) -> None:
        while True:
            match await logind.heard():
                case Heard.SHUTTING_DOWN:
                    self._hold.prepare(True)
                case Heard.CANCELLED:
                    self._hold.prepare(False)
                case Heard.GONE:
                    self._hold.become_deaf()
                case Heard.BACK:
                    self._hold.become_deaf()
                    self._tried = None
            self._wake.set()
            self._report()

    async def _look(self, logind: Logind) -> float:
        """Look at everything and put it right; how many seconds to wait before the next look, if nothing is heard."""
        try:
            await self._see(logind)
            await self._lock(logind)
            self._settle_up()
            await self._raise(logind)
            await self._look_around(logind)
        except Denied as error:
            self._troubles.note(Trouble.LOCK, f"{error}: the agent must be root on the host, without a user namespace")
            self._settle_up()
        except (Unanswered, Refused) as error:
            self._troubles.note(Trouble.AWAY, f"shutdowns of this machine cannot be watched: {error}")
            self._settle_up()
            return self._backoff.next()
        self._troubles.note(Trouble.AWAY, "")
        self._backoff.reset()
        return self._patience.look

    async def _see(self, logind: Logind) -> None:
        self._hold.delay = await logind.delay()
        is_preparing = await logind.is_preparing()
        if is_preparing is not None:
            self._hold.prepare(is_preparing)

    async def _lock(self, logind: Logind) -> None:
        purpose = self._purpose
        if purpose is None or not self._hold.needs(purpose):
            self._troubles.note(Trouble.LOCK, "")
            return
        try:
            self._hold.take(await logind.inhibit(WHO, purpose.why), purpose)
        except InProgress:
            if self._hold.is_locked:
                logger.info("the machine is going down, and logind gives no new lock: the one that is held stays")
                return
            going = "the machine is going down already and logind gives no locks any more: pods on it end with it"
            self._troubles.note(Trouble.LOCK, going)
            return
        self._troubles.note(Trouble.LOCK, "")

    async def _raise(self, logind: Logind) -> None:
        purpose, delay = self._purpose, self._hold.delay
        if purpose is None or delay is None:
            return
        if delay < purpose.seconds and self._tried != (purpose.seconds, delay) and not self._hold.is_preparing:
            raised = await raise_delay(logind, self._drop_in, purpose.seconds, self._clock)
            delay = self._hold.delay = raised.delay
            self._tried = (purpose.seconds, delay)
            self._obstacle = raised.obstacle
        self._troubles.note(Trouble.DELAY, "" if delay >= purpose.seconds else self._shortage(delay, purpose.seconds))

    def _shortage(self, delay: float, wanted: float) -> str:
        because = f"; {self._obstacle}" if self._obstacle else ""
        return f"logind holds a shutdown back for {delay:g} s only, and pods need {math.ceil(wanted)} s{because}"

    async def _look_around(self, logind: Logind) -> None:
        try:
            holders = await logind.holders()
        except (Denied, Refused) as error:
            logger.debug("whether a kubelet holds shutdowns back is not known: %s", error)
            return
        kubelets = [lock.pid for lock in holders if lock.who == _KUBELET and lock.delays_shutdown]
        self._kubelet = kubelets[0] if kubelets else None

    def _lose(self, text: str) -> None:
        self._hold.become_deaf()
        self._troubles.note(Trouble.AWAY, f"shutdowns of this machine cannot be watched: {text}")
        self._settle_up()

    def _settle_up(self) -> None:
        """Tell of a cancelled shutdown, if that is due; before it, whether there is a lock again."""
        self._report()
        self._hold.settle_up()

    def _report(self) -> None:
        purpose = self._purpose
        state = Watched(
            is_locked=self._hold.is_locked,
            delay=self._hold.delay,
            wanted=None if purpose is None else purpose.seconds,
            problem=self._troubles.text,
            kubelet=self._kubelet,
        )
        if state != self._state:
            self._state = state
            self._listener.watched(state)
