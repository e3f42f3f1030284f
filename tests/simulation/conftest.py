"""`pytest tests/simulation --seed 17`: this seed only; a failure comes with its story."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only")
