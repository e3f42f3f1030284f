"""Catalogue of all metrics: name, type, labels, meaning; the tables of docs/metrics.md are made from it (`make chart`).

Dashboards and alerts use these names, and no other module spells one. The values of a label are
bounded: enumerations, never names of objects; for the optional ones see node_labels. Invariant: nothing here counts;
components do, in frozen statistics that are read at each scrape.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, Literal

import msgspec

from gracectl.runtime.histogram import Distribution
from gracectl.runtime.loop_monitor import LAG_BOUNDS
from gracectl.runtime.queue import LATENCY_BOUNDS

MetricType = Literal["gauge", "counter", "histogram"]

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

STEPS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, DAY, 3 * DAY)
WAITS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, DAY)
LATENESS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, MINUTE)
ANSWERS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metric(msgspec.Struct, frozen=True):
    """Entry of the catalogue. `text`: its meaning, in Markdown. `section`: its heading in docs/metrics.md. `buckets`:
    upper bounds of a histogram, ascending, without infinity. `of_nodes`: it also has the labels of `metrics.labels`."""

    name: str
    type: MetricType
    text: str
    labels: tuple[str, ...] = ()
    section: str = ""
    buckets: tuple[float, ...] = ()
    of_nodes: bool = False

    @property
    def help(self) -> str:
        """Meaning of the metric as plain text, for the exposition."""
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.text).replace("`", "")


class Sample(msgspec.Struct, frozen=True):
    """Value of a metric for these label values, the labels of `metrics.labels` last."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


_catalogue: list[Metric] = []
_sections: list[str] = []


def _section(title: str) -> None:
    """Begin a section of docs/metrics.md."""
    _sections.append(title)


def _metric(
    type_: MetricType, series: str, text: str, *, buckets: tuple[float, ...] = (), of_nodes: bool = False
) -> Metric:
    """Add a metric to the catalogue. `series`: its name without `gracectl_`, and its labels: `queue_depth{queue}`."""
    name, _, labels = series.rstrip("}").partition("{")
    names = tuple(labels.split(",")) if labels else ()
    metric = Metric(f"gracectl_{name}", type_, text, names, _sections[-1], buckets, of_nodes)
    _catalogue.append(metric)
    return metric


_gauge = partial(_metric, "gauge")
_counter = partial(_metric, "counter")
_histogram = partial(_metric, "histogram")


_section("Terminations of nodes and claims")
TERMINATIONS: Final = _gauge(
    "terminations{kind,step}",
    "Active terminations and maintenance drains. Many at `instance`: check the provider.",
    of_nodes=True,
)
TERMINATION_OLDEST: Final = _gauge(
    "termination_oldest_seconds{kind}",
    "Age of the oldest active termination, without maintenance. If it grows: `gracectl status`.",
)
NODES_TERMINATED: Final = _counter(
    "nodes_terminated_total{reason,result}",
    "Terminated nodes, by reason (`by hand`, `interruption`, `health`, `rotation`: the label `terminable`, `expiry`) "
    "and result: `drained`; `deadline`, with pods left; `released`, its instance was gone.",
    of_nodes=True,
)
TERMINATION_DURATION: Final = _histogram(
    "termination_duration_seconds{kind}",
    "Duration of completed terminations, from request to end; for maintenance, until the uncordon.",
    buckets=STEPS,
    of_nodes=True,
)
STEP_DURATION: Final = _histogram(
    "termination_step_duration_seconds{kind,step}",
    "Time spent at each step, recorded at the end.",
    buckets=STEPS,
    of_nodes=True,
)
DRAINS_STALLED: Final = _gauge(
    "drains_stalled{kind}",
    "Drains without progress for a minute. `gracectl status NODE` shows what blocks it.",
    of_nodes=True,
)
PODS_LEFT: Final = _gauge(
    "pods_left{state}",
    "Pods that block active terminations: `evict`, `blocked` by budgets, `waiting` for a wave or a neighbour's "
    "`do-not-evict`, `protected`, `replace` (now), `replacing` (its replacement is not Ready), `return` (now, to its "
    "ReplicaSet), `terminating`, `delete` (for the deadline, now).",
)
BLOCKED_PODS: Final = _gauge(
    "blocked_pods{reason}",
    "Pods that cannot be evicted now: `budget`, `unobserved-budget` (for milliseconds), `misconfiguration` (never "
    "resolves), `protection`, `neighbour`, `wave`, `volume`, `returned` (made after the cordon), "
    "`settling-budget` (has just lost its budget), `replacement` (is replaced first), `refused`, `owner` "
    "(another owner of the drain waits), `undecodable`.",
)
PODS_DRAINED: Final = _counter(
    "pods_drained_total{how}",
    "Pods that no longer block a node: `evicted`; `deleted` for a deadline; `left` by themselves or by another "
    "client; `abandoned` at the end of the termination.",
    of_nodes=True,
)
REPLACED_FIRST: Final = _counter(
    "pods_replaced_first_total{result}",
    "Pods that were `released` to be replaced before their eviction, and then `returned` to their "
    "ReplicaSets, or `failed`: returned since the replacement was not Ready in time.",
)

