"""Removes what the image never reads: descriptions of AWS services that are not called. Run by the Python of the image.

Of botocore's 27 MB these are 25. A provider of yours that calls other services brings its own botocore, or a file of
`AWS_DATA_PATH`.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

KEPT: Final = frozenset({"autoscaling", "ec2", "signin", "sso", "sso-oidc", "sts"})
"""Those that provider `aws` calls, and those by which botocore finds credentials."""


def prune(data: Path) -> int:
    """Number of services that are removed from a folder `botocore/data`. Files beside them (endpoints, partitions)
    stay. LookupError if it has not all that are to stay: then it is another folder."""
    services = {folder.name: folder for folder in data.iterdir() if folder.is_dir()}
    if missing := KEPT - set(services):
        raise LookupError(f"{data}: no description of {', '.join(sorted(missing))}")
    for name in set(services) - KEPT:
        shutil.rmtree(services[name])
    return len(set(services) - KEPT)


def main() -> None:
    """Prune the botocore of this Python."""
    found = find_spec("botocore")
    if found is None or found.origin is None:
        sys.exit("prune: botocore is not installed")
    print(f"prune: {prune(Path(found.origin).parent / 'data')} services removed")


if __name__ == "__main__":
    main()
