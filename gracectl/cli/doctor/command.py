"""`gracectl doctor`: checks whether everything that a termination needs is in place."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio
import click

from gracectl.cli.config import check_plugins
from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.doctor.checks import CHECKS, CREDENTIALS, SERVER, Doctor, check_server, run_check
from gracectl.cli.doctor.report import CheckState, Examination, Finding, doctor_report, doctor_table
from gracectl.cli.failures import FAILED, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected
from gracectl.cli.output import WIDE, Output, echo, is_structured, output_option
from gracectl.cli.report import structured
from gracectl.cli.settings import settings_options
from gracectl.config import ConfigError, LoadedSettings, read_settings
from gracectl.config.changes import differences
from gracectl.config.cluster import read_cluster_settings
from gracectl.config.loading import settings_of
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.policy.explain import listed

SETTINGS: Final = "settings"


@click.command()
@output_option("table", "wide", help=WIDE)
@settings_options
def doctor(target: ClusterTarget, output: Output) -> None:
    """Check whether everything that a termination needs is in place.

    API server, credentials, settings, definitions, the controller and its rights, webhooks and their certificate,
    Karpenter, clocks, finalizers, machines and owners of nodes, budgets, annotations of pods, replacements of pods,
    workloads without a budget, local volumes, volumes left attached, load balancers and Pending pods: a line for each,
    with the remedy below. Nothing is changed. It also works before the installation. With --config it compares the
    file with the settings of the controller. It marks checks for which you lack permissions with ?. docs/doctor.md
    explains every check.

    \b
    -o json prints one object:
      cluster {context, server}, at, settings, healthy,
      checks [{check, state [ok|warning|failed|unknown], message, remedy,
        objects [name]}]

    Exit code 0: every check was done, and none failed; 1: at least one check failed (✗) or could not be done (?). 2
    also if the file of --config is invalid.
    """
    with reporting_errors():
        given = read_settings(target.config, os.environ)
        with interruptible():
            found = run_async(lambda: _examine(target, given, shows_cluster=not is_structured(output)))
    if is_structured(output):
        echo(structured(doctor_report(found), output))
    else:
        console = stdout_console(is_wide=output == "wide")
        is_plain = not console.encoding.lower().startswith("utf")
        print_on(console, doctor_table(found.findings, is_plain=is_plain))
    if not found.is_healthy:
        sys.exit(FAILED)


async def _examine(target: ClusterTarget, given: LoadedSettings, *, shows_cluster: bool) -> Examination:
    async with connected(target, shows_cluster=shows_cluster) as connection:
        first = await run_check(SERVER, partial(check_server, connection.client), math.inf)
        findings = list(first)
        effective = given
        if not any(each.state is CheckState.FAILED for each in first):
            effective, of_settings = await _settings(connection.client, target, given)
            findings += await _all(connection, effective, of_settings)
        at = connection.clock.now()
    return Examination(cluster=connection.cluster, at=at, settings=effective.source, findings=tuple(findings))


async def _all(connection: Connection, effective: LoadedSettings, of_settings: Sequence[Finding]) -> Sequence[Finding]:
    """Findings of all other checks, in the order of the list."""
    is_assumed = effective.source == "defaults" and any(each.state is CheckState.UNKNOWN for each in of_settings)
    examined = Doctor(connection.client, connection.clock, effective.settings, is_assumed, connection.skew)
    found: dict[str, Sequence[Finding]] = {}

    async def run(name: str) -> None:
        found[name] = await run_check(name, partial(CHECKS[name], examined))

    async with anyio.create_task_group() as group:
        for name in CHECKS:
            group.start_soon(run, name)
    credentials = found.pop(CREDENTIALS)
    return [*credentials, *of_settings, *(each for name in CHECKS for each in found.get(name, ()))]


async def _settings(
    client: KubeClient, target: ClusterTarget, given: LoadedSettings
) -> tuple[LoadedSettings, Sequence[Finding]]:
    """Settings that the other checks use, and findings about them."""
    effective = given

    async def check() -> Sequence[Finding]:
        nonlocal effective
        try:
            found = await read_cluster_settings(client, {} if given.file else os.environ, target.config_map)
        except ConfigError as error:
            return (Finding(SETTINGS, CheckState.FAILED, str(error)),)
        if given.file is None and found is not None:
            effective = found
        return (_compared(given, found),)

    findings = list(await run_check(SETTINGS, check))
    try:
        list(check_plugins(effective.settings))
    except ConfigError as error:
        findings.append(Finding(SETTINGS, CheckState.FAILED, str(error), "correct it (docs/providers.md)"))
    return effective, findings


def _compared(given: LoadedSettings, found: LoadedSettings | None) -> Finding:
    """Compare the settings of the controller with the file, if one is given."""
    if found is None:
        message = "the cluster has no ConfigMap of the chart; "
        if given.file is not None:
            return Finding(SETTINGS, CheckState.OK, f"{message}the checks use {given.file}")
        remedy = "if a controller runs with others, give them with --config FILE"
        return Finding(SETTINGS, CheckState.WARNING, f"{message}defaults are assumed", remedy)
    if given.file is None:
        return Finding(SETTINGS, CheckState.OK, f"valid, from {found.source}")
    differing = differences(found.settings, settings_of(given.document))
    changed = [each.text("on the cluster", "in the file") for each in differing]
    if not changed:
        return Finding(SETTINGS, CheckState.OK, f"{found.source} has the same settings as {given.file}")
    message = f"{found.source} differs from {given.file} in {listed(changed)}"
    remedy = "helm upgrade with these settings, or correct the file"
    return Finding(SETTINGS, CheckState.FAILED, message, remedy, tuple(changed))
