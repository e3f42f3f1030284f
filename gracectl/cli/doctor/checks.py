"""Checks of `gracectl doctor`; they run concurrently and independently.

Invariants: no check writes (the webhook is tested with a dry run that it denies); a check that fails or times out is
reported and delays no other check. The permissions are the ones that the controller checks at its start.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from gracectl.admission.webhooks import (
    CONFIGURATIONS,
    NODE_BUDGET_WEBHOOK,
    NODE_DELETE_WEBHOOK,
    OUR_NAMES,
    admission_permissions,
)
from gracectl.cli.doctor.clocks import CLOCKS, check_clocks
from gracectl.cli.doctor.deployments import Deployment, only_observe, visible_deployments
from gracectl.cli.doctor.objects import ANNOTATIONS, BUDGETS, annotation_finding, budget_finding, node_findings
from gracectl.cli.doctor.replacements import REPLACEMENTS, check_replacements
from gracectl.cli.doctor.report import CheckState, Finding
from gracectl.cli.doctor.surroundings import SURROUNDINGS, ClientCheck
from gracectl.cli.format import elapsed
from gracectl.cli.output import command
from gracectl.cloud.provider import UnknownProvider, UsesCluster, load_provider
from gracectl.config import Settings
from gracectl.controllers.rbac import freeze_rights, rights_for
from gracectl.inspect.leadership import LeaderState, leadership_of, read_leases
from gracectl.kube.cache.reading import is_served, read_all, read_served
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound, NotServed, RequestTimeout, Unauthorized, Unreachable
from gracectl.kube.leader.leases import LONGEST_HELD_SECONDS
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE
from gracectl.kube.rbac import READS, missing_permissions, own_username
from gracectl.kube.requests import Key
from gracectl.kube.resources import (
    BUDGETS as POD_BUDGETS,
)
from gracectl.kube.resources import (
    NODE_BUDGETS,
    NODE_CLAIM_VERSIONS,
    NODE_POOL_VERSIONS,
    NODES,
    PODS,
)
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.model.claim import NodeClaim
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.finalizers import finalizer_rule
from gracectl.policy.protection import invalid_annotation
from gracectl.runtime.certificates import authorities_in, certificate_info
from gracectl.runtime.clock import Clock

CHECK_SECONDS: Final = 15.0
"""Timeout of a check."""

OLDEST: Final = (1, 25)
"""Minor version of Kubernetes."""

RENEWAL_SECONDS: Final = 7 * 86_400
"""A certificate that expires sooner has not been renewed in time."""

INSTALL: Final = "helm install gracectl helm/gracectl -n gracectl --create-namespace (docs/install.md)"


class Doctor(msgspec.Struct, frozen=True):
    """Input of the checks. `is_assumed`: the controller's settings are unknown, so defaults are used."""

    client: KubeClient
    clock: Clock
    settings: Settings
    is_assumed: bool = False
    skew: SkewEstimate | None = None


Check = Callable[[Doctor], Awaitable[Sequence[Finding]]]


async def run_check(
    name: str, check: Callable[[], Awaitable[Sequence[Finding]]], seconds: float = CHECK_SECONDS
) -> Sequence[Finding]:
    """Run a check; returns its findings, or one with state UNKNOWN if it cannot be done."""

    def unknown(message: str, remedy: str | None = None) -> Sequence[Finding]:
        return (Finding(name, CheckState.UNKNOWN, message, remedy),)

    try:
        with anyio.fail_after(seconds):
            return await check()
    except TimeoutError:
        return unknown(f"not checked: no answer within {seconds:g} s", "run it again; is the API server slow?")
    except Forbidden as refusal:
        operation = refusal.operation
        message = f"not checked: missing permission: {operation}"
        return unknown(message, f"grant the verb {operation.verb} on {operation.qualified}")
    except (Unreachable, RequestTimeout) as error:
        return unknown(f"not checked: {error}", "run it again")
    except ApiError as error:
        return unknown(f"not checked: {error}")


