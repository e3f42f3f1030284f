"""Deployments of the controller, as `gracectl doctor` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.requests import Key, Selection
from gracectl.kube.resources import Resource
from gracectl.model.untrusted import Decoder

COMPONENT: Final = "app.kubernetes.io/name=gracectl,app.kubernetes.io/component=controller"


class _Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _Container(msgspec.Struct, frozen=True):
    args: tuple[str, ...] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    service_account_name: str | None = None
    containers: tuple[_Container, ...] = ()


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(msgspec.Struct, frozen=True):
    template: _Template = _Template()
    replicas: int | None = None


class _DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    ready_replicas: int | None = None


class Deployment(msgspec.Struct, frozen=True):
    """A Deployment of the controller."""

    metadata: _Meta
    spec: _DeploymentSpec = _DeploymentSpec()
    status: _DeploymentStatus = _DeploymentStatus()

    @property
    def account(self) -> Key:
        """Namespace and name of its service account."""
        return self.metadata.namespace, self.spec.template.spec.service_account_name or "default"

    @property
    def wanted(self) -> int:
        """Number of replicas."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def ready(self) -> int:
        """Replicas that are Ready."""
        return self.status.ready_replicas or 0

    @property
    def readiness(self) -> str:
        """`2 of 2 replicas Ready`."""
        return f"{self.ready} of {self.wanted} replicas Ready"

    @property
    def only_observes(self) -> bool:
        """Whether it runs with --dry-run, and so needs only to read."""
        return any("--dry-run" in (each.args or ()) for each in self.spec.template.spec.containers)


async def visible_deployments(client: KubeClient) -> Sequence[Deployment]:
    """Deployments of controllers; empty without the permission to list them."""
    try:
        return await read_all(client, _DEPLOYMENTS, Selection(labels=COMPONENT))
    except Forbidden:
        return ()


def only_observe(deployments: Sequence[Deployment]) -> bool:
    """Whether all of them run with --dry-run."""
    return bool(deployments) and all(each.only_observes for each in deployments)


_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", Decoder(Deployment).decode)
