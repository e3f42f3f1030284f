"""PersistentVolumes of pods that stay on their node: few, so their claims are read one by one, and each once.

Tenants write pods with any number of claims that do not exist, so what one look reads is limited, also by namespace.
A list would need a right to all claims of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice, zip_longest
from typing import Final

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.kube.cache import Key
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model.pod import Pod

MOST_OF_NAMESPACE, MOST_AT_A_TIME = 20, 100
"""Maximum claims that one look at a node reads, per namespace and in total."""

MOST_VOLUMES: Final = 20_000
"""Known volumes, beyond which all are read again."""


async def read_volumes(client: KubeClient, cluster: ClusterCache, claims: Iterable[tuple[Pod, str]]) -> dict[str, str]:
    """Read the volumes of these claims into the cluster cache. Raises NotLeading.

    Returns why others are unknown, by `namespace/name` of the claim.

    A claim that is bound stays bound, and no pod that mounts it can lose it: of a pod, a volume never changes.
    """
    failures: dict[str, str] = {}
    pods: dict[Key, list[Pod]] = {}
    for pod, claim in sorted(claims, key=lambda each: (each[0].key, each[1])):
        pods.setdefault((pod.namespace, claim), []).append(pod)
    if len(cluster.volumes) > MOST_VOLUMES:
        cluster.volumes.clear()
    for key, mounting in pods.items():
        name = "/".join(key)
        try:
            volume = (await client.get(VOLUME_CLAIMS, key)).volume_name
        except NotLeading:
            raise
        except NotFound:
            failures[name] = "claim not found"
        except ApiError as error:
            failures[name] = str(error)
        else:
            if volume:
                cluster.volumes.update(((pod.uid, key[1]), volume) for pod in mounting)
            else:
                failures[name] = "claim not bound"
    return failures


def fair_share(claims: Iterable[tuple[Pod, str]]) -> list[tuple[Pod, str]]:
    """Claims that one look reads: the first ones of each namespace, and of all namespaces together."""
    of_namespace: dict[str, dict[Key, list[tuple[Pod, str]]]] = {}
    for pod, claim in claims:
        found = of_namespace.setdefault(pod.namespace, {})
        if (pod.namespace, claim) in found or len(found) < MOST_OF_NAMESPACE:
            found.setdefault((pod.namespace, claim), []).append((pod, claim))
    in_turn = chain.from_iterable(zip_longest(*(found.values() for found in of_namespace.values())))
    return list(chain.from_iterable(islice((each for each in in_turn if each is not None), MOST_AT_A_TIME)))
