"""Nodes of a drain or a termination: its options, what is read and what is checked before any request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from gracectl.app.drainer import OWN_MANNER, Manner, rights_for
from gracectl.cli.drain.campaign import Campaign
from gracectl.cli.drain.here import (
    CHANGE_NODES,
    DELETE_NODES,
    MissingRights,
    check_rights,
    deletion_text,
    drained_here,
    here_text,
    reading,
)
from gracectl.cli.drain.kubectl import Strictness, refused_by_controller
from gracectl.cli.drains.followed import NotServedHere
from gracectl.cli.failures import print_error
from gracectl.cli.format import elapsed
from gracectl.cli.options import ClusterTarget, NodeChoice, connected, read_chosen
from gracectl.cli.plan.command import PlanInput, read_input
from gracectl.cli.settings import REFUSED as SETTINGS_REFUSED
from gracectl.cli.settings import EffectiveSettings, SettingsSource
from gracectl.config import Settings
from gracectl.config.settings import NamedNodes
from gracectl.inspect.forecast import unmanaged_warning
from gracectl.inspect.leadership import Leadership, LeaderState, read_leadership
from gracectl.inspect.surroundings import read_surroundings
from gracectl.inspect.watcher import snapshot_of
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.cache.reading import read_all
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.resources import NODE_DRAINS, NODES
from gracectl.model.node import Node
from gracectl.model.nodedrain import MOST_NODES, OnUndrainable
from gracectl.policy.maintenance import drain_deadline


class Undrainable(Exception):
    """Nothing was requested, because some nodes cannot be drained; the message names each with its reason."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        listed = "\n".join(f"  - {name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"nothing was changed: not all of these nodes can be drained:\n{listed}")


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line. `timeout`: seconds; None or 0: no limit. `for_maintenance`: the nodes are not
    deleted.

    `on_server`: the dry run sends requests. `deadline`: seconds after the request. `force`: also nodes that would never
    drain. `ignore_stuck`: stuck pods do not count. `at_once`: nodes that are drained at the same time, or `10%` of
    them; None: all. `skip_stuck`: nodes that would never drain are left out. `manner` and `strictness`: flags of
    kubectl. `reason`: the command line. `rotation`: of `rotate`, which always creates a NodeDrain.
    """

    for_maintenance: bool
    no_wait: bool
    dry_run: bool
    timeout: float | None
    on_server: bool = False
    deadline: float | None = None
    yes: bool = False
    force: bool = False
    ignore_stuck: bool = False
    at_once: int | str | None = None
    skip_stuck: bool = False
    manner: Manner = OWN_MANNER
    strictness: Strictness = Strictness()
    reason: str = ""
    rotation: Campaign | None = None

    @property
    def campaign(self) -> Campaign | None:
        """The NodeDrain of these options; None: they ask for what a NodeDrain cannot do."""
        if self.rotation is not None:
            return self.rotation
        has_deadline = self.for_maintenance and self.deadline is not None
        if self.on_server or self.ignore_stuck or self.force or has_deadline:
            return None
        return Campaign(
            verb="drain" if self.for_maintenance else "terminate",
            reason=self.reason,
            at_once=self.at_once,
            on_undrainable=OnUndrainable.SKIP if self.skip_stuck else OnUndrainable.WAIT,
            timeout=self.deadline,
        )


class ReadNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen nodes by name, at `now` (Unix seconds, the server's clock).

    `inputs`: input of the forecast; None: not permitted, see `refusal`. `here`: names of nodes that no controller
    drains; `note`: first line that says so. `writes_events`: Events may be created from here. `campaign`: the NodeDrain
    to create; None: each node is requested.
    """

    nodes: tuple[Node, ...]
    now: float
    cluster: ClusterAddress
    settings: Settings
    inputs: PlanInput | None = None
    refusal: str = ""
    here: frozenset[str] = frozenset()
    note: str = ""
    writes_events: bool = True
    campaign: Campaign | None = None


async def read_nodes(
    target: ClusterTarget, choice: NodeChoice, source: SettingsSource, options: DrainOptions, after: float = 0.0
) -> ReadNodes:
    """Read the nodes and the input of a forecast, after `after` seconds; needs permission only to list nodes.

    Without a controller only these nodes are read, their pods, and the budgets of these, unless
    the request waits for a later controller (`no_wait`). Raises ApiError, ConfigError, UnknownNodes, MissingRights.
    """
    async with connected(target, shows_cluster=True) as connection:
        await connection.clock.sleep(after)
        inputs, refusal = None, ""
        effective = await source.read(connection.client, is_silent=True)
        leadership = await read_leadership(connection.client, effective.settings.leader_election, connection.clock)
        if not options.no_wait and options.rotation is None:
            local = await _read_here(connection, choice, effective, options, leadership)
            if local is not None:
                return local
        if options.manner.flags:
            raise refused_by_controller(options.manner.flags)
        if effective.is_refused:
            print_error(SETTINGS_REFUSED)
        try:
            inputs = await read_input(connection, choice, effective)
            found = list(inputs.cluster.nodes.values())
        except Forbidden as error:
            refusal = str(error)
            found = await read_all(connection.client, NODES, keep=choice.picks)
        by_name = {node.name: node for node in found}
        nodes = tuple(by_name[name] for name in choice.among(found))
        campaign = await _campaign(connection, options, nodes, leadership)
        if campaign is None and not options.for_maintenance and options.deadline is not None and not options.dry_run:
            await check_rights(connection.client, (DELETE_NODES, *CHANGE_NODES))
        now = connection.clock.now()  # set by the responses
        return ReadNodes(
            nodes=nodes,
            now=now,
            cluster=connection.cluster,
            settings=effective.settings,
            inputs=inputs,
            refusal=refusal,
            campaign=campaign,
        )


