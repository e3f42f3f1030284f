"""Addresses of webhooks behind Services: a simulated cluster has no service network.

Uses the Service's Endpoints or EndpointSlices, as a real server with aggregator routing does; else the Service's
annotation `kubesim/url`; else the call fails as on a real server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kubesim.admission.webhooks import Service
from kubesim.server.api import JsonObject
from kubesim.server.store import Store

ANNOTATION: Final = "kubesim/url"
SLICE_OF: Final = "kubernetes.io/service-name"
HTTPS_PORT: Final = 443


class Address(NamedTuple):
    """Where to connect to."""

    host: str
    port: int


class NoAddress(Exception):
    """The address of a Service is unknown; the text says why, as kube-apiserver does."""


class Services:
    """Resolves Services from what the store holds."""

    def __init__(self, store: Store) -> None:
        self._services = store.table("services")
        self._endpoints = store.table("endpoints")
        self._slices = store.table("endpointslices.discovery.k8s.io")

    def address(self, wanted: Service) -> Address:
        """An address behind a Service. Raises NoAddress."""
        service = self._services.get(wanted.namespace, wanted.name)
        if service is None:
            raise NoAddress(f'service "{wanted.name}" not found')
        spec: JsonObject = service.get("spec") or {}
        kind = spec.get("type") or "ClusterIP"
        if kind == "ExternalName":
            raise NoAddress(f'unsupported service type "{kind}"')
        port = next((each for each in spec.get("ports") or () if each.get("port") == wanted.port), None)
        if port is None:
            raise NoAddress(f'no service port {wanted.port} found for service "{wanted.name}"')
        found = next(self._behind(wanted, port.get("name") or ""), None) or annotated(service)
        if found is not None:
            return found
        if self._endpoints.get(wanted.namespace, wanted.name) is None:
            raise NoAddress(f'endpoints "{wanted.name}" not found')
        raise NoAddress(f'no endpoints available for service "{wanted.name}"')

    def _behind(self, service: Service, port: str) -> Iterator[Address]:
        """The addresses that endpoints name for a port of the Service."""
        endpoints = self._endpoints.get(service.namespace, service.name) or {}
        for subset in endpoints.get("subsets") or ():
            numbers = [each["port"] for each in subset.get("ports") or () if (each.get("name") or "") == port]
            for number in numbers:
                yield from (Address(each["ip"], number) for each in subset.get("addresses") or ())
        for slice_ in self._slices.in_namespace(service.namespace).values():
            if (slice_["metadata"].get("labels") or {}).get(SLICE_OF) == service.name:
                yield from _in_slice(slice_, port)


def _in_slice(slice_: JsonObject, port: str) -> Iterator[Address]:
    numbers = [each["port"] for each in slice_.get("ports") or () if (each.get("name") or "") == port]
    for endpoint in slice_.get("endpoints") or ():
        # Unknown readiness counts as ready.
        if (endpoint.get("conditions") or {}).get("ready") is not False:
            for number in numbers:
                yield from (Address(host, number) for host in endpoint.get("addresses") or ())


def annotated(service: JsonObject) -> Address | None:
    """The address in a Service's annotation, or None."""
    text = (service["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    url = urlsplit(text if "//" in text else f"//{text}")
    return Address(url.hostname, url.port or HTTPS_PORT) if url.hostname else None
