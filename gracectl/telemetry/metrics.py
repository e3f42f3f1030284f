"""Every metric that gracectl shows, once: name, type, labels, help text.

Dashboards and alerts are made of these names, so a test pins them, and no other module spells one. What a label can
say is bounded by what its samples are made from (enumerations, never names of objects). Invariant: nothing here counts;
the parts do, and say how much in their frozen statistics, which are read when somebody asks.
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
    """One entry of the catalogue. `buckets`: of a histogram, their upper bounds in growing order, without infinity."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """What a metric says now for these values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


_catalogue: list[Metric] = []


def _gauge(name: str, *labels: str, help: str) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "gauge", help, labels))


def _counter(name: str, *labels: str, help: str) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "counter", help, labels))


def _histogram(name: str, *labels: str, buckets: tuple[float, ...], help: str) -> Metric:
    return _entered(Metric(f"gracectl_{name}", "histogram", help, labels, buckets))


def _entered(metric: Metric) -> Metric:
    _catalogue.append(metric)
    return metric


# Ends of nodes and claims.

TERMINATIONS: Final = _gauge(
    "terminations",
    "kind",
    "step",
    help="Ends of nodes and claims, and drains of nodes that are kept, that are under way, by the step at which they "
    "stand.",
)
TERMINATION_OLDEST: Final = _gauge(
    "termination_oldest_seconds",
    "kind",
    help="How long ago that which is under way longest was asked for; 0 if there is none. A kept node that is drained "
    "is not under way.",
)
TERMINATION_DURATION: Final = _histogram(
    "termination_duration_seconds",
    "kind",
    buckets=STEPS,
    help="From the instant at which the end was asked for until it was over; of a kept node, until it was given back.",
)
STEP_DURATION: Final = _histogram(
    "termination_step_duration_seconds",
    "kind",
    "step",
    buckets=STEPS,
    help="How long an end has stood at this step, noted when all of it is over.",
)
DRAINS_STANDING_STILL: Final = _gauge(
    "drains_standing_still",
    "kind",
    help="Drains in which for a minute nobody has left, or was on the way, although pods are left.",
)
PODS_LEFT: Final = _gauge(
    "pods_left",
    "state",
    help="Pods that hold nodes that are under way, by what their last plan says of them.",
)
BLOCKED_PODS: Final = _gauge(
    "blocked_pods",
    "reason",
    help="Those of the pods left that cannot be asked to leave now, by what keeps them.",
)
PODS_DRAINED: Final = _counter(
    "pods_drained_total",
    "how",
    help="Pods that have held a node and do so no longer: evicted, deleted for the deadline, left without our doing, "
    "or abandoned when the end of their node was over.",
)

# Evictions.

