"""Rule about forecasts: a drain that is called never does not end by itself; and how many ranges come true.

Forecasts are made from what the server stores, as `status -w` makes them: again and again, with what was observed
meanwhile. A forecast is judged until the history interferes: its acts change budgets, annotations, workloads, nodes or
settings, and nothing is promised then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from kubesim.server.api import JsonObject
from support.clients import Deed, follow

from benchmarks.report import Figure, Outcome, save, saved
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.inspect.forecast import draining_nodes
from gracectl.model import names
from gracectl.model.decode import (
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_node,
    decode_pod,
)
from gracectl.policy.answers import Answer, Never, Sightings, Window
from gracectl.policy.confirmation import confirmed
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.observations import ObservationLog
from simulation.contract import condition, is_deleted
from simulation.observer import Observer, PodFacts, Rule, ThingFacts

OFTEN, SELDOM, MANY = 1.0, 15.0, 16
"""Seconds between two forecasts: at first, and after so many of them."""

SLACK: Final = 2.0
"""Seconds by which a drain may end outside of its range: a controller writes the condition a little later."""

INNOCENT: Final = frozenset({"delete node", "delete claim", "label terminable", "add node"})
"""Acts that begin drains, and change nothing for others."""

LASTING: Final = {
    **dict.fromkeys(("end machine", "return machine", "register again", "fail node", "partition node"), 300.0),
    **dict.fromkeys(("roll out", "scale"), 60.0),
}
"""Acts that continue for so many seconds: a machine that has ended is noticed late, and takes its pods away even later;
a Deployment deletes the old pods of a rollout one after the other, whatever their budget allows."""


class Counts(msgspec.Struct):
    """How forecasts of nodes came out. `width`: seconds of the right and wrong ranges, in all."""

    never: int = 0
    false_never: int = 0
    unknown: int = 0
    right: int = 0
    early: int = 0
    late: int = 0
    width: float = 0.0

    def add(self, other: Counts) -> None:
        """Add the counts of another run."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def judge(self, answer: Answer, drained: float | None, now: float) -> None:
        """Count an answer about a node that was drained at `drained`; None: it is not at `now`."""
        match answer:
            case Never():
                self.never += 1
                self.false_never += drained is not None
            case Window(earliest, latest):
                if drained is None and latest + SLACK >= now:
                    return
                self.width += latest - earliest
                if drained is not None and drained < earliest - SLACK:
                    self.early += 1
                elif drained is None or drained > latest + SLACK:
                    self.late += 1
                else:
                    self.right += 1
            case _:
                self.unknown += 1

    @property
    def ranges(self) -> int:
        """Ranges that were judged."""
        return self.right + self.early + self.late

    def __str__(self) -> str:
        """All of it on a line."""
        ranges = self.ranges
        share = f"{100 * self.right / ranges:.1f} %" if ranges else "none"
        width = f"{self.width / ranges:.0f}" if ranges else "0"
        return (
            f"forecasts: {ranges} ranges, {share} right ({self.early} ended before, {self.late} after), {width} s wide "
            f"on average; {self.unknown} unknown; {self.never} never, {self.false_never} of them false"
        )


def publish(file: Path, ground: str, counts: Counts, parameters: dict[str, Any]) -> None:
    """Keep the counts of a run for docs/benchmarks.md, next to those of other grounds."""
    ranges = max(counts.ranges, 1)
    outcome = Outcome(
        scenario=ground,
        about="forecasts of drains",
        figures=(
            Figure("ranges in which the node was drained", 100 * counts.right / ranges, " %", at_least=95.0),
            Figure("ranges that were judged", counts.ranges),
            Figure("drained before its range", counts.early),
            Figure("drained after its range", counts.late),
            Figure("width of a range, mean", counts.width / ranges, " s"),
            Figure("never", counts.never),
            Figure("never, but drained", counts.false_never, "", at_most=0.0),
            Figure("unknown", counts.unknown),
        ),
        parameters=parameters,
        notes=("On virtual time: the load of the machine changes nothing.",),
    )
    save([*(each for each in saved(file) if each.scenario != ground), outcome], file)


