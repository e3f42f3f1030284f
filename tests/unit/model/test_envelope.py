"""Pages, watch events and Status bodies, as a real server sends them (shapes taken from its recorded answers)."""

from __future__ import annotations

import msgspec
import pytest

from gracectl.model import wire
from gracectl.model.decode import decode_pod
from gracectl.model.envelope import (
    ListPage,
    Status,
    StatusCause,
    StatusDetails,
    decode_envelope,
    decode_event,
    decode_meta,
    decode_page,
    decode_page_in_slices,
    decode_status,
    token_ahead,
)
from gracectl.model.untrusted import finish


def test_a_page_that_is_not_the_last() -> None:
    page = decode_page(
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc","remainingItemCount":3},'
        b'"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}'
    )
    assert (page.resource_version, page.continue_token, page.remaining) == ("7", "abc", 3)
    assert [decode_pod(raw).name for raw in page.items] == ["a", "b"]


GOOD, LATE = b'{"metadata":{"name":"a"},"spec":{"volumes":[{"emptyDir":{}}]}}', b'{"metadata":{"name":"a","labels":7}}'
BAD = b'{"metadata":{"name":"b"},"spec":{"priority":"high"}}'


@pytest.mark.parametrize(("items", "of"), [
    (GOOD, wire.Pod), (GOOD + b"," + LATE, wire.Pod), (GOOD + b"," + BAD, msgspec.Raw), (b"7", msgspec.Raw),
])  # fmt: skip
def test_objects_are_decoded_with_their_page_unless_one_cannot_be(items: bytes, of: type) -> None:
    body = b'{"metadata":{"resourceVersion":"7","continue":"abc"},"items":[' + items + b"]}"
    page = finish(decode_page_in_slices(body, wire.Pod))
    assert (page.resource_version, page.continue_token) == ("7", "abc")
    assert {type(each) for each in page.items} == {of}
    if items == GOOD:
        assert [decode_pod(each) for each in page.items] == [decode_pod(GOOD)]


@pytest.mark.parametrize(("body", "token"), [
    (b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc"},"items":[]}', "abc"),
    (b'{"metadata":{"continue":"a\\"b","remainingItemCount":3},"items":[]}', 'a"b'),
    (b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}', ""),
    (b'{"metadata":{"continue":null},"items":[]}', ""),
    (b'{"metadata":{"continue":"}"},"items":[]}', ""),
    (b'{"metadata":{"continue":7},"items":[]}', ""),
    (b'{"items":[{"metadata":{"continue":"of an object"}}],"metadata":{"continue":"abc"}}', ""),
    (b"404 page not found", ""),
])  # fmt: skip
def test_the_token_of_a_page_can_be_read_before_the_page(body: bytes, token: str) -> None:
    assert token_ahead(body) == token


@pytest.mark.parametrize("items", [b"[]", b"null"])
@pytest.mark.parametrize("token", [b"", b',"continue":""', b',"continue":null'])
def test_an_empty_last_page(items: bytes, token: bytes) -> None:
    body = b'{"metadata":{"resourceVersion":"7"' + token + b'},"items":' + items + b"}"
    assert decode_page(body) == ListPage("7", "", None, [])


@pytest.mark.parametrize(
    "body", [b"404 page not found\n", b'{"kind":"Status","metadata":{},"code":404}', b'{"items":[]}', b"[]"]
)
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_page(body)


def test_an_event_with_its_object() -> None:
    event = decode_event(b'{"type":"DELETED","object":{"metadata":{"name":"a","uid":"u"}}}\n')
    assert event.type == "DELETED"
    assert decode_pod(event.object).uid == "u"


@pytest.mark.parametrize(("type_", "pod", "read"), [
    ("ADDED", GOOD, wire.Pod), ("MODIFIED", GOOD, wire.Pod), ("DELETED", GOOD, wire.Pod),
    ("MODIFIED", LATE, wire.Pod), ("MODIFIED", BAD, msgspec.Raw), ("BOOKMARK", GOOD, msgspec.Raw),
    ("ERROR", GOOD, msgspec.Raw),
])  # fmt: skip
def test_a_change_is_decoded_with_its_object_where_that_can_be(type_: str, pod: bytes, read: type) -> None:
    line = b'{"type":"%s","object":%s}' % (type_.encode(), pod)
    event, plain = decode_event(line, wire.Pod), decode_event(line)
    assert (event.type, type(event.object)) == (type_, read)
    if pod is GOOD:
        assert decode_pod(event.object) == decode_pod(plain.object)
    else:
        error = msgspec.DecodeError("why")
        assert decode_envelope(event.object, error) == decode_envelope(plain.object, error)


def test_a_bookmark_has_a_version_and_nothing_else() -> None:
    event = decode_event(
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"99",'
        b'"creationTimestamp":null},"spec":{"containers":null},"status":{}}}'
    )
    assert event.type == "BOOKMARK"
    assert decode_meta(event.object) == "99"


def test_an_error_event_carries_a_status() -> None:
    event = decode_event(
        b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
        b'"message":"too old resource version: 1 (5)","reason":"Expired","code":410}}'
    )
    assert event.type == "ERROR"
    assert decode_status(event.object) == Status(410, "Expired", "too old resource version: 1 (5)")


@pytest.mark.parametrize("line", [b"", b"\n", b'{"type":"ADDED"}', b'{"object":{}}', b'{"type":"ADDED","object":{"me'])
def test_half_an_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(line)


def test_a_status_with_all_its_details() -> None:
    status = decode_status(
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Cannot evict pod as it would '
        b'violate the pod\'s disruption budget.","reason":"TooManyRequests","details":{"name":"web-1","kind":"pods",'
        b'"uid":"u","causes":[{"reason":"DisruptionBudget","message":"still being processed by the server.",'
        b'"field":"spec"}],"retryAfterSeconds":10},"code":429}'
    )
    assert status == Status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        StatusDetails(
            "web-1", "pods", "u", 10, (StatusCause("DisruptionBudget", "still being processed by the server.", "spec"),)
        ),
    )


def test_a_status_without_details_has_empty_ones() -> None:
    # So answers a server when two budgets select the pod.
    status = decode_status(b'{"kind":"Status","metadata":{},"message":"more than one","details":null,"code":500}')
    assert status == Status(500, "", "more than one", StatusDetails())


@pytest.mark.parametrize("body", [
    b"", b"404 page not found\n", b"<html>502 Bad Gateway</html>", b"\xff\xfe", b"[]", b"null", b"{}",
    b'{"kind":"Pod"}',
])  # fmt: skip
def test_a_body_that_is_no_status_is_none(body: bytes) -> None:
    assert decode_status(body) is None
