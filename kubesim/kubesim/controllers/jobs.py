"""Jobs: a number of pods that must succeed, some at a time.

Invariant: a pod counts once: its end is in the Job's status with its uid (`uncountedTerminatedPods`) before its
finalizer (batch.kubernetes.io/job-tracking) goes. Left out: indexed completion, success policies.
"""

from __future__ import annotations

import math

from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller, enqueue_own, enqueue_owner
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    condition_of,
    controller_uid,
    is_active,
    is_finished,
    is_ready,
    is_terminating,
    key_of,
    owner_reference,
    phase_of,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import JOBS, PODS, path_of
from kubesim.controllers.podstatus import restarts_of
from kubesim.controllers.replicasets import create_pod, pod_from
from kubesim.controllers.victims import victims
from kubesim.server.api import JsonObject
from kubesim.values import format_time, parse_time

TRACKING = "batch.kubernetes.io/job-tracking"
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 360.0
"""Simulated seconds after the last failure until the next pod is made, doubled with each failure in a row."""

SUSPENDED, LIMIT, DEADLINE = "JobSuspended", "BackoffLimitExceeded", "DeadlineExceeded"
MESSAGES = {
    LIMIT: "Job has reached the specified backoff limit",
    DEADLINE: "Job was active longer than specified deadline",
}