# -- the server --------------------------------------------------------------------------------------------------------

SERVER: Final = "API server"
CREDENTIALS: Final = "credentials"


async def check_server(client: KubeClient) -> Sequence[Finding]:
    """Check that the server answers and that its version is supported."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            version = await client.server_version()
    except TimeoutError:
        message = f"no answer within {CHECK_SECONDS:g} s"
        return (Finding(SERVER, CheckState.FAILED, message, "check the API server, and the network to it"),)
    except (Unreachable, RequestTimeout) as error:
        remedy = error.remedy if isinstance(error, Unreachable) else "check the API server, and the network to it"
        return (Finding(SERVER, CheckState.FAILED, str(error), remedy),)
    except Unauthorized as error:
        return (Finding(CREDENTIALS, CheckState.FAILED, str(error), "log in again, or choose another --context"),)
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    oldest = f"{OLDEST[0]}.{OLDEST[1]}"
    shown = harmless(version)
    if numbers is None:
        return (Finding(SERVER, CheckState.WARNING, f"Kubernetes {shown}: unknown version format"),)
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        message = f"Kubernetes {shown} is too old: {oldest} or newer is needed"
        return (Finding(SERVER, CheckState.FAILED, message, "upgrade the cluster"),)
    return (Finding(SERVER, CheckState.OK, f"Kubernetes {shown} ({oldest} or newer is needed)"),)


async def check_credentials(doctor: Doctor) -> Sequence[Finding]:
    """Check that the server accepts the credentials, and report the user name."""
    try:
        user = await own_username(doctor.client)
    except Unauthorized as error:
        return (Finding(CREDENTIALS, CheckState.FAILED, str(error), "log in again, or choose another --context"),)
    if not user:
        return (Finding(CREDENTIALS, CheckState.OK, "accepted"),)
    return (Finding(CREDENTIALS, CheckState.OK, f"accepted, as {harmless(user)}"),)


# -- the installation --------------------------------------------------------------------------------------------------

DEFINITIONS: Final = "definitions"
CONTROLLER: Final = "controller"
PERMISSIONS: Final = "permissions"
WEBHOOKS: Final = "webhooks"
CERTIFICATE: Final = "certificate"
KARPENTER: Final = "Karpenter"


async def check_definitions(doctor: Doctor) -> Sequence[Finding]:
    """Check that the server serves known versions of NodeDisruptionBudgets and NodeClaims."""
    kind = f"{NODE_BUDGETS.plural} {NODE_BUDGETS.version}"
    claims = [each.version for each in NODE_CLAIM_VERSIONS if await doctor.client.serves(each)]
    others = f"nodeclaims {claims[0]}" if claims else "nodeclaims are not served, and not needed without Karpenter"
    if await is_served(doctor.client, (NODE_BUDGETS,)):
        return (Finding(DEFINITIONS, CheckState.OK, f"{kind}; {others}"),)
    message = f"{kind} is not served: no node disruption budget applies"
    remedy = f"{command('crds')} | kubectl apply --server-side -f -"
    return (Finding(DEFINITIONS, CheckState.WARNING, message, remedy),)


async def check_controller(doctor: Doctor) -> Sequence[Finding]:
    """Check that a controller is installed, Ready and leads."""
    settings = doctor.settings.leader_election
    leases = await read_leases(doctor.client, settings) if settings.enabled else ()
    found = leadership_of(leases, doctor.clock.now())
    deployments = await visible_deployments(doctor.client)
    ready = "".join(f"; {each.readiness}" for each in deployments)
    if found.state is LeaderState.ACTIVE:
        ago = "" if found.renewed is None else f", renewed {elapsed(max(doctor.clock.now() - found.renewed, 0))} ago"
        message = f"{harmless(found.holder)} leads (Lease {found.lease}{ago}){ready}"
        unready = [each for each in deployments if each.ready < each.wanted]
        if unready:
            return (_of_deployments(message, unready, CheckState.WARNING),)
        return (Finding(CONTROLLER, CheckState.OK, message),)
    if deployments and not any(each.ready for each in deployments):
        return (_of_deployments(f"no replica is Ready{ready}", deployments, CheckState.FAILED),)
    if only_observe(deployments):
        message = f"dry run: no node is protected or drained{ready}"
        return (
            Finding(
                CONTROLLER,
                CheckState.WARNING,
                message,
                "to enable it: helm uninstall, then helm install without dryRun",
            ),
        )
    if not settings.enabled:
        message = f"leader election is disabled: no Lease says whether a controller runs{ready}"
        return (Finding(CONTROLLER, CheckState.OK if deployments else CheckState.WARNING, message),)
    if found.is_absent and not deployments:
        return (Finding(CONTROLLER, CheckState.FAILED, f"not installed: there is no Lease {settings.name}", INSTALL),)
    if found.renewed is not None and found.renewed > doctor.clock.now() + LONGEST_HELD_SECONDS:
        message = f"unknown whether a controller leads: {found.reason}, which is in the future{ready}"
        return (_of_deployments(message, deployments, CheckState.WARNING),)
    if found.state is LeaderState.UNKNOWN and not found.is_absent:
        message = "no controller leads now; a handover takes seconds"
        return (Finding(CONTROLLER, CheckState.WARNING, message, "run it again"),)
    reason = f"there is no Lease {settings.name}" if found.is_absent else found.reason
    return (_of_deployments(f"no controller leads: {reason}{ready}", deployments, CheckState.FAILED),)


def _of_deployments(message: str, deployments: Sequence[Deployment], state: CheckState) -> Finding:
    if not deployments:
        return Finding(CONTROLLER, state, message, f"start it; to install: {INSTALL}")
    first = deployments[0].metadata
    return Finding(CONTROLLER, state, message, f"see why: kubectl -n {first.namespace} logs deployment/{first.name}")


async def check_permissions(doctor: Doctor) -> Sequence[Finding]:
    """Check the permissions of the controller's account; without a Deployment, the permissions of the current
    credentials."""
    deployments = await visible_deployments(doctor.client)
    if not deployments:
        missing, number = await _missing(doctor, None, None)
        if missing:
            message = f"not checked: no controller found; your account lacks {len(missing)} of its permissions"
            remedy = "the chart grants them to the controller (docs/permissions.md)"
            return (Finding(PERMISSIONS, CheckState.UNKNOWN, message, remedy, missing),)
        return (
            Finding(PERMISSIONS, CheckState.OK, f"your credentials have all permissions of a controller ({number})"),
        )
    return [await _permissions_of(doctor, each) for each in deployments]


async def _permissions_of(doctor: Doctor, deployment: Deployment) -> Finding:
    account = deployment.account
    missing, number = await _missing(doctor, account, deployment)
    called = f"service account {'/'.join(account)}"
    if missing:
        message = f"{called}: missing permissions: {listed(missing)}"
        remedy = "helm upgrade, or grant them (docs/permissions.md)"
        return Finding(PERMISSIONS, CheckState.FAILED, message, remedy, missing)
    return Finding(PERMISSIONS, CheckState.OK, f"{called} has all permissions of the controller ({number})")


async def _missing(doctor: Doctor, account: Key | None, deployment: Deployment | None) -> tuple[tuple[str, ...], int]:
    """Missing permissions, and the number of needed ones."""
    settings = doctor.settings
    election = settings.leader_election
    namespace = election.namespace or (account[0] if account else DEFAULT_NAMESPACE)
    lease = (namespace, election.name) if election.enabled else None
    needed = await rights_for(doctor.client, lease, replaces=settings.replace_first.is_wanted)
    needed += freeze_rights(namespace) + admission_permissions(settings.admission)
    try:
        provider = load_provider(settings.provider)
        if isinstance(provider, UsesCluster):
            needed += provider.rights()
    except (UnknownProvider, ValueError):
        pass  # its files may exist only where the controller runs
    if deployment is not None and deployment.only_observes:
        needed = tuple(right for right in needed if right.verb in READS)
    missing = await missing_permissions(doctor.client, needed, account)
    return tuple(str(each) for each in missing), len(needed)


async def check_karpenter(doctor: Doctor) -> Sequence[Finding]:
    """Which finalizer holds our nodes and claims, and whether Karpenter is installed, on which that depends."""
    has_karpenter = await is_served(doctor.client, NODE_POOL_VERSIONS)
    setting = doctor.settings.finalizer
    name = finalizer_rule(setting, has_karpenter=has_karpenter).name
    found = "installed: its nodes and node claims are left to it" if has_karpenter else "not installed"
    message = f"{found}; finalizer of all others: {name} (setting finalizer: {setting})"
    return (Finding(KARPENTER, CheckState.OK, message),)


# -- admission ---------------------------------------------------------------------------------------------------------


REGISTER: Final = "gracectl webhooks --apply"
OUTDATED: Final = ("x509: certificate signed by unknown authority", "could not find the requested resource")
"""API server errors that show that a webhook configuration has another authority or path than the Secret."""


async def check_webhooks(doctor: Doctor) -> Sequence[Finding]:
    """Check that the API server knows, trusts and reaches the webhooks."""
    settings = doctor.settings.admission
    if not settings.is_wanted and doctor.is_assumed:
        message = "not checked: the controller's settings are unknown"
        return (Finding(WEBHOOKS, CheckState.UNKNOWN, message, "give them with --config FILE"),)
    if not settings.is_wanted:
        return (Finding(WEBHOOKS, CheckState.OK, "admission is off (admission.listen)"),)
    if only_observe(await visible_deployments(doctor.client)):
        return (Finding(WEBHOOKS, CheckState.OK, "none: the controller runs with --dry-run"),)
    ours: list[dict[str, Any]] = []
    for kind, resource in CONFIGURATIONS.items():
        try:
            body = await doctor.client.get(resource, ("", settings.name))
        except NotFound:
            message = f"{kind} webhook configuration {settings.name} missing: no budget limits deletions of nodes"
            return (Finding(WEBHOOKS, CheckState.FAILED, message, REGISTER),)
        ours += [each for each in body.get("webhooks") or () if each.get("name") in OUR_NAMES]
    refuses = any(each["name"] == NODE_DELETE_WEBHOOK.name and each.get("failurePolicy") == "Fail" for each in ours)
    unreached = "Ready nodes cannot be deleted" if refuses else "no budget limits deletions of nodes"
    bundles = [_bundle_of(each) for each in ours]
    is_injected = bool(settings.certificates.inject_from)
    of_certificate = certificate_finding(bundles, doctor.clock.now(), is_injected=is_injected)
    return (await _reached(doctor.client, unreached), of_certificate)


def _bundle_of(webhook: dict[str, Any]) -> bytes:
    try:
        return b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "")
    except binascii.Error:
        return b""


def certificate_finding(bundles: Sequence[bytes], now: float, *, is_injected: bool = False) -> Finding:
    """The authority that API servers trust; `is_injected`: cert-manager writes it."""
    try:
        lives = [
            max((certificate_info(each) for each in authorities_in(bundle)), key=lambda info: info.not_after)
            for bundle in bundles
            if bundle
        ]
    except ValueError:
        return Finding(CERTIFICATE, CheckState.FAILED, "caBundle cannot be read", "docs/admission.md")
    if len(lives) < len(bundles) or not lives:
        message = "caBundle is empty: API servers trust no certificate of the webhooks"
        injected = "wait for cert-manager to write it (docs/admission.md)"
        remedy = injected if is_injected else REGISTER
        return Finding(CERTIFICATE, CheckState.FAILED, message, remedy)
    first = min(lives, key=lambda info: info.not_after)
    life = f"since {format_time(first.not_before)}, until {format_time(first.not_after)}"
    remedy = "renew it (docs/admission.md#certificates)"
    if first.not_after <= now:
        return Finding(CERTIFICATE, CheckState.FAILED, f"its authority has expired: valid {life}", remedy)
    left = f"{int((first.not_after - now) // 86_400)} days left"
    state = CheckState.WARNING if first.not_after - now < RENEWAL_SECONDS else CheckState.OK
    message = f"its authority is valid {life} ({left})"
    return Finding(CERTIFICATE, state, message, remedy if state is CheckState.WARNING else None)


PROBE: Final = {
    "metadata": {"name": "gracectl-doctor"},
    "spec": {"maxUnavailable": 1, "selector": {"matchExpressions": [{"key": "gracectl-doctor", "operator": "In"}]}},
}
"""A budget that only the webhook denies; sent as a dry run, it is not stored in any case."""


async def _reached(client: KubeClient, unreached: str) -> Finding:
    """Whether they answer API servers; `unreached`: what follows if not."""
    remedy = f"see whether a controller runs, let API servers reach its port (docs/admission.md), or: {REGISTER}"
    try:
        await client.create(NODE_BUDGETS, "", PROBE, dry_run=True)
    except NotServed:
        return Finding(WEBHOOKS, CheckState.UNKNOWN, "not checked: nodedisruptionbudgets are not served", "see above")
    except Forbidden as refusal:
        message = f"registered; not checked: missing permission: {refusal.operation}"
        return Finding(WEBHOOKS, CheckState.UNKNOWN, message, "grant the verb create on nodedisruptionbudgets")
    except ApiError as error:
        if f'"{NODE_BUDGET_WEBHOOK.name}" denied' in error.status_message:
            return Finding(WEBHOOKS, CheckState.OK, "registered, and API servers reach them (tried by a dry run)")
        if NODE_BUDGET_WEBHOOK.name in error.status_message:
            is_outdated = any(each in error.status_message for each in OUTDATED)
            remedy = REGISTER if is_outdated else remedy
            return Finding(WEBHOOKS, CheckState.FAILED, f"not reached: {error.status_message}", remedy)
        return Finding(WEBHOOKS, CheckState.UNKNOWN, f"registered; not checked: {error}")
    message = f"registered, but API servers get no answer: {unreached}"
    return Finding(WEBHOOKS, CheckState.FAILED, message, remedy)


# -- the cluster's objects ---------------------------------------------------------------------------------------------


async def check_nodes(doctor: Doctor) -> Sequence[Finding]:
    """Finalizers, machines and other owners of nodes."""
    claims: Sequence[NodeClaim] = ()
    if await is_served(doctor.client, NODE_POOL_VERSIONS):
        with suppress(Forbidden):  # labels and taints show nearly all owners
            claims = await read_served(doctor.client, NODE_CLAIM_VERSIONS)
    return node_findings(await read_all(doctor.client, NODES), claims, doctor.settings)


async def check_budgets(doctor: Doctor) -> Sequence[Finding]:
    """Budgets that never allow a disruption."""
    return (budget_finding(await read_all(doctor.client, POD_BUDGETS)),)


async def check_annotations(doctor: Doctor) -> Sequence[Finding]:
    """Pods with an invalid protection."""
    pods = await read_all(doctor.client, PODS, keep=lambda pod: invalid_annotation(pod) is not None)
    return (annotation_finding(pods),)


def _of_client(check: ClientCheck) -> Check:
    return lambda doctor: check(doctor.client)


CHECKS: Final[dict[str, Check]] = {
    CREDENTIALS: check_credentials,
    DEFINITIONS: check_definitions,
    CONTROLLER: check_controller,
    PERMISSIONS: check_permissions,
    WEBHOOKS: check_webhooks,
    KARPENTER: check_karpenter,
    CLOCKS: lambda doctor: check_clocks(doctor.client, doctor.clock, doctor.settings.leader_election, doctor.skew),
    "nodes": check_nodes,
    BUDGETS: check_budgets,
    ANNOTATIONS: check_annotations,
    REPLACEMENTS: lambda doctor: check_replacements(doctor.client),
    **{name: _of_client(check) for name, check in SURROUNDINGS.items()},
}
"""Findings for checks that cannot be done, by name."""
