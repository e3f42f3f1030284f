"""Where credentials are looked for: as kubectl does, and in the pod that the process runs in.

A kubeconfig needs the library that reads it, a service account does not: in a pod the library is never imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gracectl.kube.auth.credentials import SERVICE_ACCOUNT, Credentials, in_cluster
from gracectl.runtime.clock import Clock


async def load(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    clock: Clock,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Credentials:
    """The credentials that kubectl would use with --kubeconfig and --context.

    Looked for in this order: the file given, the files of KUBECONFIG, the service account of the pod we run in,
    ~/.kube/config. Raises CredentialsError.
    """
    environ = os.environ if environ is None else environ
    if not _paths(kubeconfig, environ) and not context and (service_account / "token").is_file():
        credentials = in_cluster(service_account, environ, clock)
    else:
        from gracectl.kube.auth.kubeconfig import read_context
        from gracectl.kube.auth.user import KubeconfigUser

        chosen = read_context(_paths_or_default(kubeconfig, environ), context)
        credentials = await KubeconfigUser(chosen, clock).credentials()
    # Now rather than with the first request: a missing token is a matter of configuration.
    await credentials.identity()
    return credentials


def contexts(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the contexts that there are to choose from. Raises CredentialsError."""
    from gracectl.kube.auth.kubeconfig import context_names

    return context_names(_paths_or_default(kubeconfig, environ))


def _paths_or_default(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    return _paths(kubeconfig, environ) or (_home(environ) / ".kube" / "config",)


def _paths(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files given: one by the flag, as with kubectl, or a list in the variable."""
    if kubeconfig:
        return (Path(kubeconfig).expanduser(),)
    return tuple(Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