async def _campaign(
    connection: Connection, options: DrainOptions, nodes: Sequence[Node], leadership: Leadership
) -> Campaign | None:
    """The NodeDrain to create; None: each node is requested. Raises NotServedHere for a rotation."""
    is_wanted = 1 < len(nodes) <= MOST_NODES and leadership.state is LeaderState.ACTIVE and options.campaign is not None
    if options.rotation is None and not is_wanted:
        return None
    try:
        is_served = await connection.client.serves(NODE_DRAINS)
    except ApiError:
        if options.rotation is not None:
            raise
        return None
    if options.rotation is not None and not is_served:
        raise NotServedHere
    return options.campaign if is_served else None


def _for_any_node(settings: Settings) -> Settings:
    """The same, for nodes that are drained from here, whether or not a controller would select them."""
    return msgspec.structs.replace(settings, node_selector=NamedNodes())


async def _read_here(
    connection: Connection,
    choice: NodeChoice,
    effective: EffectiveSettings,
    options: DrainOptions,
    leadership: Leadership,
) -> ReadNodes | None:
    """The nodes as the command itself drains them; None: a controller manages them, or may: without the rights to
    drain, and to see whether there is one, only a controller can do it."""
    is_unseen = leadership.state is LeaderState.UNKNOWN and not leadership.is_absent
    if not options.for_maintenance and (is_unseen or leadership.state is LeaderState.ACTIVE):
        return None  # a controller would terminate the instance; one that selects other nodes has its reasons
    nodes = await read_chosen(connection.client, choice)
    here = drained_here([node for node in nodes if node.deletion_timestamp is None], effective, leadership)
    if not here:
        return None
    has_deadline = options.deadline is not None or any(drain_deadline(node) for node in nodes if node.name in here)
    rights = rights_for(options.manner, has_deadline=has_deadline)
    try:
        writes_events = await check_rights(
            connection.client, rights if options.for_maintenance else (*rights, DELETE_NODES)
        )
    except MissingRights:
        if is_unseen:
            return None
        raise
    note = here_text(here, nodes, leadership)
    return ReadNodes(
        nodes=nodes,
        now=connection.clock.now(),
        cluster=connection.cluster,
        settings=_for_any_node(effective.settings),
        inputs=await _inputs_here(connection, nodes, effective, options.manner),
        here=here,
        note=note if options.for_maintenance else f"{note}\n{deletion_text(nodes, here)}",
        writes_events=writes_events,
    )


async def _inputs_here(
    connection: Connection, nodes: Sequence[Node], effective: EffectiveSettings, manner: Manner
) -> PlanInput:
    names = tuple(node.name for node in nodes)
    cluster = await snapshot_of(connection.client, nodes, reading(names, manner))
    around = await read_surroundings(connection.client, cluster, names, has_others=False)
    return PlanInput(
        msgspec.structs.replace(effective, settings=_for_any_node(effective.settings)),
        cluster,
        names,
        float(math.floor(connection.clock.now())),
        address=connection.cluster,
        note=around.note,
        around=around,
    )


def check(found: ReadNodes, *, for_maintenance: bool, strictness: Strictness) -> None:
    """Raise Undrainable if a node cannot be drained. `for_maintenance`: the nodes are not deleted. `strictness`: by the
    pods that were read."""
    reasons = {
        node.name: _reason(node, found, for_maintenance)
        for node in found.nodes
        if node.name not in found.here or node.deletion_timestamp is not None
    }
    if found.inputs is not None:
        for node in found.nodes:
            if refusal := strictness.refusal(found.inputs.cluster, node.name):
                reasons[node.name] = refusal
    bad = {name: reason for name, reason in reasons.items() if reason}
    if bad:
        raise Undrainable(bad)


def _reason(node: Node, found: ReadNodes, for_maintenance: bool) -> str:
    if for_maintenance and node.deletion_timestamp is not None:
        return f"{deletion_age(node, found.now)}; a deletion cannot be undone"
    claims = () if found.inputs is None else found.inputs.cluster.owning_claims_of(node)
    warning = unmanaged_warning(found.settings.termination, node, claims, for_maintenance=for_maintenance)
    return "" if warning is None else warning.message


def deletion_age(node: Node, now: float) -> str:
    assert node.deletion_timestamp is not None
    return f"already being deleted for {elapsed(max(now - node.deletion_timestamp, 0.0))}"
