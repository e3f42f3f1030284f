"""Release and return of a pod, as its object shows them."""

from __future__ import annotations

import pytest

from gracectl.model import names
from gracectl.model.pod import LONGEST_RELEASE, Pod
from gracectl.policy.release import Release, release_of, release_patch, return_patch

DEPLOYMENT = Release(1767225600.0, "Deployment", "web", "pod-template-hash", "6d4cf56db6")


def released(release: Release, text: str | None = None) -> Pod:
    annotations = {names.RELEASED_FROM: release.text if text is None else text}
    return Pod("shop", "web-1", "u1", labels={release.label: names.RELEASED}, annotations=annotations)


@pytest.mark.parametrize(
    ("release", "replica_set"),
    [
        (DEPLOYMENT, "web-6d4cf56db6"),
        (Release(0.0, "Rollout", "web", "rollouts-pod-template-hash", "abc"), "web-abc"),
        (Release(0.0, "ReplicaSet", "web", "gracectl.io/replace-first", ""), "web"),
    ],
)
def test_a_released_pod_says_what_it_was_released_from(release: Release, replica_set: str) -> None:
    assert release_of(released(release)) == release
    assert release.replica_set == replica_set


def test_the_annotation_is_for_people_too() -> None:
    assert DEPLOYMENT.text == "2026-01-01T00:00:00Z Deployment/web pod-template-hash 6d4cf56db6"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "6d4cf56db6",
        "yesterday Deployment/web pod-template-hash 6d4cf56db6",
        "2026-01-01T00:00:00Z Deployment/web app web",
        f"2026-01-01T00:00:00Z Deployment/web pod-template-hash {'a' * LONGEST_RELEASE}",
        "2026-01-01T00:00:00Z Deployment/web pod-template-hash a,app=other",
        f"2026-01-01T00:00:00Z Deployment/web pod-template-hash {'a' * 64}",
        "2026-01-01T00:00:00Z Deployment/../web pod-template-hash a",
        "2026-01-01T00:00:00Z Deployment/Web pod-template-hash a",
    ],
)
def test_an_annotation_that_is_not_ours_releases_nothing(text: str) -> None:
    assert release_of(released(DEPLOYMENT, text)) is None


def test_a_pod_with_its_label_is_not_released() -> None:
    pod = Pod("a", "b", "u", labels={"pod-template-hash": "x"}, annotations={names.RELEASED_FROM: DEPLOYMENT.text})
    assert release_of(pod) is None


def test_a_return_restores_the_label_and_removes_the_annotation() -> None:
    assert release_patch(DEPLOYMENT) == {
        "metadata": {
            "labels": {"pod-template-hash": "released"},
            "annotations": {names.RELEASED_FROM: DEPLOYMENT.text, names.REPLACEMENT_FAILED: None},
        }
    }
    assert return_patch(DEPLOYMENT, failed_at=60.0) == {
        "metadata": {
            "labels": {"pod-template-hash": "6d4cf56db6"},
            "annotations": {names.RELEASED_FROM: None, names.REPLACEMENT_FAILED: "1970-01-01T00:01:00Z"},
        }
    }
