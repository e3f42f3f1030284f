"""docs/rehearsal.md shows what gracectl says of a shutdown beforehand, and that is what then happens."""

from __future__ import annotations

from support.shutdowns import an_agent, deletions
from support.stage import staged

from examples.pages import put_in
from examples.rehearsal import NODE, PAGE, blocks_of, build, read_input, rehearse

TEXT = PAGE.read_text(encoding="utf-8")
REMEDY = "if that is as it should be, `make examples ARGS=--update` writes it anew"


def test_the_page_has_what_is_printed_word_for_word() -> None:
    assert put_in(TEXT, blocks_of(rehearse())) == TEXT, REMEDY


async def test_what_is_rehearsed_is_what_the_agent_then_does_to_pods_that_take_all_their_grace() -> None:
    async with staged() as stage:
        await build(stage)
        rehearsal_input = await read_input(stage)
        assert not stage.transport.of("delete", "pods")
        async with an_agent(stage, node=NODE) as played:
            await played.live()
            start = played.logind.shut_down()
            await stage.clock.sleep(700)
            done = deletions(stage, start)
            rehearsed = [
                (pod.pod.name, pod.at, pod.grace) for each in rehearsal_input.rehearsal.ranges for pod in each.pods
            ]
            assert sorted((name, round(at), grace) for name, at, grace in done) == sorted(rehearsed)
            assert played.logind.released_at is not None
            # A pod takes a moment to be gone, and the last words some more.
            assert 0 <= played.logind.released_at - start - rehearsal_input.rehearsal.over < 3
