"""Where answers may deviate from the recordings, and why. Anything that is not listed here fails the suite, and so does
an entry that no longer holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatchcase

import msgspec
from conformance.placeholders import Deviation

from gracectl.sim.server.api import Json

Steps = Mapping[str, tuple[int, ...]]
"""By recording, the steps."""


class Side(Enum):
    """Whom a difference concerns, and so where it must be seen."""

    TODAY = "today's Kubernetes answers otherwise than 1.24, and so do we"
    STILL = "today's Kubernetes answers otherwise than 1.24, the embedded server still as recorded"
    EMBEDDED = "the embedded server does not do this"
    LIVE = "this cluster is set up otherwise than the recorder's was"


class Difference(msgspec.Struct, frozen=True):
    """At some steps something else is there. `at` and a text `here` are patterns (fnmatch)."""

    side: Side
    reason: str
    steps: Steps
    at: str
    here: Json = "*"

    def covers(self, recording: str, index: int, deviation: Deviation) -> bool:
        """Whether this is the difference that was found."""
        return index in self.steps.get(recording, ()) and matches(self.at, deviation.at) and self._is_here(deviation)

    def _is_here(self, deviation: Deviation) -> bool:
        if isinstance(self.here, str):
            return matches(self.here, str(deviation.here))
        return bool(deviation.here == self.here)

    def holds_on(self, target: str) -> bool:
        """Whether this target must show the difference."""
        return self.side in (Side.TODAY, Side.EMBEDDED if target == "embedded" else Side.LIVE) or (
            self.side is Side.STILL and target == "live"
        )


class LeftOut(msgspec.Struct, frozen=True):
    """Steps (none named: all) that cannot be run on a target."""

    target: str
    reason: str
    recording: str
    steps: tuple[int, ...] = ()


def matches(pattern: str, text: str) -> bool:
    """fnmatch in which brackets are ordinary characters."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def left_out_of(recording: str, count: int, target: str) -> dict[int, str]:
    """The steps of a recording (it has `count`) that are not run on a target, with the reasons."""
    found = {}
    for each in LEFT_OUT:
        if each.recording == recording and each.target == target:
            found.update(dict.fromkeys(each.steps or range(count), each.reason))
    return found