class Forecasts(Rule):
    """See the module."""

    name = "forecast"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self.counts = Counts()
        self._log = ObservationLog()
        self._seen: Sightings = {}
        self._made = 0
        self._until = 0.0
        self._open: dict[str, list[tuple[float, Answer]]] = {}  # by uid of the node
        self._maintained: set[str] = set()  # UIDs of nodes whose open answers are about maintenance
        follow(observer.stage, "poddisruptionbudgets.policy", self._budget)
        for budget in observer.stage.server.store.table("poddisruptionbudgets.policy"):
            self._budget(Deed(observer.unix, None, budget, None))

    def disturb(self, act: str) -> None:
        """The history does something: nothing that was said before is judged by what comes."""
        if act not in INNOCENT:
            for uid in tuple(self._open):
                self._forget(uid)
        if act in LASTING:
            self._until = max(self._until, self.seen.now + LASTING[act])

    def _budget(self, deed: Deed) -> None:
        if deed.old is not None and (deed.new or {}).get("spec") != deed.old["spec"]:
            self.disturb("edit budget")  # also by a story that has no history
        budget = decode_budget(msgspec.json.encode(deed.object))
        if deed.new is None:
            self._log.forget_budget(budget.key)
        else:
            self._log.note_budget(budget, self.seen.unix)

    async def run(self) -> None:
        """Make forecasts while nodes are draining."""
        while True:
            await self.seen.stage.clock.sleep(OFTEN if self._made < MANY else SELDOM)
            self._forecast()

    def _forecast(self) -> None:
        now, settings = self.seen.unix, self.seen.stage.settings
        cluster = stored(self.seen)
        nodes = draining_nodes(cluster, settings.termination, now)
        if not any(node.view.pods for node in nodes):
            return
        self._made += 1
        assumptions = msgspec.structs.replace(Assumptions(), observed=self._log.observations())
        answer, self._seen = confirmed(forecast(nodes, now, assumptions), self._seen)
        for node in answer.nodes:
            if not node.plan.drained and self.seen.now >= self._until:
                uid = node.draining.view.node.uid
                self._open.setdefault(uid, []).append((now, node.drained))
                if node.draining.view.is_maintenance:
                    self._maintained.add(uid)

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        self._annotated(deed)

    def _annotated(self, deed: Deed) -> None:
        """Also by a story that has no history."""
        if deed.old is None or deed.new is None or deed.request is not None:
            return
        if deed.old["metadata"].get("annotations") != deed.new["metadata"].get("annotations"):
            self.disturb("edit annotations")

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        self._annotated(deed)
        if facts.uid in self._maintained and is_deleted(deed.object):
            # Now it is terminated: the answers about its maintenance were true until here.
            self._maintained.discard(facts.uid)
            self._forget(facts.uid)
        if deed.new is None and deed.request is None and self.seen.stage.pods_on(facts.name):
            self._forget(facts.uid)  # another client has removed it before its drain was over
        is_written = deed.request is not None and condition(deed.new, names.DRAINED).get("status") == names.TRUE
        if deed.new is None or is_written:  # what a kubelet writes there is no word of ours
            for at, answer in self._open.pop(facts.uid, ()):
                self._judge(facts.name, at, answer, self.seen.unix)

    def _forget(self, uid: str) -> None:
        """What was said of a node was true until now, and is not judged by what comes."""
        said = self._open.pop(uid, ())
        self.counts.never += sum(isinstance(answer, Never) for _, answer in said)

    def end(self, calm: bool) -> None:
        for uid, answers in self._open.items():
            for at, answer in answers:
                self._judge(self.seen.nodes[uid].name, at, answer, None)

    def _judge(self, node: str, at: float, answer: Answer, drained: float | None) -> None:
        """What was said at `at`, now that the node is drained; None: the run is over, and it is not."""
        match answer:
            case Never(causes) if drained is not None:
                said = f"was said never to be, {drained - at:.1f} s ago"
                self.violated(f"node {node} is drained, and {said}: {causes}")
            case Window() if not self._is_undisturbed(at):
                return
        self.counts.judge(answer, drained, self.seen.unix)

    def _is_undisturbed(self, at: float) -> bool:
        """Whether nothing stood between controllers, server and provider since an instant: a forecast assumes it."""
        return self.seen.terms.faults_end <= 0 or self.seen.instant(at) >= self.seen.calm_since


def stored(seen: Observer) -> ClusterCache:
    """The cluster as the server has it now."""
    cache = empty_cluster_cache()

    def table(name: str) -> list[bytes]:
        objects: list[JsonObject] = [*seen.stage.server.store.table(name)]
        return [msgspec.json.encode(each) for each in objects]

    cache.nodes.replace([decode_node(each) for each in table("nodes")])
    cache.pods.replace([decode_pod(each) for each in table("pods")])
    cache.budgets.replace([decode_budget(each) for each in table("poddisruptionbudgets.policy")])
    cache.attachments.replace([decode_attachment(each) for each in table("volumeattachments.storage.k8s.io")])
    cache.claims.replace([decode_claim(each) for each in table("nodeclaims.karpenter.sh")])
    return cache