_section("Evictions and budgets")
EVICTION_REQUESTS: Final = _counter(
    "eviction_requests_total{code,answer}",
    "Eviction requests with retries. `429 BudgetExhausted` is rare, `500 MultipleBudgets` means several budgets, "
    "`none` no response.",
)
PDB_QUEUES: Final = _gauge("pdb_queues", "PodDisruptionBudgets with waiting pods.")
PDB_QUEUE_PODS: Final = _gauge(
    "pdb_queue_pods{budgets}", "Waiting pods of active waves, by number of budgets. `several`: cannot be evicted."
)
PDB_QUEUE_DEPTH: Final = _gauge("pdb_queue_depth_max", "Pods in the longest queue: the budget that takes longest.")
PDB_QUEUE_OLDEST: Final = _gauge(
    "pdb_queue_oldest_wait_seconds{budgets}", "Longest current wait of a pod for its eviction."
)
PDB_QUEUE_WAIT: Final = _histogram(
    "pdb_queue_wait_seconds{budgets}", "Time from the start of a pod's wave to its eviction.", buckets=WAITS
)
NODE_BUDGETS: Final = _gauge(
    "node_budgets{state}",
    "NodeDisruptionBudgets: `allowing`, `spent`, `uncounted` (invalid: fix it), `unobserved` (for long: no leader).",
)
NODE_ADMISSIONS: Final = _counter(
    "node_admissions_total{answer}",
    "Decisions on node deletions, of webhook and controller: `free` (no budget applies, or unavailable anyway), "
    "`admitted`, `refused`, `forced` by a deadline, `unknown` node.",
)
NODES_BLOCKED_BY_BUDGET: Final = _gauge(
    "nodes_blocked_by_budget{of}",
    "Terminations that wait for a NodeDisruptionBudget: `voluntary`, `nodeclaim`. For long: `gracectl budgets`.",
)
NODE_DRAIN_NODES: Final = _gauge(
    "node_drain_nodes{state}",
    "Nodes of unfinished [NodeDrains](rotation.md), by their state. `Draining` for long: `gracectl drains`.",
)

_section("Voluntary terminations")
VOLUNTARY_PENDING: Final = _gauge(
    "voluntary_terminations_pending{cause,hold}",
    "Nodes and claims due for an interruption, health, label or age that wait, by first cause (`interrupted`, "
    "`unhealthy`, `terminable`, `expired`) and [hold](deadlines.md#while-it-waits).",
)
VOLUNTARY_PENDING_OLDEST: Final = _gauge(
    "voluntary_terminations_pending_oldest_seconds",
    "Waiting time of the oldest pending voluntary termination that waits for no window and no end of a freeze; "
    "`gracectl status` shows the node.",
)
VOLUNTARY_ACTIVE: Final = _gauge(
    "voluntary_terminations_active{state}",
    "Terminations that count toward `voluntary.maximumAtOnce`. `replacing` for long: pods that cannot be scheduled.",
)
VOLUNTARY_MAXIMUM: Final = _gauge(
    "voluntary_terminations_maximum",
    "Maximum number of active terminations: `voluntary.maximumAtOnce` of the managed nodes; 0 on a standby.",
)
FROZEN: Final = _gauge(
    "frozen", "1 during a [freeze](operations.md#windows-and-freeze): nothing voluntary begins; otherwise 0."
)
UNHEALTHY_NODES: Final = _gauge(
    "unhealthy_nodes{state}",
    "Managed nodes that count for `health.maximumUnhealthy`: `unhealthy`, tolerated or not, and `recovering` for "
    "five minutes.",
)
CIRCUIT_BREAKER_OPEN: Final = _gauge(
    "health_circuit_breaker_open", "1 while too many nodes are unhealthy to terminate any."
)

