"""The JSON object of a rehearsal; docs/rehearsal.md explains every field. Seconds of instants count from `at`."""

from __future__ import annotations

import math

from gracectl.cli.agent.rehearsal import Logind, RehearsalResult, is_shortened, unshortened_grace
from gracectl.cli.agent.warnings import ShutdownWarning, rehearsal_warnings
from gracectl.cli.report import Json
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
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
        "ranges": tuple(_range(each, result) for each in rehearsal.ranges),
        "ignored": tuple(_ignored(pod, reason) for pod, reason in rehearsal.ignored),
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


def _range(each: RehearsedRange, result: RehearsalResult) -> Json:
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


def _ignored(pod: Pod, reason: str) -> Json:
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "reason": reason}
