"""Imports every module that is installed; run with `-X dev -W error`, outside of the tree (tools/clean-install)."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Final

PACKAGES: Final = ("gracectl", "kubesim")
NOT: Final = ("__main__", "pytest_plugin")
"""Modules that do something when they are imported, or need what only tests have."""


def main() -> int:
    """Import all; 1 if one of them cannot be, with its name and the reason."""
    failed = imported = 0
    for package in PACKAGES:
        for found in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if found.name.rpartition(".")[2] in NOT:
                continue
            try:
                import_module(found.name)
            except (ImportError, Warning) as error:
                print(f"{found.name}: not imported: {error!r}")
                failed += 1
            imported += 1
    print(f"Python {sys.version.split()[0]}: {imported} modules, {failed} not imported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