_section("Interruptions")
INTERRUPTION_NOTICES: Final = _counter(
    "interruption_notices_total{source,kind,outcome}",
    "Notices that a machine will go, by [source](interruptions.md) and outcome: `recorded` on the node, `repeated`, "
    "`unknown` machine, `gone`, `unmanaged`, `ignored`, `refused` (invalid, or from elsewhere: see the log).",
)
INTERRUPTION_SOURCE_UP: Final = _gauge(
    "interruption_source_up{source}", "0 while the source cannot be heard: see the log of the leader."
)

NOTIFICATIONS: Final = _counter(
    "notifications_total{event,result}",
    "[Notifications](notifications.md) by what happened, and `sent`, `failed` or `dropped` (too many at the same "
    "time).",
)

_section("Deadlines")
DELETION_REQUESTS: Final = _counter(
    "pod_deletion_requests_total{code,answer}",
    "Requests to delete a pod for a deadline. Other than `Deleted` and `NotFound`: the Event *DeletionFailed*.",
)
DEADLINE_LATENESS: Final = _histogram(
    "deadline_lateness_seconds",
    "Delay of such requests; each second is one less of grace. Should be below 0.1.",
    buckets=LATENESS,
)
DEADLINE_PODS: Final = _gauge(
    "deadline_pods{state}",
    "Pods with a scheduled deletion: armed, failing, or `overdue` (for seconds: the server does not accept it).",
)
TIMERS: Final = _gauge("timers", "Armed timers.")
TIMERS_SET: Final = _counter("timer_operations_total{operation}", "`armed`, `rearmed`, `cancelled`, `fired`.")
TIMER_LATENESS: Final = _counter("timer_lateness_seconds_total", "Sum of the delays of fired timers; a slot is 10 ms.")
TIMER_LATENESS_WORST: Final = _gauge(
    "timer_lateness_seconds_max", "Longest delay of a fired timer since the process became active."
)

_section("Protection")
PROTECTED_PODS: Final = _gauge(
    "protected_pods{kind,until}",
    "Protected pods on managed nodes: for a time, indefinitely, or `invalid` (a typing error in the annotation).",
)
PROTECTED_PODS_TERMINATING: Final = _gauge(
    "protected_pods_terminating{kind,until}", "Protected pods on nodes that are being terminated."
)
PROTECTION_REMAINING: Final = _gauge(
    "protection_remaining_seconds_max{kind}", "Remaining time of the longest protection with a known end."
)
PROTECTION_HELD: Final = _histogram(
    "protection_held_seconds{kind,ended}",
    "How long a protected pod blocked a drain, by how that ended.",
    buckets=(1.0, 10.0, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 3 * DAY),
)

_section("Provider")
PROVIDER_CALLS: Final = _counter(
    "provider_calls_total{call,outcome}", "Calls by outcome: `gone` is success, `unanswered` a timeout."
)
PROVIDER_LATENCY: Final = _histogram(
    "provider_call_duration_seconds{call}", "Duration of calls to the provider.", buckets=ANSWERS
)

