"""Webhook configurations: what may be said in them, and what is filled in. Wording: a real server, 1.33."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim_support.caller import STRATEGIC
from kubesim_support.webhooks import CONFIGURATIONS, NAME, Stage, configuration, rule, webhook

pytestmark = pytest.mark.anyio

MUTATING = CONFIGURATIONS.format("mutating")
MISSING = object()
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("no name", {"name": ""}, ["name: Required value"]),
    (
        "a name of two parts",
        {"name": "a.b"},
        ['name: Invalid value: "a.b": should be a domain with at least three segments separated by dots'],
    ),
    ("a bad name", {"name": "A_b"}, [f'name: Invalid value: "A_b": {SUBDOMAIN}']),
    (
        "url and service",
        {"clientConfig": {"url": "https://x", "service": {"name": "a", "namespace": "b"}}},
        ["clientConfig: Required value: exactly one of url or service is required"],
    ),
    (
        "neither",
        {"clientConfig": {}},
        ["clientConfig: Required value: exactly one of url or service is required"],
    ),
    (
        "all that a URL must not have",
        {"clientConfig": {"url": "http://u:p@x/y?z=1#f"}},
        [
            "clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: "
            "https://host[/path]",
            'clientConfig.url: Invalid value: "u:p": user information is not permitted in the URL',
            'clientConfig.url: Invalid value: "f": fragments are not permitted in the URL',
            'clientConfig.url: Invalid value: "z=1": query parameters are not permitted in the URL',
        ],
    ),
    (
        "no host",
        {"clientConfig": {"url": "https:///x"}},
        ['clientConfig.url: Invalid value: "": host must be specified; desired format: https://host[/path]'],
    ),
    (
        "no URL",
        {"clientConfig": {"url": "https://a b"}},
        [
            'clientConfig.url: Required value: url must be a valid URL: parse "https://a b": invalid character " " in '
            "host name; desired format: https://host[/path]"
        ],
    ),
    (
        "all that a service must not be",
        {"clientConfig": {"service": {"name": "", "namespace": "", "path": "x//y", "port": 0}}},
        [
            "clientConfig.service.name: Required value: service name is required",
            "clientConfig.service.namespace: Required value: service namespace is required",
            "clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
            "clientConfig.service.path: Invalid value: \"x//y\": must start with a '/'",
            'clientConfig.service.path: Invalid value: "x//y": segment[0] may not be empty',
            'clientConfig.service.path: Invalid value: "x//y": segment[1] may not be empty',
        ],
    ),
    (
        "too short",
        {"timeoutSeconds": 0},
        ["timeoutSeconds: Invalid value: 0: the timeout value must be between 1 and 30 seconds"],
    ),
    (
        "too long",
        {"timeoutSeconds": 31},
        ["timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"],
    ),
    (
        "side effects unsaid",
        {"sideEffects": MISSING},
        ["sideEffects: Required value: must specify one of None, NoneOnDryRun"],
    ),
    (
        "side effects",
        {"sideEffects": "Some"},
        ['sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"'],
    ),
    (
        "failure policy",
        {"failurePolicy": "No"},
        ['failurePolicy: Unsupported value: "No": supported values: "Fail", "Ignore"'],
    ),
    (
        "match policy",
        {"matchPolicy": "No"},
        ['matchPolicy: Unsupported value: "No": supported values: "Equivalent", "Exact"'],
    ),
    (
        "reinvocation policy",
        {"reinvocationPolicy": "No"},
        ['reinvocationPolicy: Unsupported value: "No": supported values: "IfNeeded", "Never"'],
    ),
    (
        "no review version",
        {"admissionReviewVersions": MISSING},
        ["admissionReviewVersions: Required value: must specify one of v1, v1beta1"],
    ),
    (
        "unknown review versions",
        {"admissionReviewVersions": ["v2", "v2"]},
        [
            'admissionReviewVersions[1]: Invalid value: "v2": duplicate version',
            'admissionReviewVersions: Invalid value: []string{"v2", "v2"}: must include at least one of v1, v1beta1',
        ],
    ),
    (
        "operations",
        {"rules": [rule(operations=("CREATE", "*", "FOO"))]},
        [
            'rules[0].operations: Invalid value: []admissionregistration.OperationType{"CREATE", "*", "FOO"}: if '
            "'*' is present, must not specify other operations",
            'rules[0].operations[2]: Unsupported value: "FOO": supported values: "*", "CONNECT", "CREATE", "DELETE", '
            '"UPDATE"',
        ],
    ),
    (
        "nothing in a rule",
        {"rules": [{"operations": [], "apiGroups": [], "apiVersions": [], "resources": []}]},
        [f"rules[0].{field}: Required value" for field in ("operations", "apiGroups", "apiVersions", "resources")],
    ),
    (
        "groups",
        {"rules": [rule(groups=("a", "*"))]},
        [
            'rules[0].apiGroups: Invalid value: []string{"a", "*"}: if \'*\' is present, must not specify other API '
            "groups"
        ],
    ),
    (
        "versions",
        {"rules": [rule(apiVersions=["v1", "*", ""])]},
        [
            'rules[0].apiVersions: Invalid value: []string{"v1", "*", ""}: if \'*\' is present, must not specify '
            "other API versions",
            "rules[0].apiVersions[2]: Required value",
        ],
    ),
    (
        "everything and one",
        {"rules": [rule("*/*", "pods")]},
        [
            'rules[0].resources: Invalid value: []string{"*/*", "pods"}: if \'*/*\' is present, must not specify '
            "other resources"
        ],
    ),
    (
        "scope",
        {"rules": [rule(scope="Odd")]},
        ['rules[0].scope: Unsupported value: "Odd": supported values: "*", "Cluster", "Namespaced"'],
    ),
    (
        "a selector",
        {
            "objectSelector": {
                "matchLabels": {"a": "c d"},
                "matchExpressions": [
                    {"key": "a", "operator": "In"},
                    {"key": "b", "operator": "Exists", "values": ["x"]},
                    {"key": "c", "operator": "Odd"},
                    {"key": "d", "operator": "In", "values": ["a b"]},
                ],
            }
        },
        [
            f'objectSelector.matchLabels: Invalid value: "c d": {VALUE}',
            "objectSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or "
            "'NotIn'",
            "objectSelector.matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or "
            "'DoesNotExist'",
            'objectSelector.matchExpressions[2].operator: Invalid value: "Odd": not a valid selector operator',
            f'objectSelector.matchExpressions[3].values[0]: Invalid value: "a b": {VALUE}',
        ],
    ),
]


@pytest.mark.parametrize(("changed", "faults"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
async def test_what_must_not_be_said_is_refused(changed: dict[str, Any], faults: list[str]) -> None:
    raw = {key: value for key, value in {**webhook(), **changed}.items() if value is not MISSING}
    response = await Stage().call("POST", MUTATING, configuration("mutating", raw))
    assert response.status == 422, response.body
    causes = response.body["details"]["causes"]
    assert [f"{cause['field']}: {cause['message']}" for cause in causes] == [f"webhooks[0].{fault}" for fault in faults]


async def test_two_webhooks_of_one_name_are_refused() -> None:
    response = await Stage().call("POST", MUTATING, configuration("mutating", webhook(), webhook()))
    assert response.body["message"] == (
        'MutatingWebhookConfiguration.admissionregistration.k8s.io "rec" is invalid: webhooks[1].name: Duplicate value:'
        f' "{NAME}"'
    )


async def test_defaults_are_filled_in() -> None:
    stage = Stage()
    raw = webhook(clientConfig={"service": {"name": "s", "namespace": "n"}})
    [filled] = (await stage.configure("mutating", raw))["webhooks"]
    assert filled == {
        **raw,
        "clientConfig": {"service": {"name": "s", "namespace": "n", "port": 443}},
        "rules": [{**rule(), "scope": "*"}],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
        "reinvocationPolicy": "Never",
    }
    [filled] = (await stage.configure("validating", raw))["webhooks"]
    assert "reinvocationPolicy" not in filled


async def test_a_generation_counts_changes_of_the_webhooks_which_merge_by_name() -> None:
    stage = Stage()
    await stage.configure("mutating", webhook(), webhook(name="b.rec.example"))
    change = {"webhooks": [{"name": "b.rec.example", "timeoutSeconds": 5}]}
    changed = await stage.patch(f"{MUTATING}/rec", change, STRATEGIC)
    assert changed["metadata"]["generation"] == 2
    assert {each["name"]: each["timeoutSeconds"] for each in changed["webhooks"]} == {NAME: 10, "b.rec.example": 5}
    labelled = await stage.patch(f"{MUTATING}/rec", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 2
