"""Removes what the image never reads. Run by the Python of the image.

Descriptions of AWS services that are not called are 25 of botocore's 27 MB. A provider of yours that calls other
services brings its own botocore, or a file of `AWS_DATA_PATH`. Models and typed clients are 25 of the 26 MB of
kubernetes_asyncio, which only reads kubeconfigs here.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

KEPT: Final = frozenset({"autoscaling", "ec2", "signin", "sso", "sso-oidc", "sts"})
"""Services that provider `aws` calls, and services by which botocore finds credentials."""

MODELS: Final = ("client/api", "client/models", "dynamic", "leaderelection", "stream", "utils", "watch")
"""Parts of kubernetes_asyncio that no kubeconfig needs."""


def prune(data: Path) -> int:
    """Number of services that are removed from a folder `botocore/data`. Files next to them (endpoints, partitions)
    stay. LookupError if it has not all that are to stay: then it is another folder."""
    services = {folder.name: folder for folder in data.iterdir() if folder.is_dir()}
    if missing := KEPT - set(services):
        raise LookupError(f"{data}: no description of {', '.join(sorted(missing))}")
    for name in set(services) - KEPT:
        shutil.rmtree(services[name])
    return len(set(services) - KEPT)


def prune_models(package: Path) -> None:
    """Leave what reads a kubeconfig of the folder `kubernetes_asyncio`. FileNotFoundError: it is another folder."""
    for name in MODELS:
        shutil.rmtree(package / name)


def main() -> None:
    """Prune the packages of this Python."""
    print(f"prune: {prune(_folder('botocore') / 'data')} services removed")
    prune_models(_folder("kubernetes_asyncio"))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"prune: {package} is not installed")
    return Path(spec.origin).parent


if __name__ == "__main__":
    main()
