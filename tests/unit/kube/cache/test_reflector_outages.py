"""What can be read of a reflector while its server is away, and where a refusal is no reason to end."""

from __future__ import annotations

import pytest
from support.servers import FOREVER, LOST, World, answer, page, refusal

from gracectl.kube.cache.reflector import ReflectorSettings
from gracectl.kube.transport import Response

NOT_SERVED = answer(b"404 page not found", 404)


async def test_whether_it_fails_can_be_read_from_the_first_failure_to_the_first_success() -> None:
    world = World()
    world.transport.answers.extend([LOST, 5.0, page(7)])
    world.transport.streams.extend([[20.0, LOST], LOST, [FOREVER]])

    def is_failing() -> bool:
        return world.reflector.statistics().failing

    assert (world.reflector.live, is_failing()) == (False, False)
    async with world.running(0.1):
        assert (world.reflector.live, is_failing()) == (False, True)
        await world.reflector.wait_live()
        assert world.clock.monotonic() == pytest.approx(5.2)
        assert (world.reflector.live, is_failing()) == (True, False)
        await world.clock.sleep(20.1)  # the stream has broken at 25.2
        assert (world.reflector.live, is_failing()) == (True, True)
        await world.clock.sleep(0.3)  # so has the next one
        assert is_failing()
        await world.clock.sleep(0.3)  # at 25.8 there is another
        assert not is_failing()


async def test_an_optional_resource_that_is_not_served_is_live_and_does_not_fail() -> None:
    world = World(ReflectorSettings(optional=True))
    world.transport.answers.extend([LOST, NOT_SERVED])
    async with world.running(1):
        assert (world.reflector.live, world.reflector.statistics().failing) == (True, False)


def kube_system(uid: str) -> Response:
    return answer({"metadata": {"name": "kube-system", "uid": uid}})


@pytest.mark.parametrize(("after", "resumed"), [
    (kube_system("a"), ["watch leases @7"]),
    (kube_system("b"), ["list leases", "watch leases @5"]),
    (refusal(403, "Forbidden"), ["watch leases @7"]),
], ids=["the same cluster", "another cluster", "unknown"])  # fmt: skip
async def test_after_a_lost_connection_another_cluster_is_listed_anew(after: Response, resumed: list[str]) -> None:
    world = World(with_identity=True)
    world.transport.answers.extend([kube_system("a"), page(7), after])
    if "list leases" in resumed:
        world.transport.answers.append(page(5))
    world.transport.streams.extend([[20.0, LOST], [FOREVER]])
    async with world.running(25):
        first = ["get namespaces kube-system", "list leases", "watch leases @7"]
        assert world.transport.story == [*first, "get namespaces kube-system", *resumed]


async def test_a_watch_that_ends_without_a_lost_connection_is_resumed_without_a_question() -> None:
    world = World(with_identity=True)
    world.transport.answers.extend([kube_system("a"), page(7)])
    world.transport.streams.extend([[20.0], [FOREVER]])
    async with world.running(25):
        first = ["get namespaces kube-system", "list leases"]
        assert world.transport.story == [*first, "watch leases @7", "watch leases @7"]


async def test_where_others_have_shown_our_rights_a_refusal_is_waited_out_from_the_beginning() -> None:
    world = World(ReflectorSettings(proven=True))
    world.transport.answers.extend([refusal(401, "Unauthorized"), page(7)])
    world.transport.streams.extend([refusal(403, "Forbidden"), [FOREVER]])
    async with world.running(1):
        assert world.transport.story == ["list leases", "list leases", "watch leases @7", "watch leases @7"]
