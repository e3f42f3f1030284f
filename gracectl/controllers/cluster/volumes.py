"""PersistentVolumes of pods that stay on their node: few, so their claims are read one by one, and each once."""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model.pod import Pod


async def read_volumes(client: KubeClient, cluster: ClusterCache, claims: Iterable[tuple[Pod, str]]) -> dict[str, str]:
    """Read the volumes of these claims into the cluster cache. Raises NotLeading.

    Returns why others are unknown, by `namespace/name` of the claim.

    A claim that is bound stays bound, and no pod that mounts it can lose it: of a pod, a volume never changes.
    """
    failures: dict[str, str] = {}
    for pod, claim in sorted(claims, key=lambda each: (each[0].key, each[1])):
        try:
            volume = (await client.get(VOLUME_CLAIMS, (pod.namespace, claim))).volume_name
        except NotLeading:
            raise
        except NotFound:
            failures[f"{pod.namespace}/{claim}"] = "claim not found"
        except ApiError as error:
            failures[f"{pod.namespace}/{claim}"] = str(error)
        else:
            if volume:
                cluster.volumes[pod.uid, claim] = volume
            else:
                failures[f"{pod.namespace}/{claim}"] = "claim not bound"
    return failures
