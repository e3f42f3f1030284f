"""Where traces and metrics of a command go: its variables, its file, its end; and the commands that have them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result
from e2e_support.program import Program, running
from e2e_support.target import embedded_cluster
from google.protobuf.json_format import ParseDict
from kubesim.controllers.client import ApiClient, ask
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim_support.patience import PATIENCE
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from support.collector import HANGING, SeenSpan, as_span, attributes_of, collecting, read, receiving, tree
from support.traces import assert_flawless

from benchmarks.ground.hollow import connected
from gracectl.cli import demo_play
from gracectl.cli.demo_report import judged
from gracectl.cli.root import root
from gracectl.cli.telemetry import LAST_SPANS_SECONDS, traced
from gracectl.config import ConfigError
from gracectl.model.names import FINALIZER
from gracectl.runtime.clock import SystemClock
from gracectl.telemetry.spans import Span, Trace

pytestmark = pytest.mark.real_time
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
STEPS = {"drain", "instance", "finalizer"}
"""That every node of the demo takes, and that take time."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace settings of the account that runs the tests count."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def demo(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["demo", "--speed", "20", "--pods", "20", *map(str, arguments)])


def spans_in(file: Path) -> tuple[SeenSpan, ...]:
    def with_base64_ids(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key: base64.b64encode(bytes.fromhex(inner)).decode() if key.endswith("Id") else with_base64_ids(inner)
                for key, inner in value.items()
            }
        return [with_base64_ids(inner) for inner in value] if isinstance(value, list) else value

    return tuple(read(ParseDict(with_base64_ids(json.loads(file.read_bytes())), TracesData())))


def assert_one_whole_trace_of_each(spans: tuple[SeenSpan, ...], nodes: Mapping[str, int]) -> None:
    """`nodes`: how many pods were evicted from each."""
    assert_flawless(map(as_span, spans))
    traces = {}
    for trace in {span.trace for span in spans}:
        whole = tree(tuple(span for span in spans if span.trace == trace))
        assert whole.span.name == "terminate node"
        traces[whole.span.attributes["k8s.node.name"]] = whole
        assert set(whole.names()) >= STEPS
        (drain,) = (child for child in whole.children if child.span.name == "drain")
        pods = [pod.span for wave in drain.children for pod in wave.children]
        # The wait for a wave is shown where the machine is slow.
        assert all(each.span.name.startswith(("wave ", "waiting for wave ")) for each in drain.children)
        evicted = [pod for pod in pods if pod.name == "pod evicted"]
        assert len(evicted) == nodes[whole.span.attributes["k8s.node.name"]]
        assert all(whole.span.start <= pod.start <= pod.end <= whole.span.end for pod in pods)
    assert traces.keys() == nodes.keys()


class TestTraced:
    async def test_without_a_target_there_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with traced() as tracing:
            assert tracing is None
        monkeypatch.setenv(ENDPOINT, "http://collector:4318")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        async with traced() as tracing:
            assert tracing is None

    async def test_a_file_is_written_also_if_the_block_fails(self, tmp_path: Path) -> None:
        path, trace = tmp_path / "traces.json", Trace.of("a", 0.0)

        async def fail() -> None:
            async with traced(path) as tracing:
                assert tracing is not None
                tracing.emit(Span(trace=trace, name="terminate node", start=1.0, end=2.0, id=trace.root))
                raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            await fail()
        assert [span.name for span in spans_in(path)] == ["terminate node"]

    async def test_a_file_and_a_collector_get_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, trace = tmp_path / "traces.json", Trace.of("a", 0.0)
        with receiving() as collector:
            monkeypatch.setenv(ENDPOINT, collector.url)
            async with traced(path) as tracing:
                assert tracing is not None
                tracing.emit(Span(trace=trace, name="drain", start=1.0, end=2.0))
            assert collector.spans() == spans_in(path)

    @pytest.mark.parametrize(("name", "value", "message"), [
        (ENDPOINT, "collector:4317", f"environment variable {ENDPOINT}: 'collector:4317' is not a URL"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "environment variable OTEL_TRACES_EXPORTER: 'zipkin' is not supported"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "environment variable OTEL_BSP_*: max_queue_size must be"),
    ])  # fmt: skip
    async def test_variables_that_cannot_be_obeyed(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
    ) -> None:
        monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
        monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            async with traced():
                pytest.fail("it has begun")

    async def test_a_file_not_writable_at_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(self: Path, target: Path) -> Path:
            raise OSError(28, "No space left on device", str(self))

        monkeypatch.setattr(Path, "replace", full)
        path = tmp_path / "traces.json"
        message = f"--trace-file: cannot write {path}: No space left on device; choose another file"
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            async with traced(path):
                pass


