"""Support of tests about protection: days that pass quickly, pods that are created in a known second, Events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
from kubesim.controllers.client import MERGE
from kubesim.server import watch
from kubesim.server.api import JsonObject

from gracectl.config import Settings
from gracectl.controllers.cluster import informers
from gracectl.controllers.settings import TerminationSettings
from gracectl.kube.cache.reflector import ReflectorSettings
from gracectl.model import names
from support.deadlines import START, until
from support.stage import NAMESPACE, SILENT, Stage, a_pod_manifest, staged

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

FEW = frozenset({"kubelet", "disruption", "scheduler", "jobs", "deployments", "replicasets"})
"""The parts of the world that stories of days need; each has watches that are heard of every minute."""


class Patient(Settings, frozen=True, kw_only=True):
    """Settings without status updates: a drain is looked at when there is a reason only."""

    @property
    def termination(self) -> TerminationSettings:
        return msgspec.structs.replace(super().termination, status_interval_seconds=1e9)


def patiently(**fields: Any) -> Settings:
    """Settings as a file would have them, for stories that take days."""
    return msgspec.convert({"leaderElection": {"enabled": False}, **fields}, Patient)


@asynccontextmanager
async def lasting(*nodes: str, settings: Settings | None = None, **options: Any) -> AsyncIterator[Stage]:
    """A stage for stories that take days: kubelets are heard of when their pods do something, watches last for a day
    without bookmarks, and Events are kept."""
    rare = {"parts": FEW, "kubelet": SILENT, "node_grace_seconds": 1e7, "event_seconds": 1e7}
    quiet = partial(ReflectorSettings, stall=1e9, watch_minimum=86_400, watch_maximum=90_000)
    with (
        patch.object(informers, "ReflectorSettings", quiet),
        patch.object(watch, "BOOKMARK_SECONDS", 1e9),
    ):
        async with staged(*nodes, settings=settings or patiently(), **{**rare, **options}) as stage:
            yield stage


def protected(name: str, value: str | None, node: str = "n1", **more: Any) -> JsonObject:
    """A pod with this do-not-disrupt; None: without."""
    annotations = {} if value is None else {names.DO_NOT_DISRUPT: value}
    return a_pod_manifest(name, node, annotations={**annotations, **more.pop("annotations", {})}, **more)


async def made_at_start(stage: Stage, *manifests: JsonObject) -> None:
    """Make these in the second in which stories delete their nodes, from which their protection counts."""
    await until(stage, 0.0)
    await stage.create(*manifests)
    assert stage.clock.monotonic() == START


async def edit(stage: Stage, pod: str, value: str | None, key: str = names.DO_NOT_DISRUPT) -> None:
    """What its owner does: another value of the annotation, or none."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
    await stage.call("PATCH", path, {"metadata": {"annotations": {key: value}}}, MERGE)
