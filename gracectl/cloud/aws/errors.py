"""What AWS says when it does not do what it is asked to, in the words of gracectl.

Three kinds: it is gone (done), it did not work this time (again), or somebody has to act; then the message says how.
"""

from __future__ import annotations

from typing import Final

import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    InvalidRegionError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    UnknownEndpointError,
)
from botocore.parsers import ResponseParserError

from gracectl.cloud.provider import InstanceGone, ProviderError, ProviderRefused, ProviderUnavailable

FAULTS: Final = (BotoCoreError, ClientError, ResponseParserError, OSError, ValueError, LookupError)
"""What a call of botocore raises: ValueError for an address that is none, OSError for files of credentials, LookupError
for an answer that is XML, but not of AWS."""

THROTTLED: Final = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestThrottled",
        "RequestThrottledException",
        "ResourceContention",
        "ScalingActivityInProgress",
    }
)
DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
UNKNOWN_KEY: Final = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "OptInRequired"}
)
NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoAuthTokenError, SSOError)
NO_ADDRESS: Final = (InvalidRegionError, UnknownEndpointError, ValueError)

GIVE_CREDENTIALS: Final = (
    "give the ServiceAccount of gracectl a role (EKS Pod Identity or IRSA), or see provider.options.profile"
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call: `ec2`, `us-west-2`, `TerminateInstances`, and the instances that it is for."""

    service: str
    region: str
    operation: str
    instances: tuple[str, ...] = ()

    def __str__(self) -> str:
        about = f" of {', '.join(self.instances)}" if 0 < len(self.instances) <= 3 else ""
        return f"{self.service}:{self.operation}{about} in {self.region}"


class InvalidRequest(ProviderRefused):
    """What the service does not do with this instance as it is; `reason` is its own word, `message` ours."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, "see docs/aws.md")
        self.reason = reason
        self.message = message


def translated(error: Exception, call: Call) -> ProviderError:
    """The word of gracectl for one of FAULTS."""
    if isinstance(error, ClientError):
        return _answered(error, call)
    reason = str(error) or type(error).__name__
    if isinstance(error, NO_CREDENTIALS):
        return ProviderRefused(f"{call}: no credentials: {reason}", GIVE_CREDENTIALS)
    if isinstance(error, (HTTPClientError, ConnectionError)):
        return ProviderUnavailable(f"{call}: AWS does not answer: {reason}")
    if isinstance(error, NO_ADDRESS):
        remedy = "check provider.options.endpointUrl and provider.options.region"
        return ProviderRefused(f"{call}: it has no address: {reason}", remedy)
    if isinstance(error, (ResponseParserError, LookupError)):
        return ProviderUnavailable(f"{call}: the answer is not one of AWS: {reason}")
    return ProviderUnavailable(f"{call}: {reason}")


def _answered(error: ClientError, call: Call) -> ProviderError:
    answer = error.response.get("Error", {})
    code = str(answer.get("Code", ""))
    # What follows is for sts:DecodeAuthorizationMessage, and a thousand characters long.
    said = str(answer.get("Message", "")).partition(" Encoded authorization failure message:")[0]
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{call}: {code}: {said}"
    if code.startswith("InvalidInstanceID.NotFound"):
        return InstanceGone(f"{call}: there is no such instance: {said}")
    if code in DENIED:
        return _denied(error, call, message)
    if code in UNKNOWN_KEY:
        return ProviderRefused(message, f"AWS does not take these credentials: {GIVE_CREDENTIALS}")
    if code == "OperationNotPermitted":
        protected = "disableApiTermination" in said
        return ProviderRefused(message, _unprotect(call) if protected else "end it where it is managed")
    if code.startswith("InvalidInstanceID"):
        return ProviderRefused(message, "check spec.providerID of the node")
    if code == "ValidationError":
        return InvalidRequest(said, message)
    if code in EXPIRED:
        return ProviderUnavailable(f"{message}; new credentials are awaited (or the clock of this machine is wrong)")
    if code in THROTTLED or status == 429:
        return ProviderUnavailable(f"{message} (throttled)")
    return ProviderUnavailable(message)


def _denied(error: ClientError, call: Call, message: str) -> ProviderRefused:
    if error.operation_name.startswith("AssumeRole"):  # which botocore does by itself, for the call
        remedy = f"let the trust policy of the role allow sts:{error.operation_name} to gracectl's ServiceAccount"
        return ProviderRefused(message, remedy)
    return ProviderRefused(message, f"allow {call.service}:{call.operation} in the IAM policy of gracectl's role")


def _unprotect(call: Call) -> str:
    commands = (
        f"aws ec2 modify-instance-attribute --region {call.region} --instance-id {name} --no-disable-api-termination"
        for name in call.instances
    )
    return f"take its termination protection off: {'; '.join(commands)}"