_section("Admission")
ADMISSION_REQUESTS: Final = _counter(
    "admission_requests_total{webhook,verdict}",
    "Requests of API servers. `failed` and `unready` leave the decision to the failure policy: see the log.",
)
ADMISSION_LATENCY: Final = _histogram(
    "admission_request_duration_seconds{webhook}",
    "Duration of admission requests after the body was read; for node deletions with the writes to "
    "budgets. Should be far below `admission.timeoutSeconds`.",
    buckets=ANSWERS,
)
ADMISSION_STRANGERS: Final = _counter(
    "admission_unknown_paths_total",
    "Requests on paths that API servers do not use, answered with 404: forged reviews, or an edited configuration.",
)
ADMISSION_REGISTERED: Final = _gauge(
    "admission_registered",
    "1 while both webhook configurations are as settings and Secret have them. 0: `/readyz?verbose` and the log say "
    "what differs; [register](admission.md#registration).",
)
ADMISSION_CERTIFICATE: Final = _gauge(
    "admission_certificate_expiry_timestamp_seconds",
    "End of the certificate's validity (Unix time). Less than a month ahead, if self-made: no leader, or the "
    "Secret cannot be written.",
)

_section("API server and caches")
API_REQUESTS: Final = _counter(
    "api_requests_total{verb,resource,outcome}", "Requests with retries. `Conflict` and `BudgetExhausted` are normal."
)
API_LATENCY: Final = _histogram(
    "api_request_duration_seconds{verb}",
    "Duration of requests, up to the response or the client's timeout; of a watch, up to its start.",
    buckets=ANSWERS,
)
API_RETRIES: Final = _counter("api_retries_total", "Requests repeated after a transient failure.")
API_THROTTLED: Final = _counter("api_throttled_total", "Responses with a Retry-After.")
API_THROTTLED_SECONDS: Final = _counter("api_throttled_seconds_total", "Sum of the Retry-After times of busy servers.")
API_RETRY_AFTER_CAPPED: Final = _counter(
    "api_retry_after_capped_total",
    "Responses with a Retry-After above the maximum (60 s for the client, 30 s for a request): check proxies in "
    "between.",
)
API_DATES_REFUSED: Final = _counter(
    "api_dates_refused_total",
    "Responses with a Date more than `client.maximumClockOffsetSeconds` off: one of the clocks is wrong.",
)
API_CLOCK_OFFSET: Final = _gauge("api_clock_offset_seconds", "Estimated offset of the API server's clock.")
CLOCK_DISPUTED: Final = _gauge(
    "clock_disputed",
    "1 while clocks [contradict each other](high-availability.md#clocks-that-contradict-each-other): deadlines "
    "are paused.",
)
WATCH_LISTS: Final = _counter(
    "watch_lists_total{resource}", "Complete lists: one at the start, more after a lost history."
)
WATCH_STREAMS: Final = _counter("watch_streams_total{resource}", "Watches started: one in five to ten minutes.")
WATCH_STALLS: Final = _counter(
    "watch_stalls_total{resource}",
    "Watches stopped because no data arrived: a load balancer or firewall that drops connections.",
)
WATCH_FAILURES: Final = _counter(
    "watch_failures_total{resource}", "Failed lists and watches, with stalls: see the log."
)
WATCH_EVENTS: Final = _counter("watch_events_total{resource}", "Events of watches, with bookmarks.")
WATCH_SILENCE: Final = _gauge(
    "watch_silence_seconds{resource}", "Time since the last event. Growing beyond 90: the cache is outdated."
)
CACHED: Final = _gauge("cached_objects{cache}", "Objects in a cache.")
UNDECODABLE: Final = _gauge(
    "undecodable_objects{cache}", "[Objects that cannot be decoded](operations.md#an-object-cannot-be-decoded)."
)

