"""Notices on nodes: the one write that makes a notice a fact of the cluster.

Invariant: annotations are written under the node's version, so that any process may record, and the order of notices
makes no difference; an annotation is never made later or less certain.
"""

from __future__ import annotations

import logging
from collections import Counter

from gracectl.interruption.source import Outcome
from gracectl.kube.client import KubeClient
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.interruption import Interruption, encode, interruption_of, merged

logger = logging.getLogger(__name__)

Counts = Counter[tuple[str, str, str]]
"""Number of notices by source, kind ("" if unknown) and outcome."""


async def record(client: KubeClient, node: Node, heard: Interruption) -> Outcome:
    """Write what was heard about this node, unless its annotation shows it. Raises ApiError."""
    is_new = False

    def missing(thing: Node) -> MergePatch | None:
        nonlocal is_new
        known = interruption_of(thing)
        wanted = merged(known, heard)
        is_new = wanted != known
        return annotated(encode(wanted)) if is_new else None

    if await patch_with_retry(client, NODES, node, missing) is None:
        return Outcome.GONE
    if is_new:
        logger.info("node: %s", heard, extra={"node": node.name})
    return Outcome.RECORDED if is_new else Outcome.REPEATED


def annotated(value: str | None) -> MergePatch:
    """Patch of the annotation; None removes it."""
    return MergePatch({"metadata": {"annotations": {names.INTERRUPTION: value}}})
