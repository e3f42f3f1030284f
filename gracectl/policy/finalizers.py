"""Which finalizer holds our nodes and claims.

`karpenter.sh/termination` is the design's; a Karpenter before 1.1 terminates any node that has it. So where Karpenter
is installed, `gracectl.io/termination` holds ours. Both count as ours on everything that no other controller owns: a
node is moved from one to the other in one write, and is held at every moment. Source: ADR 0079.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node

_OURS: Final = frozenset(names.FINALIZERS)
AUTO: Final = "auto"
FinalizerSetting = Literal["auto", "karpenter.sh/termination", "gracectl.io/termination"]


class FinalizerRule(msgspec.Struct, frozen=True):
    """The finalizer of new holds, and the one that is `replaced` by it; "": none is."""

    name: str = names.FINALIZER
    replaced: str = ""

    def is_replaced_on(self, thing: Node | NodeClaim) -> bool:
        """Whether the finalizer of this node or claim, which is ours, must be replaced: never while it is deleted."""
        return thing.deletion_timestamp is None and self.replaced in thing.finalizers


def finalizer_rule(setting: FinalizerSetting, *, has_karpenter: bool) -> FinalizerRule:
    """The rule of a setting. Without a setting nothing is moved back when Karpenter goes: both names hold."""
    if setting == AUTO:
        return FinalizerRule(names.OWN_FINALIZER, names.FINALIZER) if has_karpenter else FinalizerRule()
    return FinalizerRule(setting, *(each for each in names.FINALIZERS if each != setting))


def our_finalizers(thing: Node | NodeClaim) -> tuple[str, ...]:
    """Our finalizers on a node or claim that is ours."""
    return tuple(each for each in thing.finalizers if each in names.FINALIZERS)


def has_finalizer(thing: Node | NodeClaim) -> bool:
    """Whether a node or claim, which is ours, has a finalizer of ours."""
    return not _OURS.isdisjoint(thing.finalizers)


def needs_finalizer(thing: Node | NodeClaim) -> bool:
    """Whether our finalizer is missing and can still be added: the server refuses new ones on what is being deleted."""
    return thing.deletion_timestamp is None and not has_finalizer(thing)