HASHES = "body.items[*].metadata.generateName"
POD_GENERATIONS = (
    3,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    17,
    20,
    22,
    25,
    26,
    29,
    30,
    31,
    35,
    36,
    39,
    43,
    44,
    47,
    48,
    51,
    55,
    56,
    59,
    62,
    65,
    66,
    68,
    71,
    75,
    79,
    81,
    82,
    83,
    84,
    90,
    93,
    94,
    95,
    99,
    100,
    101,
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(Side.TODAY, "another version of Kubernetes", {"discovery": (0,)}, "body.minor", "3?"),
    Difference(Side.TODAY, "another version of Kubernetes", {"discovery": (0,)}, "body.gitVersion", "v1.3*"),
    Difference(
        Side.TODAY,
        "beta versions of 1.24 are no longer served",
        {"discovery": (2,)},
        "body.groups[*].versions",
    ),
    Difference(
        Side.TODAY,
        "the hash in the names of a ReplicaSet's pods is one of Go's own structs, as this version has them",
        {
            "eviction-at-once": (3, 20),
            "node-drain-end-to-end": (5, 22),
            "pdb-status": (3, 27),
        },
        HASHES,
    ),
    Difference(
        Side.TODAY,
        "fields that nobody knows are warned of (fieldValidation=Warn is the default since 1.25)",
        {"crds": (3,), "custom-resources": (2, 22), "writes-patch": (18, 20)},
        "headers.Warning",
        '299 - "unknown field *',
    ),
    Difference(
        Side.TODAY,
        "a value of the wrong type has a reason of its own",
        {"crds": (6, 39, 40, 41)},
        "body.details.causes[*].reason",
        "FieldValueTypeInvalid",
    ),
    Difference(
        Side.TODAY,
        "an Unsupported value is told with its index in the list",
        {"crds": (20,)},
        "body.*",
        "*status.conditions[0].status*",
    ),
    Difference(
        Side.TODAY,
        "other words for a custom resource without kind",
        {"crds": (47,), "custom-resources": (4,)},
        "body.message",
        "the object provided is unrecognized (must be of type *): Object 'Kind' is missing in *",
    ),
    Difference(
        Side.TODAY,
        "fieldValidation=Strict is obeyed",
        {"writes-refused": (11,)},
        "status",
        "400 *strict decoding error: unknown field*",
    ),
    Difference(
        Side.TODAY,
        "reason, message and all but the series of an event may not change through events.k8s.io/v1",
        {"events": (16, 17)},
        "status",
        "422 *field is immutable",
    ),
    Difference(
        Side.TODAY, "so the event keeps its reason, and is found by it", {"events": (18,)}, "body.items", "['web.2']"
    ),
    Difference(
        Side.TODAY,
        "documents of OpenAPI say that they are JSON",
        {"discovery": (10,)},
        "headers.Content-Type",
        "application/json",
    ),
    Difference(
        Side.EMBEDDED,
        "OpenAPI tells of those kinds only that this server serves",
        {"discovery": (10,)},
        "body.paths.*",
    ),
    Difference(Side.TODAY, "there is OpenAPI v3", {"discovery": (11,)}, "status", "200"),
    Difference(
        Side.EMBEDDED,
        "OpenAPI comes as JSON only: whoever asks for protobuf alone falls back",
        {"discovery": (12,)},
        "status",
        "406",
    ),
    Difference(
        Side.TODAY,
        "all groups and their resources may be asked for at once",
        {"discovery": (14,)},
        "headers.Content-Type",
        "application/json;g=apidiscovery*",
    ),
    Difference(
        Side.TODAY,
        "all groups and their resources may be asked for at once",
        {"discovery": (14,)},
        "body.*",
        "*iscovery*",
    ),
    Difference(
        Side.EMBEDDED,
        "nobody is warned of a deprecated version",
        {"pdb-status": (82, 83)},
        "headers.Warning",
        "",
    ),
    Difference(
        Side.TODAY,
        "pods count generations (1.33): 1 at creation, 2 with the first DELETE",
        {
            "eviction": (5, 20, 73),
            "eviction-at-once": (3, 20),
            "eviction-of-another-uid": (9,),
            "node-drain-end-to-end": (5, 22),
            "pdb-status": (3, 27),
            "pod-deletion": POD_GENERATIONS,
            "tables": (8, 10),
            "writes-create": (1,),
        },
        "*.metadata.generation",
        "?",
    ),
    Difference(
        Side.TODAY,
        "an eviction first writes the condition DisruptionTarget into the pod (1.26)",
        {"node-drain-end-to-end": (14, 17, 20)},
        "facts.lives[1]",
        "['MODIFIED ready', 'MODIFIED terminating, grace 30', 'MODIFIED terminating, grace 0', 'DELETED']",
    ),
    Difference(
        Side.TODAY,
        "a grace period that is over when it is shortened ends now, not at an instant that has passed",
        {"pod-deletion": (32,)},
        "facts.shortened_to_1",
        3,
    ),
    Difference(
        Side.TODAY,
        "a resourceVersion that is no number is the client's fault",
        {"list-versions": (12,)},
        "status",
        "400 invalid resource version: *",
    ),
    Difference(
        Side.TODAY,
        "a watch may name a match if it asks for initial events",
        {"watch-versions": (6,)},
        "events[0].*message",
        "*resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
    Difference(
        Side.TODAY,
        "other words for a patch that cannot be read",
        {"writes-refused": (7, 8)},
        "body.message",
        "error decoding patch: *",
    ),
    Difference(
        Side.TODAY,
        "other words for an applied configuration without kind",
        {"writes-apply": (11,)},
        "body.message",
        "invalid object type: /, Kind=",
    ),
    Difference(
        Side.TODAY,
        "a volume says since when it is in its phase (1.31)",
        {"volumes": (1,)},
        "body.status.lastPhaseTransitionTime",
        "20*Z",
    ),
    Difference(
        Side.TODAY,
        "a resource list names the singular",
        {"discovery": (4, 5, 6)},
        "body.resources[*].singularName",
    ),
    Difference(
        Side.TODAY,
        "other words for pods whose controller is gone",
        {"pdb-status": (57,)},
        "body.status.conditions[0].message",
        "found no controllers for pod *",
    ),
    Difference(
        Side.TODAY,
        "the pod garbage collector writes a phase and a condition before it deletes (1.26)",
        {"nodes-orphans": (4,)},
        "events",
        "*'phase': 'Failed', 'conditions': *DeletionByPodGC*'type': 'DELETED'*",
    ),
    Difference(
        Side.TODAY,
        "unhealthyPodEvictionPolicy is known",
        {"pdb-status": (87,)},
        "body.spec.unhealthyPodEvictionPolicy",
        "AlwaysAllow",
    ),
    Difference(
        Side.STILL,
        "policy/v1beta1 is not served any more (1.25)",
        {"discovery": (3,)},
        "body.versions",
        "[{'groupVersion': 'policy/v1', 'version': 'v1'}]",
    ),
    Difference(
        Side.STILL,
        "policy/v1beta1 is not served any more (1.25)",
        {"pdb-status": (82, 83, 84)},
        "status",
        "404 *",
    ),
    Difference(
        Side.STILL,
        "the version says more of itself, the hash of a kind is another",
        {"discovery": (0, 5)},
        "body.*",
    ),
    Difference(
        Side.STILL,
        "OpenAPI v2 has shared parameters",
        {"discovery": (10,)},
        "body.parameters",
        "...",
    ),
    Difference(
        Side.STILL,
        "another media type of OpenAPI in protobuf",
        {"discovery": (12,)},
        "headers.Content-Type",
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    ),
    Difference(
        Side.STILL,
        "the refusal says what representations there are",
        {"discovery": (13,)},
        "body.message",
        "406: Not Acceptable*Available representations: *",
    ),
    Difference(
        Side.LIVE,
        "pods get the service account of their namespace",
        {"list-selectors": (33,)},
        "body.items",
        "[]",
    ),
    Difference(
        Side.LIVE,
        "a controller has annotated the node, so the parent is there",
        {"writes-patch": (13,)},
        "status",
        "200",
    ),
    Difference(
        Side.LIVE,
        "a message quotes the annotation that a controller has made",
        {"nodes-cordon": (9,)},
        "body.*message.quoted.metadata.annotations.node.alpha.kubernetes.io/ttl",
        "0",
    ),
)
LEFT_OUT: tuple[LeftOut, ...] = (
    LeftOut("live", "history is etcd's to compact, out of the suite's reach", "history-compacted", (5, 6, 7, 8)),
    LeftOut(
        "live", "a volume controller writes claims, too: who is faster is chance", "volumes", (16, 17, 18, 19, 20, 21)
    ),
)
