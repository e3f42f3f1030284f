"""The catalogue of metrics: dashboards and alerts are made of these names, labels and types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gracectl.telemetry.metrics import CATALOGUE, PROTECTION_HELD, Metric

PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text()

PINNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "gracectl_terminations": ("gauge", ("kind", "step")),
    "gracectl_termination_oldest_seconds": ("gauge", ("kind",)),
    "gracectl_nodes_terminated_total": ("counter", ("reason", "result")),
    "gracectl_termination_duration_seconds": ("histogram", ("kind",)),
    "gracectl_termination_step_duration_seconds": ("histogram", ("kind", "step")),
    "gracectl_drains_stalled": ("gauge", ("kind",)),
    "gracectl_pods_left": ("gauge", ("state",)),
    "gracectl_blocked_pods": ("gauge", ("reason",)),
    "gracectl_pods_drained_total": ("counter", ("how",)),
    "gracectl_eviction_requests_total": ("counter", ("code", "answer")),
    "gracectl_node_budgets": ("gauge", ("state",)),
    "gracectl_node_admissions_total": ("counter", ("answer",)),
    "gracectl_nodes_blocked_by_budget": ("gauge", ("of",)),
    "gracectl_voluntary_terminations_pending": ("gauge", ("cause", "hold")),
    "gracectl_voluntary_terminations_pending_oldest_seconds": ("gauge", ()),
    "gracectl_voluntary_terminations_active": ("gauge", ("state",)),
    "gracectl_voluntary_terminations_maximum": ("gauge", ()),
    "gracectl_unhealthy_nodes": ("gauge", ("state",)),
    "gracectl_health_circuit_breaker_open": ("gauge", ()),
    "gracectl_pdb_queues": ("gauge", ()),
    "gracectl_pdb_queue_pods": ("gauge", ("budgets",)),
    "gracectl_pdb_queue_depth_max": ("gauge", ()),
    "gracectl_pdb_queue_oldest_wait_seconds": ("gauge", ("budgets",)),
    "gracectl_pdb_queue_wait_seconds": ("histogram", ("budgets",)),
    "gracectl_pod_deletion_requests_total": ("counter", ("code", "answer")),
    "gracectl_deadline_lateness_seconds": ("histogram", ()),
    "gracectl_deadline_pods": ("gauge", ("state",)),
    "gracectl_timers": ("gauge", ()),
    "gracectl_timer_operations_total": ("counter", ("operation",)),
    "gracectl_timer_lateness_seconds_total": ("counter", ()),
    "gracectl_timer_lateness_seconds_max": ("gauge", ()),
    "gracectl_protected_pods": ("gauge", ("kind", "until")),
    "gracectl_protected_pods_terminating": ("gauge", ("kind", "until")),
    "gracectl_protection_remaining_seconds_max": ("gauge", ("kind",)),
    "gracectl_protection_held_seconds": ("histogram", ("kind", "ended")),
    "gracectl_provider_calls_total": ("counter", ("call", "outcome")),
    "gracectl_provider_call_duration_seconds": ("histogram", ("call",)),
    "gracectl_admission_requests_total": ("counter", ("webhook", "verdict")),
    "gracectl_admission_request_duration_seconds": ("histogram", ("webhook",)),
    "gracectl_admission_unknown_paths_total": ("counter", ()),
    "gracectl_admission_registered": ("gauge", ()),
    "gracectl_admission_certificate_expiry_timestamp_seconds": ("gauge", ()),
    "gracectl_api_requests_total": ("counter", ("verb", "resource", "outcome")),
    "gracectl_api_request_duration_seconds": ("histogram", ("verb",)),
    "gracectl_api_retries_total": ("counter", ()),
    "gracectl_api_throttled_total": ("counter", ()),
    "gracectl_api_throttled_seconds_total": ("counter", ()),
    "gracectl_api_retry_after_capped_total": ("counter", ()),
    "gracectl_api_dates_refused_total": ("counter", ()),
    "gracectl_api_clock_offset_seconds": ("gauge", ()),
    "gracectl_clock_disputed": ("gauge", ()),
    "gracectl_watch_lists_total": ("counter", ("resource",)),
    "gracectl_watch_streams_total": ("counter", ("resource",)),
    "gracectl_watch_stalls_total": ("counter", ("resource",)),
    "gracectl_watch_failures_total": ("counter", ("resource",)),
    "gracectl_watch_events_total": ("counter", ("resource",)),
    "gracectl_watch_silence_seconds": ("gauge", ("resource",)),
    "gracectl_cached_objects": ("gauge", ("cache",)),
    "gracectl_undecodable_objects": ("gauge", ("cache",)),
    "gracectl_queue_depth": ("gauge", ("queue",)),
    "gracectl_queue_delayed": ("gauge", ("queue",)),
    "gracectl_queue_processing": ("gauge", ("queue",)),
    "gracectl_queue_failing": ("gauge", ("queue",)),
    "gracectl_queue_adds_total": ("counter", ("queue",)),
    "gracectl_queue_retries_total": ("counter", ("queue",)),
    "gracectl_queue_latency_seconds": ("histogram", ("queue",)),
    "gracectl_queue_oldest_wait_seconds": ("gauge", ("queue",)),
    "gracectl_queue_work_seconds_total": ("counter", ("queue",)),
    "gracectl_loop_lag_seconds": ("histogram", ()),
    "gracectl_shutdown_lock_held": ("gauge", ()),
    "gracectl_shutdown_delay_seconds": ("gauge", ("which",)),
    "gracectl_shutdowns_total": ("counter", ("outcome",)),
    "gracectl_shutdown_start_timestamp_seconds": ("gauge", ()),
    "gracectl_shutdown_end_timestamp_seconds": ("gauge", ()),
    "gracectl_shutdown_pods": ("gauge", ()),
    "gracectl_dry_run": ("gauge", ()),
    "gracectl_leader": ("gauge", ()),
    "gracectl_lease_terms_total": ("counter", ()),
    "gracectl_lease_renewals_total": ("counter", ()),
    "gracectl_lease_failures_total": ("counter", ()),
    "gracectl_fenced_writes_total": ("counter", ("how",)),
    "gracectl_settings_refused": ("gauge", ()),
    "gracectl_settings_restart_needed": ("gauge", ()),
    "gracectl_events_recorded_total": ("counter", ()),
    "gracectl_events_total": ("counter", ("outcome",)),
    "gracectl_events_backlog": ("gauge", ()),
    "gracectl_http_connections": ("gauge", ("listener",)),
    "gracectl_http_connections_dropped_total": ("counter", ("listener", "cause")),
    "gracectl_trace_spans_total": ("counter", ("outcome",)),
    "gracectl_trace_spans_waiting": ("gauge", ()),
    "gracectl_build_info": ("gauge", ("version", "python")),
}


def test_names_types_and_labels_are_pinned() -> None:
    assert {metric.name: (metric.type, metric.labels) for metric in CATALOGUE} == PINNED
    assert len(CATALOGUE) == len(PINNED)


def test_the_buckets_of_protection_reach_from_a_second_to_three_days() -> None:
    hour = 3600.0
    assert PROTECTION_HELD.buckets == (
        *(1.0, 10.0, 60.0, 300.0, 900.0, 1800.0),
        *(hour, 2 * hour, 4 * hour, 8 * hour, 24 * hour, 72 * hour),
    )


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_advises_and_says_what_it_is(metric: Metric) -> None:
    assert re.fullmatch(r"gracectl(_[a-z]+)+", metric.name)
    assert (metric.type == "counter") == metric.name.endswith("_total")
    assert metric.type != "histogram" or metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|milliseconds|minutes|hours|kib|percent|count|sum|bucket)$", metric.name)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert (metric.type == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not {"le", "quantile", "job", "instance"} & set(metric.labels)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_in_the_documentation_with_its_labels(metric: Metric) -> None:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    assert f"`{metric.name}{labels}`" in PAGE


def test_the_documentation_knows_no_other_metrics() -> None:
    shown = {re.sub(r"_(bucket|sum)$", "", name) for name in re.findall(r"\bgracectl_[a-z_]+", PAGE)}
    assert shown == set(PINNED)