EVICTION_REQUESTS: Final = _counter(
    "eviction_requests_total",
    "code",
    "answer",
    help="Requests to evict a pod, repeats among them, by HTTP status and by what it means.",
)
NODE_BUDGETS: Final = _gauge(
    "node_budgets",
    "state",
    help="NodeDisruptionBudgets, by whether they allow a node to end now, and why not.",
)
NODE_ADMISSIONS: Final = _counter(
    "node_admissions_total",
    "answer",
    help="Questions whether a node may end, of the webhook and of the controller itself, by the answer.",
)
NODES_BLOCKED_BY_BUDGET: Final = _gauge(
    "nodes_blocked_by_budget",
    "of",
    help="Ends that wait until a NodeDisruptionBudget allows them: of nodes and claims that are to end by themselves, "
    "and of claims that somebody has deleted.",
)
VOLUNTARY_PENDING: Final = _gauge(
    "voluntary_terminations_pending",
    "reason",
    help="Nodes and claims that are due for their health, label or age and wait, by what they wait for.",
)
VOLUNTARY_PENDING_OLDEST: Final = _gauge(
    "voluntary_terminations_pending_oldest_seconds",
    help="How long the one of them that waits longest has waited; 0 if none does.",
)
VOLUNTARY_PLACES: Final = _gauge(
    "voluntary_places",
    "state",
    help="Terminations that count towards voluntary.maximumAtOnce, those asked for by hand included: the node is "
    "ending, or its pods are not Ready elsewhere yet.",
)
VOLUNTARY_MAXIMUM: Final = _gauge(
    "voluntary_places_maximum",
    help="How many such places there are: voluntary.maximumAtOnce of the managed nodes; 0 where this process does not "
    "lead.",
)
PDB_QUEUES: Final = _gauge(
    "pdb_queues", help="PodDisruptionBudgets under which pods wait to be evicted, over all nodes."
)
PDB_QUEUE_PODS: Final = _gauge(
    "pdb_queue_pods",
    "budgets",
    help="Pods whose turn has come and that wait for their eviction, by how many budgets select them.",
)
PDB_QUEUE_DEPTH: Final = _gauge("pdb_queue_depth_max", help="Pods that wait under the budget under which most wait.")
PDB_QUEUE_OLDEST: Final = _gauge(
    "pdb_queue_oldest_wait_seconds",
    "budgets",
    help="How long the pod that waits longest for its eviction has waited; 0 if none does.",
)
PDB_QUEUE_WAIT: Final = _histogram(
    "pdb_queue_wait_seconds",
    "budgets",
    buckets=WAITS,
    help="From the instant at which a pod's turn had come until the server agreed to its eviction.",
)

# Deadlines.

DELETION_REQUESTS: Final = _counter(
    "pod_deletion_requests_total",
    "code",
    "answer",
    help="Requests to delete a pod for a deadline, repeats among them, by HTTP status and by what it means.",
)
DEADLINE_LATENESS: Final = _histogram(
    "deadline_lateness_seconds",
    buckets=LATENESS,
    help="From the instant at which a pod had to be deleted for a deadline, or that became known, until the server was "
    "asked.",
)
DEADLINE_PODS: Final = _gauge(
    "deadline_pods",
    "state",
    help="Pods that are deleted for a deadline unless they leave before: armed for their instant; overdue, with no "
    "consent of the server yet; failing, which wait for another try.",
)
TIMERS: Final = _gauge("timers", help="Instants that are armed in the timer wheel.")
TIMERS_SET: Final = _counter(
    "timer_operations_total",
    "operation",
    help="What has been done to the timers of the wheel.",
)
TIMER_LATENESS: Final = _counter(
    "timer_lateness_seconds_total",
    help="Seconds from the instant of a timer to its firing, over all that have fired.",
)
TIMER_LATENESS_WORST: Final = _gauge(
    "timer_lateness_seconds_max",
    help="The same of the one that was latest since the process began to act.",
)

# Protection.

PROTECTED_PODS: Final = _gauge(
    "protected_pods",
    "kind",
    "until",
    help="Pods on managed nodes that are protected now: by what, and whether for a time, for ever, or for ever because "
    "nobody understands the value.",
)
PROTECTED_PODS_TERMINATING: Final = _gauge(
    "protected_pods_terminating",
    "kind",
    "until",
    help="Those of the protected pods whose node is being terminated.",
)
PROTECTION_REMAINING: Final = _gauge(
    "protection_remaining_seconds_max",
    "kind",
    help="How long the longest protection that has a known end still lasts; 0 if there is none.",
)
PROTECTION_HELD: Final = _histogram(
    "protection_held_seconds",
    "kind",
    "ended",
    buckets=(1.0, 10.0, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 3 * DAY),
    help="How long a protected pod has held the drain of its node, and why that ended: its time elapsed, it was "
    "lifted, the pod left by itself, or was deleted for the node's deadline.",
)

# The provider.

PROVIDER_CALLS: Final = _counter(
    "provider_calls_total",
    "call",
    "outcome",
    help="What the provider was asked, and what came of it.",
)
PROVIDER_LATENCY: Final = _histogram(
    "provider_call_duration_seconds",
    "call",
    buckets=ANSWERS,
    help="How long the provider has taken to answer.",
)

