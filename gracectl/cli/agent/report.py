"""A rehearsal as a JSON object and as a table; docs/rehearsal.md explains every field.

Seconds of instants count from `at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.agent.rehearsal import (
    Logind,
    RehearsalResult,
    ShutdownWarning,
    is_shortened,
    pod_name,
    rehearsal_warnings,
    unshortened_grace,
)
from gracectl.cli.console import INDENT, Row, Table, indented, marked
from gracectl.cli.format import elapsed
from gracectl.cli.report import Json
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.explain import counted, listed
from gracectl.policy.shutdown import RehearsedPod, RehearsedRange
from gracectl.policy.waves import is_daemon


def rehearsal_report(result: RehearsalResult) -> Json:
    """The report of a rehearsal."""
    inputs, rehearsal = result.inputs, result.rehearsal
    return {
        "cluster": inputs.cluster,
        "at": format_time(inputs.now),
        "node": inputs.node.name,
        "requiredSeconds": result.required,
        "availableSeconds": rehearsal.available,
        "finishedSeconds": rehearsal.over,
        "logind": None if result.logind is None else _logind(result.logind),
        "deadline": _deadline(result),
        "warnings": tuple(map(_caution, rehearsal_warnings(result))),
        "ranges": tuple(_range_report(each, result) for each in rehearsal.ranges),
        "ignored": tuple(_ignored_report(pod, reason) for pod, reason in rehearsal.ignored),
    }


def _logind(logind: Logind) -> Json:
    is_unlimited = logind.delay is not None and math.isinf(logind.delay)
    return {
        "delaySeconds": None if is_unlimited else logind.delay,
        "unlimited": is_unlimited,
        "problem": logind.problem or None,
    }


def _deadline(result: RehearsalResult) -> Json | None:
    at = result.inputs.deadline
    return None if at is None else {"at": format_time(at), "atSeconds": at - result.inputs.now}


def _caution(warning: ShutdownWarning) -> Json:
    kind = warning.kind
    return {"kind": kind.value, "blocking": kind.is_blocking, "message": warning.message, "objects": warning.objects}


def _range_report(each: RehearsedRange, result: RehearsalResult) -> Json:
    return {
        "name": each.wave.name,
        "minimumPriority": result.inputs.order.lowest_priorities[each.number],
        "periodSeconds": each.wave.period,
        "availableSeconds": each.period,
        "beginsSeconds": each.begins,
        "endsSeconds": each.ends,
        "pods": tuple(_pod(pod, result) for pod in each.pods),
    }


def _pod(pod: RehearsedPod, result: RehearsalResult) -> Json:
    """Report of a pod. `deletedSeconds`, `grantedSeconds` null: not deleted; `terminatedSeconds` null: unknown."""
    return {
        "namespace": pod.pod.namespace,
        "name": pod.pod.name,
        "uid": pod.pod.uid,
        "priority": pod.pod.priority or 0,
        "daemonSet": is_daemon(pod.pod),
        "terminating": pod.pod.deletion_timestamp is not None,
        "graceSeconds": unshortened_grace(pod.pod),
        "grantedSeconds": pod.grace,
        "shortened": is_shortened(pod),
        "deletedSeconds": pod.at,
        "terminatedSeconds": pod.ends,
        "inTime": result.is_in_time(pod),
    }


def _ignored_report(pod: Pod, reason: str) -> Json:
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "reason": reason}


HEADERS = ("pod", "priority", "grace", "deleted", "terminated")


def rehearsal_table(result: RehearsalResult) -> RenderableType:
    """All of a rehearsal."""
    return Group(*_parts(result))


def _parts(result: RehearsalResult) -> Iterator[RenderableType]:
    yield Text(_title(result), "bold")
    for fact in _facts(result):
        yield indented(Text(fact))
    for warning in rehearsal_warnings(result):
        yield marked(warning.message, is_blocking=warning.kind.is_blocking)
    yield Text()
    yield _ranges(result)
    if result.rehearsal.ignored:
        yield Text()
        yield from _ignored(result.rehearsal.ignored)
    yield Text()
    pods = sum(len(each.pods) for each in result.rehearsal.ranges)
    if not pods:
        yield Text("Finished immediately: there is no pod to wait for.")
        return
    yield Text(f"Finished after {elapsed(result.rehearsal.over)} at the latest, for {counted(pods, 'pod')}.")
    yield Text(_assumptions(result), "dim")


def _title(result: RehearsalResult) -> str:
    ranges, available = counted(len(result.rehearsal.ranges), "range"), result.rehearsal.available
    seconds = f"{available:g} s ({elapsed(available)})"
    return f"{result.inputs.node.name}: a shutdown waits up to {seconds} for its pods, in {ranges}"


def _facts(result: RehearsalResult) -> Iterator[str]:
    inputs = result.inputs
    yield f"as if it began now (0:00), {format_time(inputs.now)} by the server's clock; nothing is changed"
    if result.logind is not None:
        yield from _logind_facts(result.logind, result.required)
    if inputs.deadline is not None:
        left = inputs.deadline - inputs.now
        when = f"in {elapsed(left)}" if left > 0 else "now"
        yield f"the node is being terminated; deadline: {when} ({format_time(inputs.deadline)})"


def _logind_facts(logind: Logind, required: float) -> Iterator[str]:
    if logind.delay is None:
        return
    if math.isinf(logind.delay):
        yield "logind: inhibit delay unlimited"
    else:
        raised = f"; a running agent raises it to {required:g} s if permitted" if logind.delay < required else ""
        yield f"logind: inhibit delay {logind.delay:g} s now{raised}"


def _ranges(result: RehearsalResult) -> Table:
    rows: list[Row] = []
    for each in result.rehearsal.ranges:
        rows.append(Row(notes=[_range(each)]))
        rows += [_row(pod, result) for pod in each.pods]
    return Table(HEADERS, rows, frozenset(HEADERS[1:]), indent=INDENT)


def _range(found: RehearsedRange) -> Text:
    name = f"{found.wave.name}: {found.period:g} s, "
    if not found.pods:
        return Text(f"{name}skipped: no pods", "dim cyan")
    if found.begins is None or found.ends is None:
        return Text(f"{name}skipped: no time is left", "bold red")
    return Text(f"{name}from {elapsed(found.begins)} to {elapsed(found.ends)}", "bold cyan")


def _row(pod: RehearsedPod, result: RehearsalResult) -> Row:
    is_in_time = result.is_in_time(pod)
    terminated = elapsed(pod.ends) if is_in_time and pod.ends is not None else "too late"
    return Row(
        (
            pod_name(pod),
            str(pod.pod.priority or 0),
            _grace(pod),
            _deleted(pod),
            Text(terminated, "" if is_in_time else "red"),
        )
    )


def _grace(pod: RehearsedPod) -> Text:
    """Granted grace; if the shutdown shortens it, also the full grace."""
    whole = unshortened_grace(pod.pod)
    if pod.grace is not None:
        return Text(f"{pod.grace}/{whole}s", "yellow") if is_shortened(pod) else Text(f"{pod.grace}s")
    if pod.pod.deletion_timestamp is not None:
        return Text(f"{whole}s", "dim")
    return Text(f"0/{whole}s", "red")


def _deleted(pod: RehearsedPod) -> Text:
    if pod.at is not None:
        return Text(elapsed(pod.at))
    return Text("never", "red") if pod.pod.deletion_timestamp is None else Text("already", "dim")


def _ignored(ignored: Sequence[tuple[Pod, str]]) -> Iterator[RenderableType]:
    by_reason: dict[str, list[str]] = {}
    for pod, reason in ignored:
        by_reason.setdefault(reason, []).append("/".join(pod.key))
    for reason, pods in by_reason.items():
        yield indented(Text(f"ignored: {listed(pods)} ({reason})", "dim"))


def _assumptions(result: RehearsalResult) -> str:
    limit = ""
    if result.rehearsal.over < result.rehearsal.available:
        limit = f" The machine goes down after {elapsed(result.rehearsal.available)} in any case."
    return (
        "An upper bound: every pod is assumed to use all its grace, and no new pod to start. A range "
        f"begins when the last pod of the one before it is terminated.{limit}"
    )
