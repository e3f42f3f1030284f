"""What the client repeats, what it waits for, and what it never does, to the exact instant."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
import msgspec
import pytest
from support.servers import ScriptedTransport, Step, answer, bookmark, event, expired, lease, page, refusal

from gracectl.kube import errors
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.watch import Undecodable, WatchFailed
from gracectl.kube.metrics import throttling_check
from gracectl.kube.requests import JsonPatch, MergePatch, Selection, StrategicPatch
from gracectl.kube.resources import LEASES, NODES, PODS, Raw
from gracectl.kube.transport import Request, Response
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model.meta import Lease
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

KEY = ("n", "a")
ASKED = Operation("get", "coordination.k8s.io", "leases", "", "n", "a")
LOST = errors.Unreachable(ASKED, "reset by peer", sent=True)
REFUSED = errors.Unreachable(ASKED, "connection refused", sent=False)
BUSY = refusal(429, "TooManyRequests", retryAfterSeconds=3)
FAULT = refusal(500, "InternalError")
SLOW = refusal(504, "Timeout")
SPENT = refusal(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget", "message": "spent"}])


class NoJitter(random.Random):
    """Every wait at its full length."""

    def random(self) -> float:
        return 0.0


@pytest.fixture
async def transport() -> ScriptedTransport:
    return ScriptedTransport(LoopClock())


@pytest.fixture
async def client(transport: ScriptedTransport) -> KubeClient:
    return KubeClient(transport, transport.clock, rng=NoJitter())


Verb = Callable[[KubeClient], Awaitable[object]]

READ: Verb = lambda client: client.get(LEASES, KEY)  # noqa: E731  a name for the tables below
ASK: Verb = lambda client: client.ask(LEASES, {"metadata": {"name": "a"}})  # noqa: E731
CREATE: Verb = lambda client: client.create(LEASES, "n", {"metadata": {"name": "a"}})  # noqa: E731
MERGE: Verb = lambda client: client.patch(LEASES, KEY, MergePatch({}))  # noqa: E731
MERGE_UID: Verb = lambda client: client.patch(LEASES, KEY, MergePatch({}), uid="u")  # noqa: E731
STRATEGIC_UID: Verb = lambda client: client.patch(LEASES, KEY, StrategicPatch({}), uid="u")  # noqa: E731
JSON_UID: Verb = lambda client: client.patch(LEASES, KEY, JsonPatch([]), uid="u")  # noqa: E731
JSON_VERSION: Verb = lambda client: client.patch(LEASES, KEY, JsonPatch([]), resource_version="7")  # noqa: E731
DELETE: Verb = lambda client: client.delete(LEASES, KEY)  # noqa: E731
DELETE_UID: Verb = lambda client: client.delete(LEASES, KEY, uid="u")  # noqa: E731
DELETE_VERSION: Verb = lambda client: client.delete(LEASES, KEY, resource_version="7")  # noqa: E731
EVICT: Verb = lambda client: client.evict(KEY, uid="u")  # noqa: E731

REPEATABLE = [READ, ASK, MERGE_UID, STRATEGIC_UID, JSON_VERSION, DELETE_UID, DELETE_VERSION]
ONCE = [CREATE, MERGE, JSON_UID, DELETE, EVICT]


@pytest.mark.parametrize("verb", REPEATABLE + ONCE)
@pytest.mark.parametrize(("failure", "wait"), [(BUSY, 3.0), (REFUSED, 0.1)], ids=["busy", "refused"])
async def test_what_surely_was_not_executed_is_repeated(
    client: KubeClient, transport: ScriptedTransport, verb: Verb, failure: Step, wait: float
) -> None:
    transport.answers.extend([failure, answer(lease("a", 1))])
    await verb(client)
    assert transport.instants == [0.0, wait]


@pytest.mark.parametrize("verb", REPEATABLE)
@pytest.mark.parametrize("failure", [LOST, FAULT, SLOW], ids=["lost", "fault", "slow"])
async def test_reads_and_idempotent_writes_are_repeated_after_any_transient_failure(
    client: KubeClient, transport: ScriptedTransport, verb: Verb, failure: Step
) -> None:
    transport.answers.extend([failure, failure, answer(lease("a", 1))])
    await verb(client)
    assert transport.instants == pytest.approx([0.0, 0.1, 0.3])
    assert client.statistics().retries == 2


@pytest.mark.parametrize("verb", ONCE)
@pytest.mark.parametrize(("failure", "meaning"), [
    (LOST, errors.Unreachable), (FAULT, errors.ServerError), (SLOW, errors.RequestTimeout),
], ids=["lost", "fault", "slow"])  # fmt: skip
async def test_a_write_that_may_have_happened_is_not_repeated(
    client: KubeClient, transport: ScriptedTransport, verb: Verb, failure: Step, meaning: type[errors.ApiError]
) -> None:
    transport.answers.append(failure)
    with pytest.raises(meaning):
        await verb(client)
    assert transport.instants == [0.0]


@pytest.mark.parametrize(("refused", "meaning"), [
    (refusal(404, "NotFound", name="a"), errors.NotFound),
    (refusal(409, "Conflict"), errors.Conflict), (refusal(422, "Invalid"), errors.Invalid),
    (refusal(403, "Forbidden"), errors.Forbidden),
    (refusal(401, "Unauthorized"), errors.Unauthorized),
    (SPENT, errors.BudgetExhausted),
])  # fmt: skip
@pytest.mark.parametrize("verb", REPEATABLE + ONCE)
async def test_a_clear_answer_is_not_asked_for_twice(
    client: KubeClient, transport: ScriptedTransport, verb: Verb, refused: Step, meaning: type[errors.ApiError]
) -> None:
    transport.answers.append(refused)
    with pytest.raises(meaning):
        await verb(client)
    assert transport.instants == [0.0]


async def test_the_last_of_five_errors_is_raised(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([FAULT, LOST, SLOW, FAULT, LOST])
    with pytest.raises(errors.Unreachable) as caught:
        await client.get(LEASES, KEY)
    assert caught.value is LOST
    assert transport.instants == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5])
    statistics = client.statistics()
    assert statistics.retries == 4
    assert statistics.count("get", "leases") == 5
    assert statistics.count("get", "leases", "ServerError") == 2
    assert statistics.count("get", "leases", "ok") == 0


async def test_retry_after_of_a_fault_is_obeyed(client: KubeClient, transport: ScriptedTransport) -> None:
    future = answer({"kind": "Status", "message": "Too large resource version"}, 504, retry_after="1")
    transport.answers.extend([future, answer(lease("a", 1))])
    await client.get(LEASES, KEY)
    assert transport.instants == [0.0, 1.0]


async def test_a_busy_server_slows_the_whole_client(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([BUSY, answer(lease("a", 1)), answer(lease("b", 1))])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.get, LEASES, KEY)
        await anyio.sleep(1.0)
        tasks.start_soon(client.get, LEASES, ("n", "b"))
    assert transport.instants == [0.0, 3.0, 3.0]
    statistics = client.statistics()
    assert (statistics.throttle_pauses, statistics.throttled_seconds) == (1, 3.0)


async def test_a_retry_after_of_a_year_counts_a_minute_and_is_logged_once(
    client: KubeClient, transport: ScriptedTransport, caplog: pytest.LogCaptureFixture
) -> None:
    year = answer({"kind": "Status", "message": "busy"}, 429, retry_after="31536000")
    transport.answers.extend([year, year, year, answer(lease("a", 1))])
    seen = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.get, LEASES, KEY)
        for instant in (59.0, 119.0, 121.0, 179.0, 181.0):
            await anyio.sleep(instant - anyio.current_time())
            seen.append(throttling_check([client.statistics()], anyio.current_time()).is_ok)
    assert transport.instants == [0.0, 60.0, 120.0, 180.0]
    assert seen == [True, True, False, False, True]
    assert client.statistics().capped_delays == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_spent_budget_slows_no_request(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([SPENT, answer(lease("b", 1))])
    with pytest.raises(errors.BudgetExhausted):
        await client.evict(KEY, uid="u")
    await client.get(LEASES, ("n", "b"))
    assert transport.instants == [0.0, 0.0]
    assert client.statistics().count("create", "pods/eviction", "BudgetExhausted") == 1


async def test_a_superseded_eviction_is_not_sent(client: KubeClient, transport: ScriptedTransport) -> None:
    """While it waits out what a busy server has asked for, its pod may be replaced by a namesake."""
    transport.answers.extend([BUSY, answer()])
    meant = iter([True, False])
    with pytest.raises(errors.Superseded, match="precondition no longer holds"):
        await client.evict(KEY, uid="u", precondition=lambda: next(meant))
    assert transport.instants == [0.0]
    assert anyio.current_time() == 3.0


async def test_each_attempt_has_its_own_time(transport: ScriptedTransport) -> None:
    client = KubeClient(transport, transport.clock, settings=ClientSettings(timeout=10.0), rng=NoJitter())
    transport.answers.extend([60.0, answer(lease("a", 1))])
    await client.get(LEASES, KEY)
    assert transport.instants == pytest.approx([0.0, 10.1])


async def test_a_write_without_an_answer_times_out_once(transport: ScriptedTransport) -> None:
    client = KubeClient(transport, transport.clock, settings=ClientSettings(timeout=10.0, write_timeout=10.0))
    transport.answers.extend([60.0, answer()])
    with pytest.raises(errors.RequestTimeout, match="no answer in 10 s"):
        await client.evict(KEY, uid="u")
    assert anyio.current_time() == 10.0


async def test_a_write_is_given_longer_than_any_webhook_may_take(transport: ScriptedTransport) -> None:
    """However impatient its client is with what it reads."""
    client = KubeClient(transport, transport.clock, settings=ClientSettings(timeout=10.0))
    transport.answers.extend([30.5, answer(), 60.0])
    await client.delete(LEASES, KEY, uid="u")
    with pytest.raises(errors.RequestTimeout, match="no answer in 40 s"):
        await client.delete(LEASES, KEY, uid="u")  # and is not repeated in place: others want to be served
    assert anyio.current_time() == 70.5


async def test_a_write_in_flight_outlives_a_cancellation(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([5.0, answer()])
    with anyio.move_on_after(2.0) as scope:
        await client.evict(KEY, uid="u")
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == 5.0
    assert client.statistics().count("create", "pods/eviction", "ok") == 1


async def test_a_cancelled_write_holds_up_the_end_for_its_timeout_at_most(transport: ScriptedTransport) -> None:
    client = KubeClient(transport, transport.clock, settings=ClientSettings(timeout=10.0, write_timeout=10.0))
    transport.answers.extend([60.0, answer()])
    with anyio.move_on_after(2.0):
        with pytest.raises(errors.RequestTimeout):
            await client.delete(LEASES, KEY)
        assert anyio.current_time() == 10.0


async def test_a_read_is_cancelled_at_once(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([5.0, answer(lease("a", 1))])
    with anyio.move_on_after(2.0) as scope:
        await client.get(LEASES, KEY)
    assert scope.cancelled_caught
    assert anyio.current_time() == 2.0


async def test_a_cancellation_ends_the_wait_for_a_retry(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([BUSY, answer()])
    with anyio.move_on_after(2.0) as scope:
        await client.evict(KEY, uid="u")
    assert scope.cancelled_caught
    assert anyio.current_time() == 2.0
    assert transport.instants == [0.0]


async def test_a_list_comes_page_by_page(transport: ScriptedTransport) -> None:
    client = KubeClient(transport, transport.clock, settings=ClientSettings(page_size=2))
    transport.answers.extend([page(7, lease("a", 1), lease("b", 2), token="more"), page(7, lease("c", 3))])
    pages = [each async for each in client.list(LEASES, namespace="n", selection=Selection(labels="app=web"))]
    assert [[item.name for item in each.items] for each in pages] == [["a", "b"], ["c"]]
    assert {each.resource_version for each in pages} == {"7"}
    assert [dict(request.query) for _, request in transport.asked] == [
        {"limit": "2", "labelSelector": "app=web"},
        {"limit": "2", "labelSelector": "app=web", "continue": "more"},
    ]


def heavy(of: int, size: int) -> Callable[[Request], Response]:
    """A server with so many leases of so many bytes each; it sends no page beyond what the request wants to read."""

    def serve(request: Request) -> Response:
        query = dict(request.query)
        start = int(query.get("continue", 0))
        end = min(start + int(query["limit"]), of)
        if (end - start) * size > request.largest:
            raise errors.TooLarge(operation_of(request))
        leases = (lease(f"l{number}", number + 1, holder="x" * size) for number in range(start, end))
        return page(7, *leases, token=str(end) if end < of else "")

    return serve


@pytest.mark.parametrize(("of", "size", "most"), [(60, 1_300_000, 12), (12, 8_000_000, 3), (2, 40_000_000, 1)])
async def test_pages_of_large_objects_have_fewer_of_them(
    of: int, size: int, most: int, client: KubeClient, transport: ScriptedTransport
) -> None:
    transport.answers.extend([heavy(of, size)] * 100)
    seen = 0
    async for each in client.list(LEASES):
        assert len(each.items) <= most
        seen += len(each.items)
    assert seen == of


async def test_pages_grow_again_behind_large_objects(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([heavy(60, 9_000_000)] * 2)
    light = heavy(3000, 10)
    transport.answers.extend([light] * 20)
    sizes = [len(each.items) async for each in client.list(LEASES)]
    assert [int(dict(request.query)["limit"]) for _, request in transport.asked[:4]] == [500, 7, 1, 2]
    assert sizes[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500]
    assert sum(sizes) == 3000


async def test_one_object_that_is_too_large_is_told(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([heavy(2, 70_000_000)] * 6)
    with pytest.raises(errors.TooLarge, match=r"list leases.*: the answer is too large"):
        async for _ in client.list(LEASES):
            pass
    assert len(transport.asked) == 3


async def test_pages_and_watches_send_the_field_selector(client: KubeClient, transport: ScriptedTransport) -> None:
    on_a = Selection(fields="spec.nodeName=a")
    transport.answers.extend([page(7, token="more"), page(7)])
    assert [each.items async for each in client.list(PODS, selection=on_a)] == [(), ()]
    async with client.watch(PODS, "7", selection=on_a, timeout_seconds=300):
        pass
    assert {dict(request.query)["fieldSelector"] for _, request in transport.asked} == {"spec.nodeName=a"}
    assert transport.story == ["list pods", "list pods more", "watch pods @7"]


async def test_the_next_page_is_requested_before_decoding(client: KubeClient, transport: ScriptedTransport) -> None:
    asked = []

    def decode(raw: Raw) -> Lease:
        asked.append(len(transport.asked))
        return LEASES.decode(raw)

    leases = [lease(f"l{number}", number + 1) for number in range(300)]
    transport.answers.extend([page(7, *leases, token="b"), page(7, *leases, token="c"), page(7)])
    assert [len(each.items) async for each in client.list(LEASES.read_by(decode))] == [300, 300, 0]
    assert (asked[0], asked[300]) == (2, 3)


async def test_a_page_that_ends_with_its_token_is_followed(client: KubeClient, transport: ScriptedTransport) -> None:
    first, last = page(7, lease("a", 1), token="b"), page(7, lease("b", 2))
    assert isinstance(first, Response)
    items_first = b'{"items":' + first.body.split(b'"items":')[1].removesuffix(b"}")
    body = items_first + b',"metadata":{"resourceVersion":"7","continue":"b"}}'
    transport.answers.extend([msgspec.structs.replace(first, body=body), last])
    assert [each.name async for page_of_leases in client.list(LEASES) for each in page_of_leases.items] == ["a", "b"]


async def test_a_page_is_used_before_the_next_one_fails(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([page(7, lease("a", 1), token="b"), refusal(410, "Expired")])
    async with aclosing(client.list(LEASES)) as pages:
        assert [item.name for item in (await anext(pages)).items] == ["a"]
        with pytest.raises(errors.Gone):
            await anext(pages)


async def test_the_page_after_a_heavy_one_is_requested_later(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([page(7, lease("a", 1, holder="x" * 9_000_000), token="b"), page(7)])
    async with aclosing(client.list(LEASES)) as pages:
        await anext(pages)
        assert len(transport.asked) == 1


async def test_a_list_lets_others_run_while_it_decodes(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.append(page(7, *(lease(f"l{number}", number + 1) for number in range(550))))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with while_running(count), aclosing(client.list(LEASES)) as pages:
        await anext(pages)
    assert turns >= 4


@pytest.mark.parametrize("garbage", [b"<html>hello</html>", b'{"items": 7}', b""])
async def test_garbage_is_a_fault_of_the_server(
    client: KubeClient, transport: ScriptedTransport, garbage: bytes
) -> None:
    transport.answers.extend([answer(garbage), answer(garbage), answer(garbage)])
    with pytest.raises(errors.ServerError, match="the answer is not Node"):
        await client.get(NODES, ("", "a"))
    with pytest.raises(errors.ServerError, match="the answer is not a list of pods"):
        await anext(client.list(PODS))
    with pytest.raises(errors.ServerError, match="the answer is not a version"):
        await client.server_version()


async def test_the_version_of_the_server(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.append(answer({"major": "1", "gitVersion": "v1.31.2"}))
    assert await client.server_version() == "v1.31.2"


async def test_a_watch_brings_events_until_the_server_ends_it(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.streams.append([event("ADDED", lease("a", 8)), b"\n", bookmark(9)])
    async with client.watch(LEASES, "7", timeout_seconds=300) as watch:
        assert [happened.type async for happened in watch.events()] == ["ADDED", "BOOKMARK"]
    assert transport.story == ["watch leases @7"]
    assert client.statistics().count("watch", "leases", "ok") == 1


async def test_an_error_event_ends_a_watch_with_its_meaning(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.streams.append([event("ADDED", lease("a", 8)), expired()])
    async with client.watch(LEASES, "7", timeout_seconds=300) as watch:
        events = watch.events()
        assert (await anext(events)).type == "ADDED"
        with pytest.raises(WatchFailed) as caught:
            await anext(events)
    assert isinstance(caught.value.error, errors.Gone)


@pytest.mark.parametrize("line", [b"{\n", b"null\n", b'{"type":"ADDED"}\n', b"\xff\xfe\n"])
async def test_a_line_that_is_no_event(client: KubeClient, transport: ScriptedTransport, line: bytes) -> None:
    transport.streams.append([line])
    async with client.watch(LEASES, "7", timeout_seconds=300) as watch:
        with pytest.raises(Undecodable):
            await anext(watch.events())


async def test_a_watch_that_is_refused_says_why(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.streams.extend([refusal(410, "Expired"), BUSY, LOST])
    for meaning in (errors.Gone, errors.Throttled, errors.Unreachable):
        with pytest.raises(meaning):
            async with client.watch(LEASES, "7", timeout_seconds=300):
                pass
    # The busy server's pause holds for watches too.
    assert transport.instants == [0.0, 0.0, 3.0]


async def test_reads_impersonate_and_writes_do_not(transport: ScriptedTransport) -> None:
    client = KubeClient(transport, transport.clock, settings=ClientSettings(reads_as="system:node:n1"))
    transport.answers += [answer(lease("a", 1)), page(1), answer(lease("a", 2)), answer(lease("a", 2))]
    await client.get(LEASES, KEY)
    async with aclosing(client.list(LEASES)) as pages:
        async for _ in pages:
            pass
    async with client.watch(LEASES, "1", timeout_seconds=1):
        pass
    await client.patch(LEASES, KEY, MergePatch({}), uid="u")
    await client.delete(LEASES, KEY, uid="u")
    asked = [(request.method, request.impersonate) for _, request in transport.asked]
    assert asked == [*(("GET", "system:node:n1"),) * 3, ("PATCH", ""), ("DELETE", "")]