# Admission.

ADMISSION_REQUESTS: Final = _counter(
    "admission_requests_total",
    "webhook",
    "verdict",
    help="What API servers have asked our webhooks, by what came of it.",
)
ADMISSION_LATENCY: Final = _histogram(
    "admission_request_duration_seconds",
    "webhook",
    buckets=ANSWERS,
    help="From a question, read whole, to its answer; for a node that counts, with the writing of its budgets.",
)
ADMISSION_CERTIFICATE: Final = _gauge(
    "admission_certificate_expiry_timestamp_seconds",
    help="Until when the certificate is good that is shown to API servers (Unix time); 0 while there is none.",
)

# The API server, and what is known of the cluster.

API_REQUESTS: Final = _counter(
    "api_requests_total",
    "verb",
    "resource",
    "outcome",
    help="Requests to the API server, repeats among them, by what came of them.",
)
API_LATENCY: Final = _histogram(
    "api_request_duration_seconds",
    "verb",
    buckets=ANSWERS,
    help="From sending a request to its answer, or to the end of our patience; of a watch, to its beginning.",
)
API_RETRIES: Final = _counter("api_retries_total", help="Requests that were repeated after a passing failure.")
API_THROTTLED: Final = _counter("api_throttled_total", help="Answers by which a busy server asked for patience.")
API_THROTTLED_SECONDS: Final = _counter(
    "api_throttled_seconds_total", help="The patience that busy servers have asked for, all together."
)
API_PATIENCE_CUT: Final = _counter(
    "api_patience_cut_total", help="Answers whose Retry-After was cut to what the client waits at most."
)
API_DATES_REFUSED: Final = _counter(
    "api_dates_refused_total",
    help="Answers whose Date was further from this machine's clock than client.maximumClockOffsetSeconds.",
)
API_CLOCK_OFFSET: Final = _gauge(
    "api_clock_offset_seconds", help="How far the API server's clock is ahead of this machine's, as it is believed."
)
WATCH_LISTS: Final = _counter("watch_lists_total", "resource", help="Complete lists that were taken over.")
WATCH_STREAMS: Final = _counter(
    "watch_streams_total",
    "resource",
    help="Watches that have begun; each is ended by the server after five to ten minutes.",
)
WATCH_STALLS: Final = _counter(
    "watch_stalls_total", "resource", help="Watches that were given up as they said nothing any more."
)
WATCH_FAILURES: Final = _counter(
    "watch_failures_total", "resource", help="Lists and watches that have failed, stalls among them."
)
WATCH_EVENTS: Final = _counter("watch_events_total", "resource", help="Lines of watches, bookmarks among them.")
WATCH_SILENCE: Final = _gauge(
    "watch_silence_seconds",
    "resource",
    help="How long ago the server last said something of this resource; bookmarks come about once a minute.",
)
CACHED: Final = _gauge("cached_objects", "cache", help="Objects of which the process knows.")
UNDECODABLE: Final = _gauge(
    "undecodable_objects", "cache", help="Objects that the server has and that cannot be decoded."
)

# Queues and the event loop.

QUEUE_DEPTH: Final = _gauge("queue_depth", "queue", help="Keys that wait for a worker.")
QUEUE_DELAYED: Final = _gauge("queue_delayed", "queue", help="Keys that are to be looked at again at some instant.")
QUEUE_PROCESSING: Final = _gauge("queue_processing", "queue", help="Keys on which a worker works.")
QUEUE_FAILING: Final = _gauge("queue_failing", "queue", help="Keys whose last look has failed; they are tried again.")
QUEUE_ADDS: Final = _counter("queue_adds_total", "queue", help="Keys that were added, duplicates among them.")
QUEUE_RETRIES: Final = _counter("queue_retries_total", "queue", help="Looks at a key that have failed.")
QUEUE_LATENCY: Final = _histogram(
    "queue_latency_seconds", "queue", buckets=LATENCY_BOUNDS, help="How long keys have waited for a worker."
)
QUEUE_OLDEST: Final = _gauge(
    "queue_oldest_wait_seconds", "queue", help="How long the key that waits longest for a worker has waited."
)
QUEUE_WORK: Final = _counter("queue_work_seconds_total", "queue", help="The time that workers have taken for keys.")
LOOP_LAG: Final = _histogram(
    "loop_lag_seconds",
    buckets=LAG_BOUNDS,
    help="How much later than it should a task has its turn on the event loop; looked at twice a second.",
)

