"""Changes of the board applied by a client, as docs/ui.md describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gracectl.cli.ui.board import KEYED, LISTS, NESTED, Object


def applied(old: Object, delta: Object) -> dict[str, Any]:
    """The state after a change."""
    state = dict(old)
    for name, value in delta.items():
        before = state.get(name)
        if name in NESTED and isinstance(before, dict):
            state[name] = applied(before, value)
        elif name in KEYED and isinstance(before, LISTS) and isinstance(value, dict):
            state[name] = _applied_list(before, value)
        elif name in KEYED and isinstance(before, dict):
            removed = set(value.get("remove", ()))
            changed = value.get("set", {})
            kept = {uid: each for uid, each in before.items() if uid not in removed}
            state[name] = kept | {
                uid: applied(kept[uid], each) if uid in kept and isinstance(each, dict) else each
                for uid, each in changed.items()
            }
        else:
            state[name] = value
    return state


def _applied_list(before: Sequence[Any], delta: Object) -> list[Any]:
    removed = set(delta.get("remove", ()))
    found = {each["uid"]: each for each in before if each["uid"] not in removed}
    for each in delta.get("set", ()):
        uid = each["uid"]
        found[uid] = applied(found[uid], each) if uid in found else each
    return [found[uid] for uid in delta.get("order", found)]
