"""Settings of leader election. Defaults are client-go's, pinned by a test."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gracectl.kube.leader.election import JITTER

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$",
        description='a name has small letters, digits, "-" and ".", begins and ends with a letter or digit, and is no '
        "longer than 253",
    ),
]
_NAMESPACE: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_OF_NAMESPACES: Final = (
    'a namespace has small letters, digits and "-", begins and ends with a letter or digit, and is no longer than 63'
)
Namespace = Annotated[str, msgspec.Meta(pattern=f"^{_NAMESPACE}$", description=_OF_NAMESPACES)]
NamespaceIfAny = Annotated[str, msgspec.Meta(pattern=f"^({_NAMESPACE})?$", description=_OF_NAMESPACES)]
"""Or "", where none is named."""

LEASE_NAME: Final = "gracectl"

DEFAULT_NAMESPACE: Final = "kube-system"
"""Namespace of the Lease outside a pod, if the settings name none."""


class LeaderElectionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`namespace` "" is that of the pod itself; outside a pod, kube-system."""

    enabled: bool = True
    namespace: NamespaceIfAny = ""
    name: Name = LEASE_NAME
    lease_duration_seconds: Annotated[int, msgspec.Meta(ge=1, le=600)] = 15
    """Time that standbys wait after the last observed renewal."""
    renew_deadline_seconds: Seconds = 10.0
    """A leader writes nothing more this long after the last renewal that succeeded."""
    retry_period_seconds: Seconds = 2.0
    """Between two renewals; a standby that sees none for up to 2.2 times as long reads the Lease."""

    def validate(self) -> None:
        """Raises ValueError, with the field in front, for times that do not fit together."""
        duration, deadline, period = self.lease_duration_seconds, self.renew_deadline_seconds, self.retry_period_seconds
        if deadline >= duration:
            raise ValueError(
                f"renewDeadlineSeconds: {deadline:g} is not less than leaseDurationSeconds, which is {duration}; a "
                "leader must have stopped writing before another may begin: make it smaller, two thirds are usual"
            )
        if deadline <= JITTER * period:
            raise ValueError(
                f"retryPeriodSeconds: {period:g} leaves no time for a second try before renewDeadlineSeconds, which is "
                f"{deadline:g}; make it less than {deadline / JITTER:g}, a fifth of it is usual"
            )