# The machine of a node: what its agent knows.

SHUTDOWN_LOCK: Final = _gauge(
    "shutdown_lock_held",
    help="1 while a shutdown of the machine would be heard of, and would wait for its pods; else 0.",
)
SHUTDOWN_DELAY: Final = _gauge(
    "shutdown_delay_seconds",
    "which",
    help="How long it would wait: what logind has granted, and what the settings want.",
)
SHUTDOWNS: Final = _counter(
    "shutdowns_total",
    "outcome",
    help="Shutdowns of the machine: all pods left (finished), some did not in time (overdue), called off (cancelled).",
)
SHUTDOWN_BEGAN: Final = _gauge(
    "shutdown_start_timestamp_seconds", help="When the last shutdown of the machine began, in Unix time; 0: none has."
)
SHUTDOWN_ENDED: Final = _gauge(
    "shutdown_end_timestamp_seconds", help="When the machine was let go, or it was called off; 0: still held, or never."
)
SHUTDOWN_PODS: Final = _gauge("shutdown_pods", help="Pods that the shutdown which is under way waits for now.")

# The process, and what it tells.

LEADER: Final = _gauge("leader", help="1 while this process acts, 0 while it stands by.")
LEASE_TERMS: Final = _counter("lease_terms_total", help="How often this process has begun to lead.")
LEASE_RENEWALS: Final = _counter("lease_renewals_total", help="Renewals of the lease that have succeeded.")
LEASE_FAILURES: Final = _counter("lease_failures_total", help="Requests for the lease that have failed.")
FENCED: Final = _counter(
    "fenced_writes_total",
    "how",
    help="Writes that a process which leads no more has not begun (refused), or has not brought to their end (cut).",
)
SETTINGS_REFUSED: Final = _gauge(
    "settings_refused", help="1 while the settings file cannot be used, and those from before still count; else 0."
)
SETTINGS_RESTART_NEEDED: Final = _gauge(
    "settings_restart_needed",
    help="1 while the settings file says something else than this process runs with, which counts from its next start.",
)
EVENTS_RECORDED: Final = _counter("events_recorded_total", help="Kubernetes Events that parts wanted written.")
EVENTS: Final = _counter(
    "events_total",
    "outcome",
    help="What became of them: written, merged into another one, dropped as too many were waiting, or failed.",
)
EVENTS_BACKLOG: Final = _gauge("events_backlog", help="Events that wait to be written.")
HTTP_CONNECTIONS: Final = _gauge("http_connections", "listener", help="Open HTTP connections to this process.")
HTTP_CONNECTIONS_DROPPED: Final = _counter(
    "http_connections_dropped_total",
    "listener",
    "cause",
    help="Connections that were closed from our side: the client took too long for a phase, or there were too many.",
)
TRACE_SPANS: Final = _counter(
    "trace_spans_total",
    "outcome",
    help="Spans of traces: exported; lost as the collector did not take them; or as too many were waiting.",
)
TRACE_BACKLOG: Final = _gauge("trace_spans_waiting", help="Spans that wait to be exported.")
BUILD_INFO: Final = _gauge("build_info", "version", "python", help="1; the labels say what runs.")

CATALOGUE: Final = tuple(_catalogue)
"""In the order in which they are shown."""
