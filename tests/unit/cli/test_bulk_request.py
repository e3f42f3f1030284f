"""What is asked of several nodes at once: each for itself, so many at a time, and what is known if it is cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest
from support.builders import a_node

from gracectl.cli.bulk_request import CONCURRENCY, BulkRequest, Refused
from gracectl.kube.errors import (
    AdmissionDenied,
    ApiError,
    Forbidden,
    RequestTimeout,
    ServerError,
    Throttled,
    Unreachable,
)
from gracectl.kube.transport.operation import Operation
from gracectl.model.node import Node
from gracectl.runtime.supervise import while_running

DELETE = Operation("delete", "", "nodes", "", "", "b")


def answering(**errors: Exception) -> Callable[[Node], Awaitable[str]]:
    """Says yes to each node but these."""

    async def ask(node: Node) -> str:
        await anyio.lowlevel.checkpoint()
        if node.name in errors:
            raise errors[node.name]
        return "yes"

    return ask


NODES = [a_node(name) for name in "abc"]


@pytest.mark.parametrize(("error", "words"), [
    (Refused("it is gone"), "b: it is gone"),
    (Forbidden(DELETE, "no", rbac=False), "b: delete nodes b: forbidden (server: no)"),
    (AdmissionDenied(DELETE, "later"), "b: delete nodes b: denied by an admission webhook or policy (server: later)"),
    (AdmissionDenied(DELETE, "later", retry_after=90.0),
     "b: delete nodes b: denied by an admission webhook or policy (server: later); retry after 90 s"),
    (Throttled(DELETE, "busy", retry_after=2.0),
     "b: delete nodes b: the server is busy: Retry-After 2 s (server: busy)"),
    (Unreachable(DELETE, "refused", sent=False), "b: delete nodes b: the server cannot be reached: refused"),
])  # fmt: skip
async def test_a_refusal_is_printed_others_run(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bulk = BulkRequest()
    await bulk.run(NODES, answering(b=error))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a: yes\nc: yes\n", f"gracectl: {words}\n")
    assert (bulk.requested, bulk.refused, bulk.unknown, bulk.unsent) == (["a", "c"], ["b"], [], [])
    assert bulk.has_failed


@pytest.mark.parametrize(
    "error", [RequestTimeout(DELETE, waited=10.0), ServerError(DELETE, "ouch"), Unreachable(DELETE, "cut", sent=True)]
)
async def test_what_may_have_happened_is_told_as_such(error: ApiError, capsys: pytest.CaptureFixture[str]) -> None:
    bulk = BulkRequest()
    await bulk.run(NODES, answering(b=error))
    assert capsys.readouterr().err == f"gracectl: b: outcome unknown: {error}\n"
    assert (bulk.requested, bulk.unknown) == (["a", "c"], ["b"])
    assert bulk.has_failed


async def test_where_all_agree_nothing_has_failed() -> None:
    bulk = BulkRequest()
    assert bulk.interrupted("deletion") == "interrupted; nothing was requested"
    await bulk.run(NODES, answering())
    assert not bulk.has_failed


async def test_an_unexpected_error_is_no_refusal() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await BulkRequest().run(NODES, answering(b=ZeroDivisionError()))
    assert raised.group_contains(ZeroDivisionError)


async def test_so_many_at_a_time_and_interrupted_it_knows_each_outcome() -> None:
    nodes = [a_node(f"n{number:02}") for number in range(CONCURRENCY + 3)]
    bulk, held = BulkRequest(), anyio.Event()

    async def ask(node: Node) -> str:
        if node.name == "n00":
            return "yes"
        if node.name == "n01":
            raise Refused("no")
        await held.wait()
        return "never"

    async with while_running(partial(bulk.run, nodes, ask)):
        await anyio.wait_all_tasks_blocked()
        assert len(bulk.unknown) == CONCURRENCY
    assert bulk.interrupted("deletion", " (for ever)") == (
        "interrupted; deletion requested: n00 (for ever); outcome unknown: "
        f"{', '.join(f'n{number:02}' for number in range(2, CONCURRENCY + 2))}; not requested: n01, n{CONCURRENCY + 2}"
    )


async def test_where_all_were_refused_nothing_was_asked_for() -> None:
    bulk = BulkRequest()
    await bulk.run(NODES, answering(a=Refused("no"), b=Refused("no"), c=Refused("no")))
    assert bulk.interrupted("deletion") == "interrupted; nothing was requested"
