"""How pods behave, as data: the first stage that selects the pod, then the pod's own annotations.

The kubelet asks here once per pod and obeys; no kind of pod is an `if` in its code (after kwok's Stages).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubesim.controllers.objects import annotations_of, key_of, labels_of
from kubesim.controllers.pace import Pace
from kubesim.server.api import JsonObject
from kubesim.server.selectors import LabelQuery, label_query

PREFIX = "kubesim/"
"""Annotations that override the behaviour of one pod: start-seconds, ready-seconds, stop-seconds, crash-seconds,
exit-seconds, exit-code, crash-times (numbers), jitter (0-1), ignores-sigterm, never-ready, never-stops ("true" or
"false"). A value that cannot be read is ignored."""


class PodBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's containers do. Simulated seconds.

    `start_delay`: bound → running. `ready_delay`: running → Ready. `stop_delay`: SIGTERM → exit 0, unless the grace
    period is over first (a preStop hook and the program's own end together). `ignores_sigterm`: runs until the grace
    period is over. `never_stops`: survives SIGKILL, too, as a process that waits for a dead disk does.
    `crashes_after`: running → exit with `exit_code`, `crash_times` times (None: always); `exits_after`: running → exit
    0, done; after either, what the restart policy says, with the back-off of a real kubelet. `jitter`: each delay
    varies by up to this part of itself.
    """

    start_delay: float = 0.0
    ready_delay: float = 0.0
    stop_delay: float = 0.0
    ignores_sigterm: bool = False
    crashes_after: float | None = None
    crash_times: float | None = None
    exit_code: float = 1
    exits_after: float | None = None
    never_ready: bool = False
    never_stops: bool = False
    jitter: float = 0.0

    def drawn(self, pace: Pace, *names: object) -> PodBehaviour:
        """The behaviour of one pod: jitter applied, by chance that belongs to these names alone."""
        if not self.jitter:
            return self
        chance = pace.chance("behaviour", *names)

        def vary(seconds: float) -> float:
            return seconds * (1 + self.jitter * (2 * chance.random() - 1))

        return msgspec.structs.replace(
            self,
            start_delay=vary(self.start_delay),
            ready_delay=vary(self.ready_delay),
            stop_delay=vary(self.stop_delay),
            crashes_after=None if self.crashes_after is None else vary(self.crashes_after),
            exits_after=None if self.exits_after is None else vary(self.exits_after),
            jitter=0.0,
        )


class Stage(msgspec.Struct, frozen=True):
    """The behaviour of the pods that a label selector (query grammar, "" = all) and a namespace ("" = any) take."""

    behaviour: PodBehaviour
    selector: str = ""
    namespace: str = ""


class Behaviours:
    """Finds the behaviour of a pod."""

    def __init__(self, stages: tuple[Stage, ...], pace: Pace) -> None:
        """Raises Refusal for a stage with an invalid selector."""
        self._stages: list[tuple[LabelQuery, Stage]] = [(label_query(s.selector), s) for s in stages]
        self._pace = pace

    def of(self, pod: JsonObject) -> PodBehaviour:
        """The behaviour of a pod: of the first stage that takes it, else the default; its annotations win."""
        namespace, name = key_of(pod)
        behaviour = self._staged(namespace, labels_of(pod))
        overrides = _overrides(annotations_of(pod))
        if overrides:
            behaviour = msgspec.structs.replace(behaviour, **overrides)
        return behaviour.drawn(self._pace, namespace, name)

    def _staged(self, namespace: str, labels: Mapping[str, str]) -> PodBehaviour:
        for query, stage in self._stages:
            if stage.namespace in ("", namespace) and query.matches(labels):
                return stage.behaviour
        return PodBehaviour()


NUMBERS = {
    "start-seconds": "start_delay",
    "ready-seconds": "ready_delay",
    "stop-seconds": "stop_delay",
    "crash-seconds": "crashes_after",
    "crash-times": "crash_times",
    "exit-code": "exit_code",
    "exit-seconds": "exits_after",
    "jitter": "jitter",
}
FLAGS = {"ignores-sigterm": "ignores_sigterm", "never-ready": "never_ready", "never-stops": "never_stops"}


def _overrides(annotations: Mapping[str, str]) -> dict[str, float | bool]:
    found: dict[str, float | bool] = {}
    for key, text in annotations.items():
        name = key.removeprefix(PREFIX)
        if name == key:
            continue
        if name in FLAGS and text in ("true", "false"):
            found[FLAGS[name]] = text == "true"
        elif name in NUMBERS:
            try:
                number = float(text)
            except ValueError:
                continue
            if 0 <= number < float("inf"):
                found[NUMBERS[name]] = number
    return found
