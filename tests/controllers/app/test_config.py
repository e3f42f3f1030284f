"""The settings file: every default pinned, and a message with field and remedy for whatever does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.settings import refused

from gracectl.config import ConfigError, Settings, load_settings
from gracectl.model import names
from gracectl.policy.settings import DrainSettings, PolicySettings, ProtectionSettings

DEFAULTS: dict[str, Any] = {
    "clusterName": "",
    "shutdownGracePeriod": None,
    "shutdownGracePeriodCriticalPods": None,
    "shutdownGracePeriodByPodPriority": None,
    "nodeSelector": None,
    "finalizer": "auto",
    "nodeGroups": (),
    "drain": {"minimumSeconds": 2.0},
    "protection": {"from": "creation", "maximumSeconds": None},
    "health": {
        "enabled": None,
        "conditions": (
            {"type": "Ready", "status": "False", "tolerationSeconds": 900.0},
            {"type": "Ready", "status": "Unknown", "tolerationSeconds": 900.0},
        ),
        "maximumUnhealthy": "20%",
        "force": False,
    },
    "replaceFirst": {"namespaceSelector": None, "podSelector": None, "patience": "10m", "always": False},
    "voluntary": {"maximumAtOnce": "10%", "waitForReplacement": True, "pendingPatience": "5m", "windows": ()},
    "interruption": {"sources": (), "leadTime": "15m"},
    "eviction": {
        "qps": 100.0,
        "burst": 100,
        "maxInFlight": 50,
        "backoffInitialSeconds": 0.1,
        "backoffMaximumSeconds": 10.0,
        "misconfiguredRetrySeconds": 60.0,
        "probeSeconds": 60.0,
        "settleSeconds": 60.0,
    },
    "instance": {
        "pollInitialSeconds": 0.5,
        "pollMaximumSeconds": 10.0,
        "retryInitialSeconds": 1.0,
        "retryMaximumSeconds": 300.0,
    },
    "provider": {"name": "none", "options": {}},
    "client": {"requestTimeoutSeconds": 30.0, "maximumClockOffsetSeconds": 300.0},
    "leaderElection": {
        "enabled": True,
        "namespace": "",
        "name": "gracectl",
        "leaseDurationSeconds": 15,
        "renewDeadlineSeconds": 10.0,
        "retryPeriodSeconds": 2.0,
    },
    "assist": {"karpenter": False, "clusterAutoscaler": False, "clusterAPI": False},
    "plan": {"replacementSeconds": 30.0},
    "log": {"format": "auto", "level": "info"},
    "metrics": {"listen": "", "labels": ()},
    "probes": {"listen": ""},
    "tracing": {"url": ""},
    "admission": {
        "listen": "",
        "service": None,
        "url": "",
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "certificates": {"certFile": "", "keyFile": "", "caFile": "", "injectFrom": ""},
        "clientCertificates": {"caFile": "", "names": ()},
        "secret": "gracectl-webhook-tls",
        "name": "gracectl",
    },
    "notifications": {
        "urlFile": "",
        "events": ("interruption", "drain-stuck", "deadline-missed", "breaker-open", "rotation-finished"),
        "interval": "5m",
        "text": "$cluster: $event: $object: $message",
    },
    "agent": {
        "busAddress": "",
        "logindDropInDirectory": "/etc/systemd/logind.conf.d",
        "impersonateNode": False,
        "interruptionSource": "none",
        "metadataUrl": "http://169.254.169.254",
        "approveEvents": False,
    },
    "featureGates": {"PodPriorityBasedGracefulNodeShutdown": True},
}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("{}", ""),
        ("clusterName: prod", "prod"),
        ("provider: {name: clusterapi, options: {clusterName: workload-1}}", "workload-1"),
        ("{clusterName: prod, provider: {name: clusterapi, options: {clusterName: workload-1}}}", "prod"),
    ],
)
def test_a_cluster_has_one_name(settings_file: Path, document: str, name: str) -> None:
    settings_file.write_text(document)
    assert load_settings(settings_file).cluster == name


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_every_default_is_pinned() -> None:
    assert msgspec.to_builtins(Settings()) == DEFAULTS
    assert load_settings(None) == Settings()


@pytest.mark.parametrize("text", ["", "---\n", "# nothing but a comment\n", "{}"])
def test_an_empty_file_means_the_defaults(settings_file: Path, text: str) -> None:
    settings_file.write_text(text)
    assert load_settings(settings_file) == Settings()


def test_a_section_may_build_on_another(settings_file: Path) -> None:
    settings_file.write_text("drain: {minimumSeconds: 1}\nprotection: {<<: {maximumSeconds: 5}, maximumSeconds: 7}")
    settings = load_settings(settings_file)
    assert (settings.drain.minimum_seconds, settings.protection.maximum_seconds) == (1.0, 7.0)


def test_the_rooms_get_what_is_theirs(settings_file: Path) -> None:
    settings_file.write_text(
        """
        nodeSelector:
          matchLabels: {pool: workers}
          matchExpressions:
            - {key: zone, operator: In, values: [a, b]}
        drain: {minimumSeconds: 5}
        protection: {from: start, maximumSeconds: 3600}
        instance: {retryMaximumSeconds: 60}
        eviction: {qps: 0}
        """
    )
    settings = load_settings(settings_file)
    termination = settings.termination
    assert termination.policy == PolicySettings(
        drain=DrainSettings(minimum_seconds=5.0),
        protection=ProtectionSettings(reference="start", maximum_seconds=3600.0),
        terminates_instances=False,
    )
    assert termination.instance.retry_maximum_seconds == 60.0
    assert termination.instance.retry_initial_seconds == 1.0
    assert settings.eviction.qps == 0.0
    assert termination.managed.selector.matches({"pool": "workers", "zone": "b"})
    assert not termination.managed.selector.matches({"pool": "workers", "zone": "c"})


def test_two_forms_of_waves_at_once_are_refused(settings_file: Path) -> None:
    both = "shutdownGracePeriod: 5m\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 60}]"
    assert refused(settings_file, both).startswith(
        "shutdownGracePeriodByPodPriority: conflicts with shutdownGracePeriod"
    )


def test_left_out_the_selector_takes_all_but_the_control_plane() -> None:
    selector = Settings().termination.managed.selector
    assert selector.matches({})
    assert not selector.matches({names.CONTROL_PLANE_ROLE: ""})


def test_an_empty_selector_takes_every_node(settings_file: Path) -> None:
    settings_file.write_text("nodeSelector: {}")
    assert load_settings(settings_file).termination.managed.selector.matches({names.CONTROL_PLANE_ROLE: ""})


def test_what_is_no_namespace_is_refused(settings_file: Path) -> None:
    assert refused(settings_file, "leaderElection: {namespace: Wrong}").startswith("leaderElection.namespace: ")


# A list of one word is what that one wants.
@pytest.mark.parametrize("section", ["", *(name for name, value in DEFAULTS.items() if isinstance(value, dict))])
def test_an_unknown_field_is_named_with_the_remedy(settings_file: Path, section: str) -> None:
    message = refused(settings_file, f"{section}: {{evcition: 1}}" if section else "evcition: 1")
    assert message.startswith(f"{section or 'the document'}: ")
    assert "`evcition`" in message
    assert "correct its name" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eviction: {qps: .inf}", "eviction.qps: Expected `float` <= 1000000000.0"),
        ("eviction: {qps: 1}\neviction: {burst: 2}", "is not YAML: found 'eviction' twice"),
        ("protection: {from: birth}", "protection.from: Invalid enum value 'birth'; choose one of creation, start"),
        ("- a\n- b", "the document: Expected `object`, got `array`"),
        ("nodeSelector: {matchLabel: {a: b}}", "nodeSelector: Object contains unknown field `matchLabel`"),
        (
            "nodeSelector: {matchExpressions: [{key: a, operator: In}]}",
            "nodeSelector: operator In on label 'a' needs at least one value",
        ),
        (
            "nodeSelector: {matchExpressions: [{key: a, operator: Near}]}",
            "nodeSelector: 'Near' is no selector operator",
        ),
        ("health: {maximumUnhealthy: 120%}", "health.maximumUnhealthy: '120%' is more than 100%; to end"),
        (
            "instance: {retryInitialSeconds: 400}",
            "instance.retryInitialSeconds: 400 is more than instance.retryMaximumSeconds, which is 300",
        ),
        (
            "eviction: {backoffMaximumSeconds: 0.05}",
            "eviction.backoffInitialSeconds: 0.1 is more than eviction.backoffM",
        ),
        ("health: {maximumUnhealthy: -5%}", "health.maximumUnhealthy: '-5%' is negative"),
        ("health: {maximumUnhealthy: many}", "health.maximumUnhealthy: 'many' is not an integer or a percentage"),
        ("voluntary: {maximumAtOnce: 0%}", "voluntary.maximumAtOnce: '0%' lets no termination begin; give at least 1"),
        (
            "voluntary: {maximumAtOnce: 101%}",
            "voluntary.maximumAtOnce: '101%' is more than 100%; to terminate all",
        ),
        ("voluntary: {maximumAtOnce: few}", "voluntary.maximumAtOnce: 'few' is not an integer or a percentage"),
        ("replaceFirst: {patience: soon}", "replaceFirst.patience: 'soon' is no duration"),
        ("replaceFirst: {patience: 0s}", "replaceFirst.patience: '0s' is not positive; give a duration such as 10m"),
        (
            "replaceFirst: {podSelector: {matchExpressions: [{key: a, operator: In}]}}",
            "replaceFirst.podSelector: ",
        ),
        ("voluntary: {pendingPatience: soon}", "voluntary.pendingPatience: 'soon' is no duration"),
        ("voluntary: {pendingPatience: -5m}", "voluntary.pendingPatience: '-5m' is negative; give a duration such as"),
        (
            "voluntary: {windows: [{schedule: 0 25 * * *, duration: 1h}]}",
            "voluntary.windows[0].schedule: '0 25 * * *' is no cron schedule: bad hour; give minute, hour, day of",
        ),
        ("nodeGroups: [{selector: {}, expireAfter: 30d}]", "nodeGroups[0].expireAfter: '30d' is no duration"),
        (
            "nodeGroups: [{selector: {}, expireAfter: 0s}]",
            "nodeGroups[0].expireAfter: '0s' is not positive",
        ),
        (
            "nodeGroups: [{selector: {}, expireAfter: 1h, expireJitter: 2}]",
            "nodeGroups[0].expireJitter: 2.0 is not a percentage from 0% to 100% or a fraction from 0 to 1",
        ),
        (
            "health: {conditions: [{type: Ready, status: False, tolerationSeconds: 1}]}",
            "health.conditions[0].status: Expected `str`, got `bool` (false); put the word in quotes",
        ),
        (
            "health: {conditions: [{type: Ready, status: Bad, tolerationSeconds: 1}]}",
            "health.conditions[0].status: Invalid enum value 'Bad'; choose one of False, True, Unknown",
        ),
        ("health: {conditions: [{type: Ready, status: Unknown}]}", "health.conditions[0]: Object missing required"),
        ("leaderElection: {leaseDurationSeconds: 7.5}", "leaderElection.leaseDurationSeconds: Expected `int`"),
        (
            "leaderElection: {renewDeadlineSeconds: 15}",
            "leaderElection.renewDeadlineSeconds: 15 is not less than leaseDurationSeconds, which is 15; a leader must "
            "have stopped writing before another may begin: make it smaller",
        ),
        (
            "leaderElection: {retryPeriodSeconds: 8.5}",
            "leaderElection.retryPeriodSeconds: 8.5 leaves no time for a second try before renewDeadlineSeconds, which "
            "is 10; make it less than 8.33333",
        ),
        ("metrics: {listen: localhost}", "metrics.listen: 'localhost' is not an address such as 0.0.0.0:9090"),
        (
            "metrics: {listen: '::1:9090'}",
            "metrics.listen: '::1:9090' is not an address such as 0.0.0.0:9090, [::1]:9090",
        ),
        ("metrics: {listen: ':99999'}", "metrics.listen: ':99999' has port 99999; the highest is 65535"),
        ("probes: {listen: '8081'}", "probes.listen: '8081' is not an address such as 0.0.0.0:9090"),
    ],
)
def test_what_does_not_fit_is_named(settings_file: Path, text: str, message: str) -> None:
    assert refused(settings_file, text).startswith(message)


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\ta: 1", "!!python/object/apply:os.getcwd []", "a: \x00"])
def test_what_is_not_yaml_says_where(settings_file: Path, text: str) -> None:
    message = refused(settings_file, text)
    assert message.startswith("is not YAML: ")
    assert "line 1" in message or "position" in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file, reason in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            load_settings(file)
        assert str(caught.value) == f"settings file {file}: cannot be read: {reason}"


def test_a_file_that_is_not_text(settings_file: Path) -> None:
    settings_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_settings(settings_file)


@pytest.mark.parametrize("value", ["!!timestamp x", "!!float ''", "!!int ''", "!!bool zz"])
def test_a_value_that_is_not_of_its_tag_is_no_yaml(value: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"eviction: {{qps: {value}}}")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_settings(path)


@pytest.mark.parametrize("text", ["&a [*a]", "provider: {options: &a {b: [*a]}}", "provider: {options: {c: &a [*a]}}"])
def test_an_anchor_that_holds_itself_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is not YAML: an anchor \(&\) contains itself"):
        load_settings(path)


def test_an_anchor_may_be_used_many_times(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("provider: {options: {a: &a {b: 1}, c: *a, d: {<<: *a}}}")
    assert load_settings(path).provider.options == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1}}
