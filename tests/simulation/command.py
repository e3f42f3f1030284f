"""Many seeds, each in a process of its own: `python -m simulation 1-10000 --workers 2`.

A run in a fresh copy of this process finds the same memory every time, so that it does not depend on those before it;
one that hangs is ended, and counts as failed. A seed that fails is shrunk, and its story printed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from simulation.forecasts import Counts, publish
from simulation.generate import a_plan
from simulation.plan import Plan
from simulation.run import Result, run
from simulation.shrink import shrink
from simulation.story import story

HANGS_SECONDS = 60.0
"""Seconds of computing after which a run counts as hung: one that waits for ever fails at once (support.virtual)."""
PROGRESS_SECONDS: Final = 10.0
WARM: Final = 5
"""Seed of a world with most of what there is: claims, budgets for nodes, several processes."""


class Child(NamedTuple):
    """A run under way."""

    seed: int
    pid: int
    pipe: int


def main(arguments: list[str]) -> int:
    """Run seeds, and report those that fail; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulate seeds.")
    parser.add_argument("seeds", nargs="?", default="1-300", help="one (17), or a range (1-300)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-shrink", action="store_true", help="report failures as they are")
    parser.add_argument("--fingerprints", action="store_true", help="print the digest of each run")
    parser.add_argument("--story", action="store_true", help="print the story of each run, failed or not")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--save", type=Path, help="write how the forecasts came out there (JSON), for the docs")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    logging.getLogger("kubesim").setLevel(logging.CRITICAL)  # its controllers retry, and say so
    warm_up()
    gc.collect()
    gc.freeze()
    started, reported, done, failed, forecasts = _now(), _now(), 0, [], Counts()
    for seed, result in results(seeds, options.workers):
        done += 1
        forecasts.add(result.forecasts)
        if options.fingerprints:
            print(f"seed {seed}: {result.fingerprint}", flush=True)
        if result.violations:
            failed.append(seed)
            if not options.no_shrink:
                result = smallest(result)
        if result.violations or options.story:
            print("\n".join(story(result)), flush=True)
        if result.violations:
            print(f"again: pytest tests/simulation --seed {seed}\n", flush=True)
        if len(failed) >= options.most:
            break
        if _now() - reported > PROGRESS_SECONDS:
            reported = _now()
            print(
                f"{done} of {len(seeds)} seeds, {len(failed)} failed, {_now() - started:.0f} s; {forecasts}", flush=True
            )
    print(forecasts)
    if options.save:
        publish(options.save, "seeds", forecasts, {"seeds": options.seeds})
    names = f": {', '.join(map(str, failed))}" if failed else ""
    print(f"{done} seeds run, {len(failed)} failed{names} ({_now() - started:.0f} s)", flush=True)
    return 1 if failed else 0


def warm_up() -> None:
    """Make what a process makes once, such as compiled schemas, before it is copied: by a run without faults."""
    run(msgspec.structs.replace(a_plan(WARM), faults=()))


def results(seeds: range, workers: int) -> Iterator[tuple[int, Result]]:
    """The result of each seed, as they come."""
    waiting, children = iter(seeds), {}  # type: ignore[var-annotated]
    while True:
        while len(children) < workers and (seed := next(waiting, None)) is not None:
            child = _forked(a_plan(seed))
            children[child.pipe] = child
        if not children:
            return
        ready, _, _ = select.select([*children], [], [])
        for pipe in ready:
            child = children.pop(pipe)
            yield child.seed, _result_of(child)


def smallest(result: Result) -> Result:
    """The result of the smallest plan that fails in the same way."""
    rule, shrunk = _rule(result.violations[0]), [result]

    def fails(plan: Plan) -> bool:
        smaller = _result_of(_forked(plan))
        if any(_rule(each) == rule for each in smaller.violations):
            shrunk.append(smaller)
            return True
        return False

    shrink(result.plan, fails)
    return shrunk[-1]


def _rule(violation: str) -> str:
    """A violation without numbers and names."""
    return " ".join(word for word in violation.split() if word.isalpha())[:60]


def _forked(plan: Plan) -> Child:
    """A run of a plan in a copy of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(plan.seed, pid, reading)
    os.close(reading)
    signal.setitimer(signal.ITIMER_PROF, HANGS_SECONDS)  # which ends this process
    gc.disable()  # it dies soon, and what is collected when would depend on all that ran before
    try:
        result = run(plan)
    except BaseException as error:
        result = Result(plan, [f"the run failed: {_innermost(error)!r}"[:2000]], [])
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(msgspec.json.encode(result))
    os._exit(0)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _result_of(child: Child) -> Result:
    with os.fdopen(child.pipe, "rb") as pipe:
        body = pipe.read()
    _, status = os.waitpid(child.pid, 0)
    if body:
        return msgspec.json.decode(body, type=Result)
    return Result(a_plan(child.seed), [f"the run ended with status {status} and said nothing: it hung?"], [])


def _now() -> float:
    return time.monotonic()  # noqa: TID251  # of this machine
