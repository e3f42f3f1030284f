"""Catalogue of all metrics: name, type, labels, help text.

Dashboards and alerts use these names, so a test pins them, and no other module spells one. The values of a label are
bounded: enumerations, never names of objects; for the optional ones see node_labels. Invariant: nothing here counts;
components do, in frozen statistics that are read at each scrape.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gracectl.runtime.histogram import Distribution
from gracectl.runtime.loop_monitor import LAG_BOUNDS
from gracectl.runtime.queue import LATENCY_BOUNDS

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

STEPS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, DAY, 3 * DAY)
WAITS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, DAY)
LATENESS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, MINUTE)
ANSWERS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metric(msgspec.Struct, frozen=True):
    """Entry of the catalogue. `buckets`: upper bounds of a histogram, ascending, without infinity. `of_nodes`: it also
    takes the labels of `metrics.labels`."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    of_nodes: bool = False


class Sample(msgspec.Struct, frozen=True):
    """Value of a metric for these label values, the labels of `metrics.labels` last."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


_catalogue: list[Metric] = []


def _gauge(name: str, *labels: str, help: str, of_nodes: bool = False) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "gauge", help, labels, of_nodes=of_nodes))


def _counter(name: str, *labels: str, help: str, of_nodes: bool = False) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "counter", help, labels, of_nodes=of_nodes))


def _histogram(name: str, *labels: str, buckets: tuple[float, ...], help: str, of_nodes: bool = False) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "histogram", help, labels, buckets, of_nodes))


def _entered(metric: Metric) -> Metric:
    _catalogue.append(metric)
    return metric


# Terminations of nodes and claims.

TERMINATIONS: Final = _gauge(
    "terminations",
    "kind",
    "step",
    help="Active terminations of nodes and claims, and drains for maintenance, by current step.",
    of_nodes=True,
)
TERMINATION_OLDEST: Final = _gauge(
    "termination_oldest_seconds",
    "kind",
    help="Age of the oldest active termination; 0 if there is none. Drains for maintenance excluded.",
)
NODES_TERMINATED: Final = _counter(
    "nodes_terminated_total",
    "reason",
    "result",
    help="Nodes that were terminated, by reason and by how it ended.",
    of_nodes=True,
)
TERMINATION_DURATION: Final = _histogram(
    "termination_duration_seconds",
    "kind",
    buckets=STEPS,
    help="Duration of completed terminations, from request to end; for maintenance, until the node is uncordoned.",
    of_nodes=True,
)
STEP_DURATION: Final = _histogram(
    "termination_step_duration_seconds",
    "kind",
    "step",
    buckets=STEPS,
    help="Time spent at each step, recorded when the termination is complete.",
    of_nodes=True,
)
DRAINS_STALLED: Final = _gauge(
    "drains_stalled",
    "kind",
    help="Drains without progress for a minute: pods are left, and none has left or is terminating.",
    of_nodes=True,
)
PODS_LEFT: Final = _gauge(
    "pods_left",
    "state",
    help="Pods that block active terminations, by their state in the last plan.",
)
BLOCKED_PODS: Final = _gauge(
    "blocked_pods",
    "reason",
    help="Pods left that cannot be evicted now, by reason.",
)
PODS_DRAINED: Final = _counter(
    "pods_drained_total",
    "how",
    help="Pods that no longer block a node: evicted, deleted for the deadline, left on their own, or abandoned "
    "when their node's termination was over.",
    of_nodes=True,
)

# Evictions.

EVICTION_REQUESTS: Final = _counter(
    "eviction_requests_total",
    "code",
    "answer",
    help="Eviction requests, retries included, by HTTP status and meaning.",
)
NODE_BUDGETS: Final = _gauge(
    "node_budgets",
    "state",
    help="NodeDisruptionBudgets, by whether they allow the deletion of a node now, and why not.",
)
NODE_ADMISSIONS: Final = _counter(
    "node_admissions_total",
    "answer",
    help="Decisions on node deletions, of the webhook and of the controller itself, by result.",
)
NODES_BLOCKED_BY_BUDGET: Final = _gauge(
    "nodes_blocked_by_budget",
    "of",
    help="Terminations that wait for a NodeDisruptionBudget: voluntary ones of nodes and claims, and terminations of "
    "deleted claims.",
)
VOLUNTARY_PENDING: Final = _gauge(
    "voluntary_terminations_pending",
    "cause",
    "hold",
    help="Nodes and claims with a pending termination for health, label or age, by cause and blocker.",
)
VOLUNTARY_PENDING_OLDEST: Final = _gauge(
    "voluntary_terminations_pending_oldest_seconds",
    help="Waiting time of the longest pending voluntary termination; 0 if there is none.",
)
VOLUNTARY_ACTIVE: Final = _gauge(
    "voluntary_terminations_active",
    "state",
    help="Terminations that count towards voluntary.maximumAtOnce, manual ones included: the node is "
    "terminating, or its pods are not Ready elsewhere yet.",
)
VOLUNTARY_MAXIMUM: Final = _gauge(
    "voluntary_terminations_maximum",
    help="Limit of those: voluntary.maximumAtOnce of the managed nodes; 0 if this process is not the leader.",
)
UNHEALTHY_NODES: Final = _gauge(
    "unhealthy_nodes",
    "state",
    help="Managed nodes that are unhealthy, tolerated or not, or were so less than five minutes ago.",
)
CIRCUIT_BREAKER_OPEN: Final = _gauge(
    "health_circuit_breaker_open",
    help="1 while more nodes are unhealthy than health.maximumUnhealthy: none is terminated for its health; else 0.",
)
PDB_QUEUES: Final = _gauge(
    "pdb_queues", help="PodDisruptionBudgets with pods waiting for their eviction, over all nodes."
)
PDB_QUEUE_PODS: Final = _gauge(
    "pdb_queue_pods",
    "budgets",
    help="Pods in an active wave that wait for their eviction, by number of budgets that select them.",
)
PDB_QUEUE_DEPTH: Final = _gauge("pdb_queue_depth_max", help="Pods waiting in the longest queue of a budget.")
PDB_QUEUE_OLDEST: Final = _gauge(
    "pdb_queue_oldest_wait_seconds",
    "budgets",
    help="Waiting time of the pod that waits longest for its eviction; 0 if there is none.",
)
PDB_QUEUE_WAIT: Final = _histogram(
    "pdb_queue_wait_seconds",
    "budgets",
    buckets=WAITS,
    help="Time from the start of a pod's wave to its accepted eviction.",
)

# Deadlines.

DELETION_REQUESTS: Final = _counter(
    "pod_deletion_requests_total",
    "code",
    "answer",
    help="Requests to delete a pod for a deadline, retries included, by HTTP status and meaning.",
)
DEADLINE_LATENESS: Final = _histogram(
    "deadline_lateness_seconds",
    buckets=LATENESS,
    help="Delay of deletion requests: from the instant that the deadline demands, or at which it became known, "
    "to the request.",
)
DEADLINE_PODS: Final = _gauge(
    "deadline_pods",
    "state",
    help="Pods scheduled for deletion at a deadline: armed for their instant; overdue without an accepted "
    "request; failing, waiting for a retry.",
)
TIMERS: Final = _gauge("timers", help="Timers armed in the timer wheel.")
TIMERS_SET: Final = _counter(
    "timer_operations_total",
    "operation",
    help="Operations on timers of the wheel.",
)
TIMER_LATENESS: Final = _counter(
    "timer_lateness_seconds_total",
    help="Sum of the delays of fired timers.",
)
TIMER_LATENESS_WORST: Final = _gauge(
    "timer_lateness_seconds_max",
    help="Longest delay of a fired timer since the process became active.",
)

# Protection.

PROTECTED_PODS: Final = _gauge(
    "protected_pods",
    "kind",
    "until",
    help="Protected pods on managed nodes, by annotation, and whether for a time, indefinitely, or indefinitely "
    "because the value is invalid.",
)
PROTECTED_PODS_TERMINATING: Final = _gauge(
    "protected_pods_terminating",
    "kind",
    "until",
    help="Protected pods on nodes that are being terminated.",
)
PROTECTION_REMAINING: Final = _gauge(
    "protection_remaining_seconds_max",
    "kind",
    help="Remaining time of the longest protection with a known end; 0 if there is none.",
)
PROTECTION_HELD: Final = _histogram(
    "protection_held_seconds",
    "kind",
    "ended",
    buckets=(1.0, 10.0, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 3 * DAY),
    help="How long a protected pod blocked the drain of its node, by the end of that: elapsed, annotation "
    "removed, pod left on its own, or deleted for the deadline.",
)

# Provider.

PROVIDER_CALLS: Final = _counter(
    "provider_calls_total",
    "call",
    "outcome",
    help="Calls to the provider, by outcome.",
)
PROVIDER_LATENCY: Final = _histogram(
    "provider_call_duration_seconds",
    "call",
    buckets=ANSWERS,
    help="Duration of calls to the provider.",
)

# Admission.

ADMISSION_REQUESTS: Final = _counter(
    "admission_requests_total",
    "webhook",
    "verdict",
    help="Requests of API servers to the webhooks, by outcome.",
)
ADMISSION_LATENCY: Final = _histogram(
    "admission_request_duration_seconds",
    "webhook",
    buckets=ANSWERS,
    help="Duration of admission requests after the body was read; for node deletions including the writes to budgets.",
)
ADMISSION_STRANGERS: Final = _counter(
    "admission_unknown_paths_total",
    help="Requests on paths that API servers are not sent to: forged, or of an outdated webhook configuration.",
)
ADMISSION_REGISTERED: Final = _gauge(
    "admission_registered",
    help="Whether both webhook configurations are as the settings and the Secret have them.",
)
ADMISSION_CERTIFICATE: Final = _gauge(
    "admission_certificate_expiry_timestamp_seconds",
    help="End of the serving certificate's validity (Unix time); 0 without a certificate.",
)

# API server and caches.

API_REQUESTS: Final = _counter(
    "api_requests_total",
    "verb",
    "resource",
    "outcome",
    help="Requests to the API server, retries included, by outcome.",
)
API_LATENCY: Final = _histogram(
    "api_request_duration_seconds",
    "verb",
    buckets=ANSWERS,
    help="Duration of requests, up to the response or the client's timeout; of a watch, up to its start.",
)
API_RETRIES: Final = _counter("api_retries_total", help="Requests repeated after a transient failure.")
API_THROTTLED: Final = _counter("api_throttled_total", help="Responses of a busy server with a Retry-After.")
API_THROTTLED_SECONDS: Final = _counter(
    "api_throttled_seconds_total", help="Sum of the Retry-After times of busy servers."
)
API_RETRY_AFTER_CAPPED: Final = _counter(
    "api_retry_after_capped_total", help="Responses whose Retry-After exceeded the client's maximum wait."
)
API_DATES_REFUSED: Final = _counter(
    "api_dates_refused_total",
    help="Responses whose Date differed from this machine's clock by more than client.maximumClockOffsetSeconds.",
)
API_CLOCK_OFFSET: Final = _gauge(
    "api_clock_offset_seconds", help="Estimated offset of the API server's clock from this machine's."
)
CLOCK_DISPUTED: Final = _gauge(
    "clock_disputed", help="1 while clocks differ by more than client.maximumClockOffsetSeconds: deadlines are paused."
)
WATCH_LISTS: Final = _counter("watch_lists_total", "resource", help="Complete lists.")
WATCH_STREAMS: Final = _counter(
    "watch_streams_total",
    "resource",
    help="Watches started; the server ends each after five to ten minutes.",
)
WATCH_STALLS: Final = _counter("watch_stalls_total", "resource", help="Watches restarted because no data arrived.")
WATCH_FAILURES: Final = _counter("watch_failures_total", "resource", help="Failed lists and watches, stalls included.")
WATCH_EVENTS: Final = _counter("watch_events_total", "resource", help="Events of watches, bookmarks included.")
WATCH_SILENCE: Final = _gauge(
    "watch_silence_seconds",
    "resource",
    help="Time since the last event of a watch; the server sends bookmarks about once a minute.",
)
CACHED: Final = _gauge("cached_objects", "cache", help="Objects in a cache.")
UNDECODABLE: Final = _gauge("undecodable_objects", "cache", help="Objects on the server that cannot be decoded.")

# Queues and the event loop.

QUEUE_DEPTH: Final = _gauge("queue_depth", "queue", help="Keys waiting for a worker.")
QUEUE_DELAYED: Final = _gauge("queue_delayed", "queue", help="Keys scheduled for a later reconcile.")
QUEUE_PROCESSING: Final = _gauge("queue_processing", "queue", help="Keys being reconciled.")
QUEUE_FAILING: Final = _gauge(
    "queue_failing", "queue", help="Keys that failed in their last reconcile, and are retried with backoff."
)
QUEUE_ADDS: Final = _counter("queue_adds_total", "queue", help="Keys added, duplicates included.")
QUEUE_RETRIES: Final = _counter("queue_retries_total", "queue", help="Failed reconciles.")
QUEUE_LATENCY: Final = _histogram(
    "queue_latency_seconds", "queue", buckets=LATENCY_BOUNDS, help="Time that keys waited for a worker."
)
QUEUE_OLDEST: Final = _gauge(
    "queue_oldest_wait_seconds", "queue", help="Waiting time of the key that waits longest for a worker."
)
QUEUE_WORK: Final = _counter("queue_work_seconds_total", "queue", help="Time spent by workers on reconciles.")
LOOP_LAG: Final = _histogram(
    "loop_lag_seconds",
    buckets=LAG_BOUNDS,
    help="Lag of the event loop, measured twice a second.",
)

# Shutdowns of machines, by the agent.

SHUTDOWN_LOCK: Final = _gauge(
    "shutdown_lock_held",
    help="1 while the agent holds an inhibitor lock of logind and would notice a shutdown, else 0.",
)
SHUTDOWN_DELAY: Final = _gauge(
    "shutdown_delay_seconds",
    "which",
    help="Delay of a shutdown: granted by logind, and wanted by the settings.",
)
SHUTDOWNS: Final = _counter(
    "shutdowns_total",
    "outcome",
    help="Shutdowns of the machine: all pods left in time (finished), some did not (overdue), or the shutdown "
    "was cancelled.",
)
SHUTDOWN_BEGAN: Final = _gauge(
    "shutdown_start_timestamp_seconds", help="Start of the last shutdown of the machine (Unix time); 0 without one."
)
SHUTDOWN_ENDED: Final = _gauge(
    "shutdown_end_timestamp_seconds",
    help="End of the last shutdown's delay, or its cancellation (Unix time); 0 during one, and without one.",
)
SHUTDOWN_PODS: Final = _gauge("shutdown_pods", help="Pods that the shutdown in progress waits for now.")

# Leadership and process.

LEADER: Final = _gauge("leader", help="1 on the leader, 0 on a standby replica.")
DRY_RUN: Final = _gauge("dry_run", help="1 if the controller only observes and writes nothing, else 0.")
LEASE_TERMS: Final = _counter("lease_terms_total", help="Terms of leadership of this process.")
LEASE_RENEWALS: Final = _counter("lease_renewals_total", help="Successful renewals of the lease.")
LEASE_FAILURES: Final = _counter("lease_failures_total", help="Failed requests for the lease.")
FENCED: Final = _counter(
    "fenced_writes_total",
    "how",
    help="Writes stopped after the loss of the lease: not sent (refused), or cancelled (cut).",
)
SETTINGS_REFUSED: Final = _gauge(
    "settings_refused", help="1 while the settings file is invalid and the previous settings apply, else 0."
)
SETTINGS_RESTART_NEEDED: Final = _gauge(
    "settings_restart_needed",
    help="1 while the settings file has changes that need a restart, else 0.",
)
EVENTS_RECORDED: Final = _counter("events_recorded_total", help="Kubernetes Events recorded by components.")
EVENTS: Final = _counter(
    "events_total",
    "outcome",
    help="Kubernetes Events: written, merged into another one, dropped because too many were waiting, or failed.",
)
EVENTS_BACKLOG: Final = _gauge("events_backlog", help="Events waiting to be written.")
HTTP_CONNECTIONS: Final = _gauge("http_connections", "listener", help="Open HTTP connections to this process.")
HTTP_CONNECTIONS_DROPPED: Final = _counter(
    "http_connections_dropped_total",
    "listener",
    "cause",
    help="Connections closed by this process: the client exceeded the deadline of a phase, or there were too many.",
)
TRACE_SPANS: Final = _counter(
    "trace_spans_total",
    "outcome",
    help="Spans: exported, failed to export, or dropped because too many were waiting.",
)
TRACE_BACKLOG: Final = _gauge("trace_spans_waiting", help="Spans waiting for export.")
BUILD_INFO: Final = _gauge(
    "build_info", "version", "python", help="1; the labels are the versions of gracectl and Python."
)

CATALOGUE: Final = tuple(_catalogue)
"""In the order of the exposition."""
