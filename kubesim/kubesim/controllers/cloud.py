"""The simulated cloud: instances that terminate on request, sometimes late, sometimes not at the first request.

Serves `/cloud/v1/instances/{id}` next to the API server. Invariant: an instance goes running → shutting-down →
terminated; the journal has every step, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import anyio
import msgspec

from kubesim.controllers.pace import Pace
from kubesim.server.api import Request, Response

PREFIX = "/cloud/v1/instances/"
State = Literal["running", "shutting-down", "terminated"]


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated seconds: `terminate_delay` to the end, `answer_delay` before a response. `failure_probability` of a
    500."""

    terminate_delay: float = 0.0
    answer_delay: float = 0.0
    failure_probability: float = 0.0


class Entry(NamedTuple):
    """An event (`created`, `refused: …`, `failed`, `shutting-down`, `terminated`) of an instance, and its epoch."""

    instant: float
    id: str
    what: str


class Instance(msgspec.Struct, frozen=True):
    """A machine and the node that runs on it."""

    id: str
    node: str
    state: State = "running"


class Cloud:
    """All instances by id. `on_terminated` is called with an instance the moment it has ended."""

    def __init__(
        self,
        pace: Pace,
        settings: CloudSettings | None = None,
        on_terminated: Callable[[Instance], None] = lambda instance: None,
    ) -> None:
        self.journal: list[Entry] = []
        self._pace = pace
        self._settings = settings or CloudSettings()
        self._on_terminated = on_terminated
        self._instances: dict[str, Instance] = {}
        self._protected: dict[str, str] = {}
        self._failures: dict[str, int] = {}
        self._requests = 0
        self._ending: list[tuple[float, str]] = []
        self._more_to_end = anyio.Event()

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All instances, the terminated ones too, in the order of their creation."""
        return tuple(self._instances.values())

    @property
    def count(self) -> int:
        """How many instances there have been."""
        return len(self._instances)

    def create(self, id_: str, node: str) -> Instance:
        """A new running instance. Raises ValueError if the id is taken."""
        if id_ in self._instances:
            raise ValueError(f"instance {id_} exists already")
        instance = self._instances[id_] = Instance(id_, node)
        self._note(id_, "created")
        return instance

    def protect(self, id_: str, message: str = "termination protection is on") -> None:
        """Refuse (409) to terminate an instance from now on."""
        self._protected[id_] = message

    def unprotect(self, id_: str) -> None:
        """Take the protection off."""
        self._protected.pop(id_, None)

    def fail(self, id_: str, times: int) -> None:
        """Answer the next `times` requests to terminate this instance with 500."""
        self._failures[id_] = times

    def terminate(self, id_: str) -> None:
        """End an instance, as if it had lost power: no protection, no failure. Raises KeyError."""
        if self._instances[id_].state == "running":
            self._become(id_, "shutting-down")
            due = self._pace.clock.monotonic() + self._pace.real(self._settings.terminate_delay)
            self._ending.append((due, id_))
            self._more_to_end.set()

    async def run(self) -> None:
        """Terminate instances when they are due, until cancelled."""
        while True:
            while self._ending:
                # All take equally long, so the first to begin is the first to end.
                due, id_ = self._ending[0]
                await self._pace.clock.sleep(max(0.0, due - self._pace.clock.monotonic()))
                del self._ending[0]
                self._become(id_, "terminated")
                self._on_terminated(self._instances[id_])
            self._more_to_end = anyio.Event()
            await self._more_to_end.wait()

    async def __call__(self, request: Request) -> Response:
        """GET and DELETE of /cloud/v1/instances/{id}; see Handler. 200, 202, 404, 405, 409 (protected), 500 (fault)."""
        await self._pace.sleep(self._settings.answer_delay)
        id_ = request.path.removeprefix(PREFIX)
        self._requests += 1
        if self._pace.chance("cloud", self._requests).random() < self._settings.failure_probability:
            self._note(id_, "failed")
            return _answer(500, message="the cloud has an internal error")
        instance = self._instances.get(id_)
        if instance is None:
            return _answer(404, message=f"instance {id_!r} does not exist")
        match request.method:
            case "GET":
                return _answer(200, id=id_, state=instance.state)
            case "DELETE":
                return self._delete(instance)
        return _answer(405, message=f"{request.method} is not allowed")

    def _delete(self, instance: Instance) -> Response:
        id_ = instance.id
        if instance.state == "running":
            if self._failures.get(id_, 0) > 0:
                self._failures[id_] -= 1
                self._note(id_, "failed")
                return _answer(500, message="the cloud has an internal error")
            if id_ in self._protected:
                self._note(id_, f"refused: {self._protected[id_]}")
                return _answer(409, message=self._protected[id_])
            self.terminate(id_)
        return _answer(202, id=id_, state=self._instances[id_].state)

    def _become(self, id_: str, state: State) -> None:
        self._instances[id_] = msgspec.structs.replace(self._instances[id_], state=state)
        self._note(id_, state)

    def _note(self, id_: str, what: str) -> None:
        self.journal.append(Entry(self._pace.clock.now(), id_, what))


def _answer(status: int, **body: str) -> Response:
    return Response(status=status, headers={"content-type": "application/json"}, body=body)
