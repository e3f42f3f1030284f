"""Refusals of a real kube-apiserver, as recorded, about the object of a request or about another one.

A refusal about another object is what a server answers when something on the way of a write fails: the namespace, the
budget of an eviction, the webhook in front of it.
"""

from __future__ import annotations

from typing import Any, Final

from kubesim.faults import Refuse


def _status(code: int, reason: str, message: str, **details: Any) -> Refuse:
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
    }
    retry_after = details.get("retryAfterSeconds")
    return Refuse(code, retry_after, body | ({"reason": reason} if reason else {}) | {"details": details, "code": code})


def _called(why: str) -> Refuse:
    message = f'failed calling webhook "hook.example": {why}'
    return _status(500, "InternalError", f"Internal error occurred: {message}", causes=[{"message": message}])


CHANGED: Final = "the object has been modified; please apply your changes to the latest version and try again"
POST: Final = 'failed to call webhook: Post "https://hook.ops.svc:443/?timeout=10s": '

WRITES: Final[dict[str, Refuse]] = {
    "404 of another object": _status(404, "NotFound", 'services "hook" not found', name="hook", kind="services"),
    "404 of the namespace": _status(404, "NotFound", 'namespaces "shop" not found', name="shop", kind="namespaces"),
    "404 in plain text": Refuse(404, None, "404 page not found\n"),
    "404 without a name": _status(404, "NotFound", "the server could not find the requested resource"),
    "403 of the authorizer": _status(
        403,
        "Forbidden",
        'pods "web" is forbidden: User "gracectl" cannot delete resource "pods" in API group "" in the namespace "s"',
        name="web",
        kind="pods",
    ),
    "403 of a policy": _status(
        403,
        "Forbidden",
        "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'b' denied request: no",
        name="web",
        kind="pods",
    ),
    "403 of a webhook": _status(403, "Forbidden", 'admission webhook "hook.example" denied the request: not today'),
    "400 of a webhook": _status(400, "", 'admission webhook "hook.example" denied the request without explanation'),
    "409 of a changed object": _status(
        409, "Conflict", f'Operation cannot be fulfilled on nodes "n1": {CHANGED}', name="n1", kind="nodes"
    ),
    "409 of the store": _status(
        409,
        "Conflict",
        'Operation cannot be fulfilled on nodes "n1": StorageError: invalid object, Code: 4, Key: /registry/minions, '
        "ResourceVersion: 0, AdditionalErrorMsg: Precondition failed",
        name="n1",
        kind="nodes",
    ),
    "409 that exists": _status(
        409, "AlreadyExists", 'object is being deleted: nodes "n1" already exists', name="n1", kind="nodes"
    ),
    "422 of a field": _status(
        422,
        "Invalid",
        'Node "n1" is invalid: spec.taints[0].effect: Unsupported value: "x"',
        name="n1",
        kind="Node",
        causes=[
            {"reason": "FieldValueNotSupported", "message": 'Unsupported value: "x"', "field": "spec.taints[0].effect"}
        ],
    ),
    "401": _status(401, "Unauthorized", "Unauthorized"),
    "405": _status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource"),
    "410": _status(410, "Expired", "The provided continue parameter is too old to display a consistent list result."),
    "413": _status(413, "RequestEntityTooLarge", "etcdserver: request is too large"),
    "415": _status(415, "UnsupportedMediaType", "the body of the request was in an unknown format"),
    "429 of a webhook": _status(
        429,
        "TooManyRequests",
        'admission webhook "hook.example" denied the request: node disruption budget web: 0 allowed',
        retryAfterSeconds=3,
    ),
    "429 of the server": Refuse(429, 2),
    "500 of a webhook that is down": _called(POST + "dial tcp 10.96.0.7:443: connect: connection refused"),
    "500 of a slow webhook": _called(POST + "context deadline exceeded"),
    "500 of a webhook with another's answer": _called(
        'received invalid webhook response: expected response.uid="1", got "2"'
    ),
    "500 of the store": _status(500, "InternalError", "etcdserver: leader changed"),
    "502 of a proxy": Refuse(502, None, "<html><body>Bad Gateway</body></html>"),
    "503": _status(503, "ServiceUnavailable", "apiserver is shutting down", retryAfterSeconds=1),
    "504": _status(
        504, "Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"
    ),
}
"""Of any write."""

EVICTIONS: Final[dict[str, Refuse]] = {
    "404 of its budget": _status(
        404,
        "NotFound",
        'poddisruptionbudgets.policy "web" not found',
        name="web",
        group="policy",
        kind="poddisruptionbudgets",
    ),
    "403 of its budget": _status(
        403,
        "Forbidden",
        'poddisruptionbudget.policy "web" is forbidden: DisruptedPods map too big - too many evictions not confirmed',
        name="web",
        group="policy",
        kind="poddisruptionbudget",
    ),
    "409 of its budget": _status(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on poddisruptionbudgets.policy "web": {CHANGED}',
        name="web",
        group="policy",
        kind="poddisruptionbudgets",
    ),
    "429 of its budget": _status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes=[
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 3 healthy pods and has 3 currently",
            }
        ],
    ),
    "429 while its budget is counted": _status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes=[
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web is still being processed by the server.",
            }
        ],
        retryAfterSeconds=10,
    ),
    "500 of two budgets": _status(
        500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    ),
}
"""Of evictions only."""
