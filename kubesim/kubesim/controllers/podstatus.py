"""What a kubelet reports of a pod: pure, from the pod and the instants of its life to a patch of its status."""

from __future__ import annotations

from kubesim.controllers.objects import condition_of
from kubesim.server.api import JsonObject
from kubesim.values import format_time


def running(pod: JsonObject, *, accepted: float, ip: str, ready: bool, now: float) -> JsonObject:
    """All containers run since `now`; `accepted` becomes the startTime. Instants are seconds since the epoch."""
    state = {"running": {"startedAt": format_time(now)}}
    return {
        "phase": "Running",
        "startTime": (pod.get("status") or {}).get("startTime") or format_time(accepted),
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": _conditions(pod, ready=ready, now=now, reason="ContainersNotReady"),
        "containerStatuses": _containers(pod, state, ready=ready),
    }


def readiness(pod: JsonObject, *, ready: bool, now: float) -> JsonObject:
    """The containers still run, and their readiness changed."""
    statuses = [{**container, "ready": ready} for container in (pod.get("status") or {}).get("containerStatuses") or ()]
    return {
        "conditions": _conditions(pod, ready=ready, now=now, reason="ContainersNotReady"),
        **({"containerStatuses": statuses} if statuses else {}),
    }


def restarts_of(pod: JsonObject) -> int:
    """How often its containers have been started again."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((each.get("restartCount", 0) for each in statuses), default=0)


def is_running(pod: JsonObject) -> bool:
    """Did an earlier kubelet leave its containers running?"""
    status = pod.get("status") or {}
    waits = any("waiting" in (each.get("state") or {}) for each in status.get("containerStatuses") or ())
    return status.get("phase") == "Running" and not waits


def crashed(pod: JsonObject, *, restarts: int, exit_code: int, now: float) -> JsonObject:
    """The containers exited and wait to be started again."""
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
    reason = "Error" if exit_code else "Completed"
    last = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": format_time(now)}}
    return {
        "conditions": _conditions(pod, ready=False, now=now, reason="ContainersNotReady"),
        "containerStatuses": [
            {**container, "lastState": last, "restartCount": restarts}
            for container in _containers(pod, state, ready=False)
        ],
    }


def ended(pod: JsonObject, *, phase: str, exit_code: int, now: float) -> JsonObject:
    """The containers have exited for good. Since 1.27 the phase is final before the kubelet deletes the pod."""
    reason = "Completed" if exit_code == 0 else "Error"
    state = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": format_time(now)}}
    why = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    return {
        "phase": phase,
        "conditions": _conditions(pod, ready=False, now=now, reason=why),
        "containerStatuses": _containers(pod, state, ready=False),
    }


def _conditions(pod: JsonObject, *, ready: bool, now: float, reason: str) -> list[JsonObject]:
    wanted: list[tuple[str, bool]] = [
        ("PodScheduled", True),
        ("Initialized", True),
        ("ContainersReady", ready),
        ("Ready", ready),
    ]
    conditions = []
    for type_, value in wanted:
        status = "True" if value else "False"
        before = condition_of(pod, type_)
        changed = before is None or before["status"] != status
        conditions.append(
            {
                "type": type_,
                "status": status,
                "reason": None if value else reason,
                "message": None if value else "containers are not ready",
                "lastProbeTime": None,
                "lastTransitionTime": format_time(now)
                if changed or before is None
                else before.get("lastTransitionTime"),
            }
        )
    return conditions


def _containers(pod: JsonObject, state: JsonObject, *, ready: bool) -> list[JsonObject]:
    uid = pod["metadata"]["uid"]
    before = {c["name"]: c for c in (pod.get("status") or {}).get("containerStatuses") or ()}
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": f"kubesim/{container.get('image', '')}",
            "containerID": f"sim://{uid}/{container['name']}",
            "ready": ready,
            "started": "running" in state,
            "restartCount": before.get(container["name"], {}).get("restartCount", 0),
            "state": state,
            "lastState": before.get(container["name"], {}).get("lastState") or {},
        }
        for container in pod["spec"].get("containers") or ()
    ]
