"""kubernetes_asyncio's reader of kubeconfigs, without the package's models.

Importing the package loads 850 modules of models: 36 MiB, and seven times the CPU of its reader, which uses one class
of `client`. So the modules here are a private copy, imported under empty parents. An `import kubernetes_asyncio`
elsewhere gets the whole package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

__all__ = ["Configuration", "ExecProvider", "OpenIDRequestor", "kube_config"]

_NAME = "kubernetes_asyncio"


@contextmanager
def _empty_parents() -> Iterator[ModuleType]:
    """Import submodules without their packages' `__init__`; yields the empty `client`."""
    spec = find_spec(_NAME)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {_NAME!r}", name=_NAME)
    replaced = _taken_out()
    package, client = ModuleType(_NAME), ModuleType(f"{_NAME}.client")
    for module, folder in (package, Path(spec.origin).parent), (client, Path(spec.origin).parent / "client"):
        module.__path__ = [str(folder)]
        sys.modules[module.__name__] = module
    try:
        yield client
    finally:
        _taken_out()
        sys.modules.update(replaced)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == _NAME]
    return {name: sys.modules.pop(name) for name in names}


with _empty_parents() as _client:
    from kubernetes_asyncio.client.configuration import Configuration

    _client.Configuration = Configuration  # type: ignore[attr-defined]
    _client.ApiClient = object  # type: ignore[attr-defined]  # only for a function that makes one
    from kubernetes_asyncio.config import kube_config
    from kubernetes_asyncio.config.exec_provider import ExecProvider
    from kubernetes_asyncio.config.openid import OpenIDRequestor
