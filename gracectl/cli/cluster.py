"""What commands that speak to a cluster have in common: the options that say which one, and the connection to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from gracectl.config import Settings, load_settings
from gracectl.kube import connection
from gracectl.kube.connection import Connection
from gracectl.kube.skew import LARGEST_OFFSET


class ClusterChoice(msgspec.Struct, frozen=True):
    """What the command line says about the cluster, and about how its nodes end."""

    kubeconfig: str | None = None
    context: str | None = None
    config: Path | None = None

    def settings(self) -> Settings:
        """Those of the file, or all defaults, with what the environment says. Raises ConfigError."""
        return load_settings(self.config, os.environ)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which cluster a command speaks to; it gets them in one, as its argument `cluster`."""

    @click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig; default: $KUBECONFIG, the pod's service account, ~/.kube/config.",
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: its current one.")
    @click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings (YAML); default: all defaults."
    )
    @wraps(command)
    def with_options(
        *arguments: Any, kubeconfig: str | None, context: str | None, config: Path | None, **others: Any
    ) -> None:
        command(*arguments, cluster=ClusterChoice(kubeconfig, context, config), **others)

    return with_options


def connected(
    cluster: ClusterChoice, largest_offset: float = LARGEST_OFFSET
) -> AbstractAsyncContextManager[Connection]:
    """A connection while the block runs; nothing is asked of the server yet. Raises CredentialsError.

    `largest_offset`: seconds that the server's clock may be away from this machine's and be believed.
    """
    return connection.connected(cluster.kubeconfig, cluster.context, largest_offset=largest_offset)
