"""One run of a story that forks at its points: each child goes on disturbed, and tells its parent how that ended.

What comes before a point is run once, not once for each: points are many, and most of a run is the same. Nothing of a
run but the loop itself is bound to its process: time is virtual, and there are no sockets and no threads.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import anyio
from simulation.sieve.patterns import Point
from simulation.sieve.story import Run, Story, run
from support.virtual import VirtualLoop


class Forks:
    """The points of a run at which it forks, and what came of them. `is_wanted`: which ones; default: none."""

    def __init__(self, is_wanted: Callable[[Point], bool] = lambda _: False) -> None:
        self.results: dict[Point, Run | str] = {}
        """How the disturbed runs have ended; a text: what they have raised."""
        self.point: Point | None = None
        """In a child, its point."""
        self._is_wanted = is_wanted
        self._pipe = -1

    def reaches(self, point: Point) -> bool:
        """Whether this process is to be disturbed here: never the first one, which goes on when the child is over."""
        if self.point is not None or not self._is_wanted(point):
            return False
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # workers of xdist have a thread, which the child is not
            child = os.fork()
        if child == 0:
            os.close(reading)
            asyncio._set_running_loop(loop)  # asyncio forgets it in a child
            self.point, self._pipe = point, writing
            return True
        os.close(writing)
        with open(reading, "rb") as pipe:
            result = pipe.read()
        os.waitpid(child, 0)
        self.results[point] = pickle.loads(result) if result else "its process has died"
        return False

    def tell(self, result: Run | str) -> NoReturn:
        """End the child, with its result."""
        with open(self._pipe, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)


def run_branching(told: Story, forks: Forks) -> Run:
    """Run a story undisturbed, on a loop of its own whose time begins at 0; `forks` has its disturbed runs then."""
    loop: dict[str, Any] = {"loop_factory": VirtualLoop}
    try:
        outcome = anyio.run(run, told, forks.reaches, backend="asyncio", backend_options=loop)
    except BaseException as error:
        if forks.point is None:
            raise
        forks.tell(repr(error))
    if forks.point is not None:
        forks.tell(outcome)
    return outcome
