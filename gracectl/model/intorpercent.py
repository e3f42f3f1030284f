"""Kubernetes' int-or-percent values, as budgets use them (`GetScaledValueFromIntOrPercent`)."""

from __future__ import annotations

import re
from typing import Final

_PERCENT: Final = re.compile(r"([+-]?[0-9]{1,300})%")


def scaled_value(value: int | str, total: int, *, round_up: bool) -> int:
    """`value` itself if it is an integer, else that percentage of `total`, rounded up or down.

    Percentages may exceed 100 and integers may exceed `total`, as Kubernetes has it. ValueError for anything
    else, a number in quotes included.
    """
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is neither an integer nor a percentage such as 25%")
    share = int(found[1]) * total
    return -(-share // 100) if round_up else share // 100
