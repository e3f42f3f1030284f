"""Parameters of tests that only `make test-all` runs."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def thorough(*values: Any) -> list[ParameterSet]:
    """These values of a parameter, for `make test-all`: more of what other values show."""
    return [
        pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.thorough) for value in values
    ]