_section("Queues and the event loop")
QUEUE_DEPTH: Final = _gauge("queue_depth{queue}", "Keys waiting for a worker.")
QUEUE_DELAYED: Final = _gauge("queue_delayed{queue}", "Keys scheduled for later.")
QUEUE_PROCESSING: Final = _gauge("queue_processing{queue}", "Keys being reconciled.")
QUEUE_FAILING: Final = _gauge("queue_failing{queue}", "Keys with a failed last reconcile: see the log.")
QUEUE_ADDS: Final = _counter("queue_adds_total{queue}", "Keys added, with duplicates.")
QUEUE_RETRIES: Final = _counter("queue_retries_total{queue}", "Failed reconciles.")
QUEUE_LATENCY: Final = _histogram("queue_latency_seconds{queue}", "Time that keys waited.", buckets=LATENCY_BOUNDS)
QUEUE_OLDEST: Final = _gauge("queue_oldest_wait_seconds{queue}", "Longest current wait. Growing: workers that hang.")
QUEUE_WORK: Final = _counter("queue_work_seconds_total{queue}", "Its rate is the mean number of busy workers.")
LOOP_LAG: Final = _histogram(
    "loop_lag_seconds", "Lag of the event loop: deadlines are late by as much. Mostly a CPU limit.", buckets=LAG_BOUNDS
)

_section("Shutdowns of machines")
SHUTDOWN_LOCK: Final = _gauge(
    "shutdown_lock_held", "1 while it would notice a shutdown. 0 for a minute: logind or the bus cannot be reached."
)
SHUTDOWN_DELAY: Final = _gauge(
    "shutdown_delay_seconds{which}", "`granted` below `wanted`: the Event *ShutdownDelayTooShort* has the remedy."
)
SHUTDOWNS: Final = _counter(
    "shutdowns_total{outcome}",
    "Shutdowns: all pods left in time (finished), some did not (overdue), or cancelled. Restarts at each boot.",
)
SHUTDOWN_BEGAN: Final = _gauge("shutdown_start_timestamp_seconds", "Start of the last shutdown (Unix time).")
SHUTDOWN_ENDED: Final = _gauge("shutdown_end_timestamp_seconds", "Its end or cancellation; 0 during one.")
SHUTDOWN_PODS: Final = _gauge("shutdown_pods", "Pods that the current shutdown waits for.")

_section("Leadership and process")
DRY_RUN: Final = _gauge(
    "dry_run", "1 if the controller only [observes](operations.md#observe-only) and writes nothing; otherwise 0."
)
LEADER: Final = _gauge("leader", "1 on the leader. The sum over all replicas is 1.")
LEASE_TERMS: Final = _counter("lease_terms_total", "Terms of leadership of this process.")
LEASE_RENEWALS: Final = _counter("lease_renewals_total", "Renewals of the lease.")
LEASE_FAILURES: Final = _counter("lease_failures_total", "Failed requests for it: many in a row cost it.")
FENCED: Final = _counter(
    "fenced_writes_total{how}",
    "Writes stopped after a lost lease: not sent (refused), or cancelled (cut). The next leader does them.",
)
SETTINGS_REFUSED: Final = _gauge("settings_refused", "1 while the settings file is invalid: see the log.")
SETTINGS_RESTART_NEEDED: Final = _gauge(
    "settings_restart_needed", "1 while changes of it [need a restart](settings.md#while-it-runs)."
)
EVENTS_RECORDED: Final = _counter("events_recorded_total", "Kubernetes Events recorded.")
EVENTS: Final = _counter(
    "events_total{outcome}",
    "Events written, merged, `dropped` (too many) or `failed`: `kubectl describe` is incomplete.",
)
EVENTS_BACKLOG: Final = _gauge("events_backlog", "Events waiting to be written.")
HTTP_CONNECTIONS: Final = _gauge(
    "http_connections{listener}",
    "Open connections to `metrics`, `probes`, `admission`. Limits: 256 for `admission`, otherwise 64.",
)
HTTP_CONNECTIONS_DROPPED: Final = _counter(
    "http_connections_dropped_total{listener,cause}",
    "Connections closed in the phase `handshake`, `header`, `body` or `writing`, or as `crowded`: see "
    "[NetworkPolicy](security.md#connections).",
)
TRACE_SPANS: Final = _counter("trace_spans_total{outcome}", "Spans exported, failed or dropped.")
TRACE_BACKLOG: Final = _gauge("trace_spans_waiting", "Spans waiting for export.")
BUILD_INFO: Final = _gauge("build_info{version,python}", "1; versions of gracectl and Python.")

CATALOGUE: Final = tuple(_catalogue)
"""In the order of the exposition."""
