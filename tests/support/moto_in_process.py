"""Moto in the process of a test, without sockets and on the test's own clock: stories with AWS on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from unittest.mock import patch

import anyio.to_thread
import moto.sqs.models
from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import EndpointConnectionError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.test import Client

from gracectl.cloud.aws import clients
from gracectl.runtime.clock import Clock


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self) -> bytes:
        return self._content


class InProcessAws:
    """`is_away`: no request is answered. `requests`: instant and target of each that was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_away = False

    @cached_property
    def _client(self) -> Any:
        return Client(DomainDispatcherApplication(create_backend_app))

    def session(self, **options: Any) -> Any:
        return _Session(self)

    def answer(self, request: Any) -> AioAWSResponse:
        if self.is_away:
            raise EndpointConnectionError(endpoint_url=request.url)
        body = request.body if request.body is None or isinstance(request.body, bytes) else bytes(request.body, "utf-8")
        headers = {
            str(key): value.decode() if isinstance(value, bytes) else str(value)
            for key, value in request.headers.items()
        }
        response = self._client.open(request.url, method=request.method, headers=headers, data=body)
        return AioAWSResponse(request.url, response.status_code, dict(response.headers), _Body(response.get_data()))


class _Session:
    def __init__(self, aws: InProcessAws) -> None:
        self._aws = aws

    async def __aenter__(self) -> _Session:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def close(self) -> None:
        return None

    async def send(self, request: Any) -> AioAWSResponse:
        return self._aws.answer(request)


@contextmanager
def in_process(clock: Clock) -> Iterator[InProcessAws]:
    """Clients that are made meanwhile reach moto without sockets, and its queues run on this clock."""
    aws = InProcessAws(clock)

    async def run_sync(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    with (
        patch.object(clients, "BoundedSession", aws.session),
        patch.object(anyio.to_thread, "run_sync", run_sync),
        patch.object(moto.sqs.models, "unix_time_millis", lambda: clock.now() * 1000),
        patch.object(moto.sqs.models, "unix_time", lambda: clock.now()),
    ):
        yield aws
