"""What a sampler leaves out leaves no trace: nothing is written onto the objects, nor into the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged, unregistered
from support.traces import Collector

from gracectl.model import names
from gracectl.telemetry import logs
from gracectl.telemetry.spans import Trace

WRITTEN = re.compile(rf'{re.escape(names.TRACEPARENT)}":"00-([0-9a-f]{{32}})-')


class Lines(logging.Handler):
    """The log of a controller, with the trace ids that the command adds to it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.traces: dict[str, str] = {}
        """By id, the first message that has it."""

    def emit(self, record: logging.LogRecord) -> None:
        if (trace := getattr(record, "trace_id", None)) is not None:
            self.traces.setdefault(trace, record.getMessage())


def written(stage: Stage) -> set[str]:
    """Ids of the traces that any object was given."""
    bodies = [each.request.body or b"" for each in stage.transport.executed if each.operation.verb == "patch"]
    return {trace for body in bodies for trace in WRITTEN.findall(body.decode())}


@pytest.mark.parametrize(
    ("is_sampled", "least", "most"),
    [
        pytest.param(lambda trace: True, 10, 10, id="all"),
        pytest.param(lambda trace: trace.id % 2 == 0, 1, 9, id="some"),
        pytest.param(lambda trace: False, 0, 0, id="none"),
    ],
)
async def test_ids_on_objects_and_in_the_log_are_those_of_traces_that_are_exported(
    is_sampled: Callable[[Trace], bool], least: int, most: int
) -> None:
    """Three nodes without a claim, three with one that is deleted, two whose claim is not,
    and a claim that knows no node."""
    alone, claimed, kept = ("n1", "n2", "n3"), ("n4", "n5", "n6"), ("n7", "n8")
    async with staged(*alone, cloud=CloudSettings(terminate_delay=3.0)) as stage:
        collector, lines = Collector(stage, is_sampled), Lines()
        await stage.add_nodes(*claimed, *kept, "n9", claim=ClaimSpec())
        await stage.patch_claim("n9-claim", {"status": unregistered()}, "/status")
        await stage.create(*(a_pod_manifest(f"on-{node}", node, **STOPS_AFTER_5) for node in (*alone, *claimed, *kept)))
        async with stage.controller() as controller:
            root = logging.getLogger()
            root.handlers[:] = [lines]
            root.setLevel(logging.DEBUG)
            logs.add_trace_ids(controller.trace_id)
            await stage.settle(controller)
            for node in (*alone, *kept):
                await stage.delete_node(node)
            for node in (*claimed, "n9"):
                await stage.delete_claim(f"{node}-claim")
            await stage.until_gone(*alone, *claimed, *kept, "n9")
            await stage.until_claims_gone(*(f"{node}-claim" for node in (*claimed, "n9")))
            await stage.clock.sleep(1)
    exported = {span.trace.hex for span in collector.spans}
    assert least <= len(exported) <= most
    assert lines.traces.keys() == exported, lines.traces
    assert written(stage) == exported
    assert len({span.trace for span in collector.spans if span.parent is None}) == len(exported), "each is whole"
