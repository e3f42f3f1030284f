"""`gracectl webhooks`: the webhook configurations, which the controller has no right to write."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from gracectl.admission.registration import is_complete, register, wanted
from gracectl.admission.rotation import CertificateSecret, CertificateState
from gracectl.admission.settings import AdmissionSettings
from gracectl.cli.failures import MISUSED, REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected, namespace_option, wait_option
from gracectl.cli.output import echo
from gracectl.cli.report import structured
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.requests import Key

POLL_SECONDS: Final = 2.0


class AdmissionOff(Exception):
    """There are no webhooks; the message says why."""


class NoSecret(Exception):
    """No controller has written the Secret; the message names it."""


@click.command()
@click.option("--apply", "applies", is_flag=True, help="Write them to the cluster; default: print them as YAML.")
@wait_option("Maximum wait for the Secret of the controller: 2m, 90s, or seconds.")
@namespace_option("Namespace of gracectl; default: that of its Service, or of the ConfigMap with the settings.")
@settings_options
def webhooks(target: ClusterTarget, wait: float, namespace: str, *, applies: bool) -> None:
    """Print the webhook configurations, or write them to the cluster.

    The two objects tell API servers how to call gracectl: the address, the certificate authority and a secret path. The
    controller stores authority and path in its Secret. It has no permission to write webhook configurations, which
    would make it cluster-admin in effect; the chart runs this command in a hook instead. Keep the output out of logs
    and repositories: a client that knows the path can charge node disruption budgets. docs/admission.md explains it.

    Exit code 0: done; 2 also if admission is off; 3 also if no controller has written the Secret.
    """
    with reporting_errors({AdmissionOff: MISUSED, NoSecret: REFUSED}):
        source = SettingsSource(target)
        with interruptible():
            run_async(lambda: _webhooks(target, source, wait, namespace, applies=applies))


async def _webhooks(
    target: ClusterTarget, source: SettingsSource, wait: float, namespace: str, *, applies: bool
) -> None:
    async with connected(target, shows_cluster=applies) as connection:
        effective = await source.read(connection.client)
        settings = effective.settings.admission
        if not settings.is_wanted:
            raise AdmissionOff(f"admission is off in {effective.source} (admission.listen); give --config FILE")
        settings, key = _located(settings, namespace or effective.namespace)
        state = await _state(connection, settings, key, wait)
        if not applies:
            echo(structured({"apiVersion": "v1", "kind": "List", "items": [*wanted(settings, state).values()]}, "yaml"))
            return
        for line in await register(connection.client, settings, state):
            echo(line)


def _located(settings: AdmissionSettings, namespace: str) -> tuple[AdmissionSettings, Key]:
    """Settings with the namespace of the Service, and the key of the Secret; a pod knows its namespace by itself."""
    service = settings.service
    if service is None:
        return settings, (namespace or settings.namespace, settings.secret)
    service = msgspec.structs.replace(service, namespace=service.namespace or namespace or settings.namespace)
    return msgspec.structs.replace(settings, service=service), (service.namespace, settings.secret)


async def _state(connection: Connection, settings: AdmissionSettings, key: Key, wait: float) -> CertificateState:
    """Wait until the Secret is complete, and return its contents. Raises NoSecret, ApiError."""
    clock = connection.clock
    end = clock.monotonic() + wait
    secret = CertificateSecret(connection.client, key)
    name = "/".join(key)
    while True:
        reason = f"secret {name}: not written by this version of the controller"
        try:
            stored = await secret.read()
            if stored is not None and is_complete(stored.state, settings):
                return stored.state
        except Forbidden:
            raise
        except ApiError as error:
            if clock.monotonic() >= end:
                raise
            reason = str(error)
        if clock.monotonic() >= end:
            raise NoSecret(f"{reason}; start it, see whether one leads (gracectl doctor), or give --wait 2m")
        await clock.sleep(POLL_SECONDS)
