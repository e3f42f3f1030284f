"""`pytest tests/simulation --seed 17`: this seed only, with its story."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only, and print its story")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`seeds`: ranges as the command takes them."""
    if "seeds" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        metafunc.parametrize("seeds", BATCHES if seed is None else [str(seed)])


BATCHES = ["1-20", "21-40", "41-60"]