class TestDemo:
    def test_it_writes_a_whole_trace_of_each_node_and_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "traces.json"
        result = demo("--trace-file", path)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.endswith(f"The trace of each node is in {path}; load it into Jaeger's UI.\n")
        nodes = dict.fromkeys({span.attributes.get("k8s.node.name") for span in spans_in(path)} - {None}, 0)
        assert len(nodes) == 3

    def test_for_machines_it_says_nothing_of_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "traces.json"
        with collecting() as collector:
            monkeypatch.setenv(ENDPOINT, collector.url)
            result = demo("--trace-file", path, "-o", "json")
            assert (result.exit_code, result.stderr) == (0, "")
            nodes = {node["name"]: node["pods"] for node in json.loads(result.stdout)["nodes"]}
            assert_one_whole_trace_of_each(spans_in(path), nodes)
            assert_one_whole_trace_of_each(collector.spans(), nodes)

    @pytest.mark.parametrize(
        ("place", "reason"), [("missing/traces.json", "No such file or directory"), (".", "Is a directory")]
    )
    def test_an_unwritable_file_is_refused_first(self, tmp_path: Path, place: str, reason: str) -> None:
        path = tmp_path / place
        result = demo("--trace-file", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"gracectl: --trace-file: cannot write {path}: {reason}; choose another file\n"

    def test_invalid_variables_are_refused_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(ENDPOINT, "collector")
        result = demo()
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"gracectl: environment variable {ENDPOINT}: 'collector' is not a URL such as ")

    def test_a_demo_that_fails_leaves_its_traces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """That is when you want to look at them."""
        monkeypatch.setattr(demo_play, "judged", lambda result, *failures: judged(result, "it was ugly"))
        path = tmp_path / "traces.json"
        result = demo("--trace-file", path)
        assert result.exit_code == 1
        assert f"The trace of each node is in {path}" in result.stdout
        assert {span.name for span in spans_in(path)} >= {"terminate node"}
        Path(re.findall(r"the controller's log is (\S+)", result.stderr)[0]).unlink()


@asynccontextmanager
async def ended_node(folder: Path) -> AsyncIterator[tuple[Program, str]]:
    """A controller that has just terminated a node of an embedded cluster, and the node's name."""
    with embedded_cluster(folder, "--nodes", "3", "--pods", "10", "--speed", "20") as kubeconfig:
        async with (
            connected(kubeconfig) as api,
            running(kubeconfig, {"clusterName": "prod", "drain": {"minimumSeconds": 0}}, folder) as program,
        ):
            name = await _held(api)
            await ask(api, "DELETE", path_of(NODES, name=name))
            await program.until_said("node is terminated")
            yield program, name


async def _held(api: ApiClient) -> str:
    """The name of a node with pods, when the controller has put its finalizer on it."""
    _, body = await ask(api, "GET", PODS)
    name: str = next(pod["spec"]["nodeName"] for pod in body["items"] if "ownerReferences" in pod["metadata"])
    with anyio.fail_after(PATIENCE):
        while True:
            _, node = await ask(api, "GET", path_of(NODES, name=name))
            if FINALIZER in node["metadata"].get("finalizers", ()):
                return name
            await SystemClock().sleep(0.05)


class TestController:
    """The command as a process."""

    async def test_the_last_spans_arrive_before_it_stops(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also of a node that has just ended; its lines in the log carry the id of its trace."""
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")  # nothing leaves before
        with collecting() as collector:
            monkeypatch.setenv(ENDPOINT, collector.url)
            async with ended_node(tmp_path) as (controller, name):
                assert collector.spans() == ()
                controller.send(signal.SIGTERM)
                assert await controller.ended() == 0
            (trace,) = collector.traces()
            whole = collector.tree(trace)
        assert (whole.span.name, whole.span.attributes["k8s.node.name"]) == ("terminate node", name)
        assert {span.resource["k8s.cluster.name"] for span in collector.spans(trace)} == {"prod"}
        (begun,) = controller.said("node is being terminated")
        (over,) = controller.said("node is terminated")
        assert begun["trace_id"] == over["trace_id"] == trace
        assert all(entry["trace_id"] == trace for entry in controller.said("pod evicted"))
        assert not [entry for entry in controller.entries() if "trace_id" in entry and entry.get("node") != name]

    async def test_metrics_are_exported_only_on_request(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And they are exported once more at the end, under the same identity as the traces."""
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "600000")
        with collecting() as collector:
            monkeypatch.setenv(ENDPOINT, collector.url)
            async with ended_node(tmp_path) as (controller, _):
                controller.send(signal.SIGTERM)
                assert await controller.ended() == 0
            (export,) = collector.wait_for_metrics(1)
            assert export.resource == collector.spans()[0].resource
        (drained,) = [
            point.as_double or point.as_int
            for point in export.metrics["gracectl_nodes_terminated_total"].sum.data_points
            if attributes_of(point.attributes) == {"reason": "by hand", "result": "drained"}
        ]
        assert drained == 1
        assert "process_start_time_seconds" in export.metrics

    def test_unsupported_metrics_exporters_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text("{}")
        result = CliRunner().invoke(root, ["controller", "--kubeconfig", str(kubeconfig)])
        assert result.exit_code == 2
        assert "environment variable OTEL_METRICS_EXPORTER: 'console' is not supported; set otlp" in result.stderr

    async def test_a_collector_that_hangs_does_not_keep_it_from_ending(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with collecting(HANGING) as collector:
            monkeypatch.setenv(ENDPOINT, collector.url)
            async with ended_node(tmp_path) as (controller, _):
                await anyio.to_thread.run_sync(collector.wait_for_requests, 1)
                controller.send(signal.SIGTERM)
                # The SDK itself would try for ten seconds each batch.
                assert await controller.ended(LAST_SPANS_SECONDS + 4) == 0
        (lost,) = controller.said("spans lost: not exported after 3 s")
        assert lost["level"] == "warning"
        assert "Traceback" not in controller.text()
