"""The known differences: every place where an answer may deviate from the recordings, and why."""

from __future__ import annotations

from conformance.differences import Difference, LeftOut, Side

OTHERWISE = (
    # (reason, places, at, what is there instead)
    ("another version of Kubernetes", "discovery 0", "body.minor", "3?"),
    ("another version of Kubernetes", "discovery 0", "body.gitVersion", "v1.3*"),
    ("the version says with what it is compatible", "discovery 0", "body.emulation*", "..."),
    ("the version says with what it is compatible", "discovery 0", "body.minCompatibility*", "..."),
    ("the hash of how a budget is stored is another", "discovery 5", "body.resources[0].storageVersionHash", "*="),
    ("beta versions of 1.24 are no longer served", "discovery 2", "body.groups[*].versions", "*"),
    ("a resource list names the singular", "discovery 4-6", "body.resources[*].singularName", "*"),
    ("there is OpenAPI v3", "discovery 11", "status", "200"),
    (
        "all groups and their resources may be asked for at once",
        "discovery 14",
        "headers.Content-Type",
        "application/json;g=apidiscovery*",
    ),
    ("all groups and their resources may be asked for at once", "discovery 14", "body.*", "*iscovery*"),
    (
        "unknown fields are warned of (fieldValidation=Warn is the default since 1.25)",
        "crds 3; custom-resources 2, 22; writes-patch 18, 20",
        "headers.Warning",
        '299 - "unknown field *',
    ),
    ("fieldValidation=Strict is obeyed", "writes-refused 11", "status", "400 *strict decoding error: unknown field*"),
    (
        "a value of the wrong type has a reason of its own",
        "crds 6, 39, 40, 41",
        "body.details.causes[*].reason",
        "FieldValueTypeInvalid",
    ),
    (
        "an Unsupported value is told with its index in the list",
        "crds 20",
        "body.*",
        "*status.conditions[0].status*",
    ),
    (
        "other words for a custom resource without kind",
        "crds 47; custom-resources 4",
        "body.message",
        "the object provided is unrecognized (must be of type *): Object 'Kind' is missing in *",
    ),
    (
        "other words for an applied configuration without kind",
        "writes-apply 11",
        "body.message",
        "invalid object type: /, Kind=",
    ),
    (
        "other words for a patch that cannot be read",
        "writes-refused 7, 8",
        "body.message",
        "error decoding patch: *",
    ),
    (
        "a resourceVersion that is no number is the client's fault",
        "list-versions 12",
        "status",
        "400 invalid resource version: *",
    ),
    (
        "a watch may name a match if it asks for initial events",
        "watch-versions 6",
        "events[0].*message",
        "*resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
    (
        "reason, message and all but the series of an event may not change through events.k8s.io/v1",
        "events 16, 17",
        "status",
        "422 *field is immutable",
    ),
    ("so the event keeps its reason, and is found by it", "events 18", "body.items", "['web.2']"),
    (
        "the hash in the names of a ReplicaSet's pods is one of Go's own structs, as this version has them",
        "eviction-at-once 3, 20; node-drain-end-to-end 5, 22; pdb-status 3, 27",
        "body.items[*].metadata.generateName",
        "*",
    ),
    (
        "pods count generations (1.33): 1 at creation, 2 with the first DELETE",
        "eviction 5, 20, 73; eviction-at-once 3, 20; eviction-of-another-uid 9; node-drain-end-to-end 5, 22; "
        "pdb-status 3, 27; pod-deletion 3, 8-15, 17, 20, 22, 25, 26, 29-31, 35, 36, 39, 43, 44, 47, 48, 51, 55, 56, "
        "59, 62, 65, 66, 68, 71, 75, 79, 81-84, 90, 93-95, 99-101; tables 8, 10; writes-create 1",
        "*.metadata.generation",
        "?",
    ),
    (
        "an eviction first writes the condition DisruptionTarget into the pod (1.26)",
        "node-drain-end-to-end 14, 17, 20",
        "facts.lives[1]",
        "['MODIFIED ready', 'MODIFIED terminating, grace 30', 'MODIFIED terminating, grace 0', 'DELETED']",
    ),
    (
        "the pod garbage collector writes a phase and a condition before it deletes (1.26)",
        "nodes-orphans 4",
        "events",
        "*'phase': 'Failed', 'conditions': *DeletionByPodGC*'type': 'DELETED'*",
    ),
    (
        "a grace period that is over when it is shortened ends now, not at an instant that has passed",
        "pod-deletion 32",
        "facts.shortened_to_1",
        "3",
    ),
    (
        "other words for pods whose controller is gone",
        "pdb-status 57",
        "body.status.conditions[0].message",
        "found no controllers for pod *",
    ),
    ("unhealthyPodEvictionPolicy is known", "pdb-status 87", "body.spec.unhealthyPodEvictionPolicy", "AlwaysAllow"),
    (
        "a volume says since when it is in its phase (1.31)",
        "volumes 1",
        "body.status.lastPhaseTransitionTime",
        "20*Z",
    ),
)

NOT_YET = (
    (
        "policy/v1beta1 is not served any more (1.25)",
        "discovery 3",
        "body.versions",
        "[{'groupVersion': 'policy/v1', 'version': 'v1'}]",
    ),
    ("policy/v1beta1 is not served any more (1.25)", "pdb-status 82, 83, 84", "status", "404 *"),
    ("documents of OpenAPI say that they are JSON", "discovery 10", "headers.Content-Type", "application/json"),
    ("OpenAPI v2 has shared parameters", "discovery 10", "body.parameters", "..."),
    (
        "another media type of OpenAPI in protobuf",
        "discovery 12",
        "headers.Content-Type",
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    ),
    (
        "the refusal says what representations there are",
        "discovery 13",
        "body.message",
        "406: Not Acceptable*Available representations: *",
    ),
)

NOT_EMBEDDED = (("OpenAPI v2 is not served: clients of today take v3", "discovery 10, 12", "status", "404 *"),)

OTHER_CLUSTER = (
    ("pods get the service account of their namespace", "list-selectors 33", "body.items", "[]"),
    ("a controller has annotated the node, so the parent is there", "writes-patch 13", "status", "200"),
)

DIFFERENCES = tuple(
    Difference(side, *entry)
    for side, entries in (
        (Side.TODAY, OTHERWISE),
        (Side.STILL, NOT_YET),
        (Side.EMBEDDED, NOT_EMBEDDED),
        (Side.LIVE, OTHER_CLUSTER),
    )
    for entry in entries
)

LEFT_OUT = (
    LeftOut("live", "history is etcd's to compact, out of the suite's reach", "history-compacted 5-8"),
    LeftOut("live", "a volume controller writes claims, too: who is faster is chance", "volumes 16-21"),
    LeftOut(
        "live",
        "nodes without a kubelet are unreachable after 50 s, when a slow cluster is not done",
        "replica-set-release 68-146",
    ),
    LeftOut("live", "a node lifecycle controller owns taints, too", "writes-apply 2, 7, 9", "taints nodes"),
)
