"""Rules about when something voluntary begins: never in a freeze, outside of a window, or above the limits of a
campaign; and a campaign that is canceled leaves nothing on any node.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubesim.server.api import JsonObject
from kubesim.values import parse_time, scaled_value
from support.clients import Deed, follow

from gracectl.model import names
from simulation.contract import NEVER, annotations_of, condition, is_deleted, is_managed, is_open, labels_of
from simulation.observer import Observer, Rule, ThingFacts
from simulation.voluntary import SECOND, Pace, is_going_soon, is_voluntary

DRAINS = "nodedrains.gracectl.io"


class Begins(Rule):
    """Nothing voluntary begins in a freeze or outside of a window; no campaign has more nodes in progress than it may;
    and it takes slots of the pace like any other voluntary termination."""

    name = "begin"

    def __init__(self, observer: Observer, pace: Pace) -> None:
        super().__init__(observer)
        self._pace = pace
        self._frozen_since = NEVER
        self._freeze: JsonObject = {}
        self._drains: dict[str, JsonObject] = {}  # every one that has been, by uid
        self._begun: dict[str, float] = {}  # by uid of a node, when its campaign last began
        follow(observer.stage, "configmaps", self._config_map)
        follow(observer.stage, DRAINS, self._drain)

    def _config_map(self, deed: Deed) -> None:
        if deed.object["metadata"]["name"] == names.FREEZE:
            self._freeze = deed.new or {}
            self._frozen_since = NEVER if deed.new is None else self.seen.now

    def _drain(self, deed: Deed) -> None:
        self._drains[deed.object["metadata"]["uid"]] = deed.object

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        new, old = (annotations_of(each or {"metadata": {}}).get(names.NODE_DRAIN, "") for each in (deed.new, deed.old))
        claims = [self.seen.claims[uid] for uid in facts.claims]
        if deed.request is not None and new and new != old:
            self._judge_campaign(deed, facts, new)
            self._begun[facts.uid] = self.seen.now
        elif is_voluntary(deed, claims) and not old:
            self._judge(deed.sender, facts.name, [facts.object])

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        nodes = [each for each in self.seen.nodes.values() if facts.uid in each.claims]
        if is_voluntary(deed, nodes):
            self._judge(deed.sender, facts.name, [each.object for each in nodes])

    def _judge(self, sender: str, name: str, nodes: list[JsonObject]) -> None:
        if any(is_going_soon(self.seen, node) for node in nodes):
            return
        self._judge_freeze(sender, name)
        unix, slack = self.seen.unix, self.seen.terms.clock_error + SECOND
        windows = [list(each.voluntary.windows) for each in self.seen.settings]
        if all(windows) and not any(is_open([_json(each) for each in found], unix, slack) for found in windows):
            self.violated(f"{name} was deleted voluntarily outside of its windows")

    def _judge_freeze(self, sender: str, name: str) -> None:
        if not self._freeze or not self.seen.must_know(sender, self._frozen_since):
            return
        try:
            until = parse_time(self._freeze.get("data", {}).get("until", ""))
        except ValueError:
            until = NEVER
        if self.seen.unix < until - self.seen.terms.clock_error - SECOND:
            self.violated(f"{name} began in a freeze")

    def _judge_campaign(self, deed: Deed, facts: ThingFacts, mark: str) -> None:
        campaign, uid = mark.split("/")[:2]
        drain = self._drains.get(uid)
        if drain is None:
            self.violated(f"{facts.name} began for {campaign}, which has never been")
            return
        self._judge_freeze(deed.sender, facts.name)
        spec, slack = drain["spec"], self.seen.terms.clock_error + SECOND
        if not is_open(spec.get("windows", []), self.seen.unix, slack):
            self.violated(f"{facts.name} began for {campaign} outside of its windows")
        others = [each for each in self._in_progress(uid) if each.uid != facts.uid]
        total = len(spec["nodeNames"])
        maximum = max(1, scaled_value(spec["maxConcurrent"], total, round_up=False))
        if len(others) >= maximum:
            listed = ", ".join(sorted(each.name for each in others))
            self.violated(f"{facts.name} began for {campaign} beside {listed}: {maximum} may at once")
        if spec["action"] == "Terminate" and is_managed(self.seen.settings[-1], labels_of(facts.object)):
            self._judge_pace(deed.sender, facts)

    def _in_progress(self, uid: str) -> Iterator[ThingFacts]:
        """Nodes that a campaign has begun, and that are not drained; with Terminate, not gone."""
        terminates = self._drains[uid]["spec"]["action"] == "Terminate"
        for node in self.seen.living_nodes():
            if uid not in annotations_of(node.object).get(names.NODE_DRAIN, ""):
                continue
            is_drained = condition(node.object, names.DRAINED).get("status") == "True"
            if not is_drained or (terminates and not is_deleted(node.object)):
                yield node

    def _judge_pace(self, sender: str, facts: ThingFacts) -> None:
        begun = {
            node.name
            for uid, drain in self._drains.items()
            if drain["spec"]["action"] == "Terminate"
            for node in self._in_progress(uid)
            if node.uid != facts.uid and self.seen.must_know(sender, self._begun.get(node.uid, NEVER))
        }
        taken = begun | self._pace.in_progress(sender, facts)
        if len(taken) >= (maximum := self._pace.maximum()):
            self.violated(f"{facts.name} began for a campaign beside {', '.join(sorted(taken))}: {maximum} at once")

    def end(self, calm: bool) -> None:
        if not calm:
            return
        present = {each["metadata"]["uid"] for each in self.seen.stage.server.store.table(DRAINS)}
        # A campaign that has completed leaves its nodes drained.
        present |= {uid for uid, each in self._drains.items() if each.get("status", {}).get("completionTime")}
        for node in self.seen.living_nodes():
            mark = annotations_of(node.object).get(names.NODE_DRAIN, "")
            if mark and mark.split("/")[1] not in present and not is_deleted(node.object):
                self.violated(f"{node.name} still has the mark of {mark}, which was canceled")


def _json(window: object) -> JsonObject:
    return {field: getattr(window, field) for field in ("schedule", "duration")}