class Jobs(Controller[Key]):
    """Keys: Jobs."""

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, JOBS, PODS)
        self._events = Recorder(informers.api, pace, "job-controller", enabled=events)
        self._jobs = informers.of(JOBS)
        self._pods = informers.of(PODS)
        self._pods.index("controller", lambda pod: (controller_uid(pod),))
        self._failed_at: dict[str, float] = {}
        enqueue_own(self._jobs, self.queue.add)
        enqueue_owner(self._pods, "Job", self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        job = self._jobs.get(*key)
        if job is None:
            return
        pods = self._pods.by("controller", job["metadata"]["uid"])
        if is_terminating(job):
            for pod in pods:
                await self._let_go(pod)
            return
        job = await self._count(job, pods)
        if is_over(job):
            for pod in pods:
                await self._delete(pod)
            await self._forget_in_time(job)
            return
        pods = self._pods.by("controller", job["metadata"]["uid"])
        verdict = self._verdict(job, pods)
        if verdict is not None:
            await self._finish(job, pods, verdict)
        elif job["spec"].get("suspend"):
            await self._suspend(job, pods)
        else:
            await self._keep_up(job, pods)

    # -- counting ------------------------------------------------------------------------------------------------------

    async def _count(self, job: JsonObject, pods: list[JsonObject]) -> JsonObject:
        """Write down which pods have ended, then let them go; returns the Job as it then is."""
        status = job.get("status") or {}
        noted = status.get("uncountedTerminatedPods") or {}
        known = {*noted.get("succeeded", ()), *noted.get("failed", ())}
        ended = [pod for pod in pods if _is_held(pod) and _has_ended(pod)]
        news = [pod for pod in ended if pod["metadata"]["uid"] not in known]
        if job["spec"].get("suspend"):
            # What was ended to suspend the Job counts for nothing.
            news = [pod for pod in news if not is_terminating(pod)]
        good = [pod["metadata"]["uid"] for pod in news if phase_of(pod) == "Succeeded"]
        bad = [pod for pod in news if phase_of(pod) != "Succeeded" and self._action(job, pod) != "Ignore"]
        if any(self._action(job, pod) == "FailJob" for pod in bad):
            self._failed_at[f"{job['metadata']['uid']}/policy"] = 0.0
        if bad:
            self._failed_at[job["metadata"]["uid"]] = self.pace.clock.monotonic()
        if news:
            changes = {
                "succeeded": status.get("succeeded", 0) + len(good),
                "failed": status.get("failed", 0) + len(bad),
                "uncountedTerminatedPods": {"succeeded": good, "failed": [pod["metadata"]["uid"] for pod in news]},
            }
            job = await self._report(job, changes)
        for pod in ended:
            await self._let_go(pod)
        return job

    @staticmethod
    def _action(job: JsonObject, pod: JsonObject) -> str:
        """What the Job's podFailurePolicy makes of a pod that failed: FailJob, Ignore or Count."""
        codes = [
            (each.get("state") or {}).get("terminated", {}).get("exitCode", 0)
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        ]
        for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules") or ():
            by_code = rule.get("onExitCodes")
            if by_code and any(code and (code in by_code["values"]) == (by_code["operator"] == "In") for code in codes):
                return str(rule["action"])
            for wanted in rule.get("onPodConditions") or ():
                found = condition_of(pod, wanted["type"])
                if found is not None and found["status"] == wanted.get("status", "True"):
                    return str(rule["action"])
        return "Count"

    async def _let_go(self, pod: JsonObject) -> None:
        if _is_held(pod):
            left = [each for each in pod["metadata"]["finalizers"] if each != TRACKING]
            patch = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": left or None}}
            path = path_of(PODS, *key_of(pod))
            status, answer = await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404, 409, 422))
            if status == 200 and not is_terminating(answer):
                self._pods.remember(answer)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _verdict(self, job: JsonObject, pods: list[JsonObject]) -> tuple[str, str] | None:
        """(Complete or Failed, the reason); None while it goes on."""
        spec, status = job["spec"], job.get("status") or {}
        limit = spec.get("backoffLimit", 6)
        restarts = sum(restarts_of(pod) for pod in pods if spec["template"]["spec"].get("restartPolicy") == "OnFailure")
        if f"{job['metadata']['uid']}/policy" in self._failed_at:
            return "Failed", "PodFailurePolicy"
        if status.get("failed", 0) > limit or (restarts > 0 and restarts >= limit):
            return "Failed", LIMIT
        if status.get("startTime") and spec.get("activeDeadlineSeconds") is not None and not spec.get("suspend"):
            until = parse_time(status["startTime"]) + self.pace.real(spec["activeDeadlineSeconds"])
            left = until - self.pace.clock.now()
            if left <= 1e-6:
                return "Failed", DEADLINE
            self.queue.add_after(key_of(job), left)
        done, wanted = status.get("succeeded", 0), spec.get("completions")
        if wanted is None:
            return ("Complete", "CompletionsReached") if done and not any(map(is_active, pods)) else None
        return ("Complete", "CompletionsReached") if done >= wanted else None

    async def _finish(self, job: JsonObject, pods: list[JsonObject], verdict: tuple[str, str]) -> None:
        type_, reason = verdict
        now = format_time(self.pace.clock.now())
        message = MESSAGES.get(reason, "Reached expected number of succeeded pods" if type_ == "Complete" else reason)
        words = {"status": "True", "reason": reason, "message": message}
        times = {"lastProbeTime": now, "lastTransitionTime": now}
        first = "SuccessCriteriaMet" if type_ == "Complete" else "FailureTarget"
        conditions = [{"type": first, **words, **times}, {"type": type_, **words, **times}]
        ending = {"completionTime": now} if type_ == "Complete" else {}
        await self._report(job, {"conditions": conditions, **ending, "active": 0, "ready": 0})
        for pod in pods:
            await self._delete(pod)
        if type_ == "Complete":
            await self._events.normal(job, "Completed", "Job completed")
        else:
            await self._events.warn(job, reason, message)

    async def _suspend(self, job: JsonObject, pods: list[JsonObject]) -> None:
        for pod in pods:
            await self._delete(pod)
        now = format_time(self.pace.clock.now())
        words = {"type": "Suspended", "status": "True", "reason": SUSPENDED, "message": "Job suspended"}
        before = condition_of(job, "Suspended")
        if before is None or before["status"] != "True":
            condition = {**words, "lastProbeTime": now, "lastTransitionTime": now}
            await self._report(job, {"startTime": None, "active": 0, "ready": 0, "conditions": [condition]})

    async def _keep_up(self, job: JsonObject, pods: list[JsonObject]) -> None:
        """As many active pods as there should be."""
        spec, status, uid = job["spec"], job.get("status") or {}, job["metadata"]["uid"]
        changes: JsonObject = {}
        if not status.get("startTime"):
            changes["startTime"] = format_time(self.pace.clock.now())
        if condition_of(job, "Suspended") is not None:
            changes["conditions"] = []
        active = [pod for pod in pods if is_active(pod)]
        parallelism, done = spec.get("parallelism", 1), status.get("succeeded", 0)
        completions = spec.get("completions")
        wanted = min(parallelism, max(0, completions - done)) if completions is not None else parallelism
        if completions is None and done:
            wanted = len(active)
        for pod in victims(active, self.pace.clock.now())[: max(0, len(active) - wanted)]:
            await self._delete(pod)
        missing = wanted - len(active)
        left = self._backoff(uid, status.get("failed", 0)) if missing > 0 else 0.0
        if left > 0:
            self.queue.add_after(key_of(job), left)
            missing = 0
        made = [await self._create(job) for _ in range(missing)]
        now_active = len(active) + sum(made) if missing >= 0 else wanted
        if any(not made_one for made_one in made):
            self.after(key_of(job), 1.0)
        changes |= {"active": now_active, "ready": sum(map(is_ready, active)), "uncountedTerminatedPods": {}}
        await self._report(job, changes)

    def _backoff(self, uid: str, failed: int) -> float:
        """Seconds on the clock until a pod may be made again."""
        if uid not in self._failed_at or not failed:
            return 0.0
        pause = min(FIRST_BACKOFF * 2 ** (failed - 1), LONGEST_BACKOFF)
        left = self._failed_at[uid] + self.pace.real(pause) - self.pace.clock.monotonic()
        return left if left > 1e-6 else 0.0

    # -- doing ---------------------------------------------------------------------------------------------------------

    async def _create(self, job: JsonObject) -> bool:
        namespace, name = key_of(job)
        metadata = {
            "generateName": f"{name}-",
            "finalizers": [TRACKING],
            "ownerReferences": [owner_reference("batch/v1", "Job", job)],
        }
        pod = await create_pod(self, namespace, pod_from(job["spec"]["template"], metadata))
        if pod is None:
            return False
        self._pods.remember(pod)
        await self._events.normal(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return True

    async def _delete(self, pod: JsonObject) -> None:
        """End a pod that is still to run; one that has ended stays for its owner to be read."""
        if is_active(pod):
            options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            status, answer = await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))
            if status == 200 and answer.get("kind") == "Pod":
                self._pods.remember(answer)

    async def _forget_in_time(self, job: JsonObject) -> None:
        """Delete a finished Job when its ttlSecondsAfterFinished is over."""
        self._failed_at.pop(job["metadata"]["uid"], None)
        self._failed_at.pop(f"{job['metadata']['uid']}/policy", None)
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        ended = condition_of(job, "Complete") or condition_of(job, "Failed")
        if ttl is None or ended is None:
            return
        left = parse_time(ended["lastTransitionTime"]) + self.pace.real(ttl) - self.pace.clock.now()
        if left > 1e-6:
            self.queue.add_after(key_of(job), left)
            return
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job["metadata"]["uid"]}}
        await self.ask("DELETE", path_of(JOBS, *key_of(job)), options, allow=(404, 409))

    async def _report(self, job: JsonObject, changes: JsonObject) -> JsonObject:
        """Write what has changed of the status; returns the Job as it then is."""
        before = job.get("status") or {}
        news = {key: value for key, value in changes.items() if before.get(key) != value and (value or key in before)}
        if not news:
            return job
        path = path_of(JOBS, *key_of(job), "status")
        status, answer = await self.ask("PATCH", path, {"status": news}, content_type=MERGE, allow=(404,))
        if status != 200:
            return job
        self._jobs.remember(answer)
        found: JsonObject = answer
        return found


def is_over(job: JsonObject) -> bool:
    """Is it Complete or Failed?"""
    found = (condition_of(job, "Complete"), condition_of(job, "Failed"))
    return any(each is not None and each["status"] == "True" for each in found)


def _is_held(pod: JsonObject) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def _has_ended(pod: JsonObject) -> bool:
    """Will it never run again? Also one that its kubelet, or PodGC, has let go of."""
    grace = pod["metadata"].get("deletionGracePeriodSeconds", math.inf)
    return is_finished(pod) or (is_terminating(pod) and grace == 0)
