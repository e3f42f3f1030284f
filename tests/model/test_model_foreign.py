"""Foreign text: what is taken out of it before people see it."""

from __future__ import annotations

import logging

import pytest

from gracectl.model.foreign import without_secrets
from gracectl.telemetry.logs import JsonFormatter, TextFormatter

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl-_x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("budget web is spent", "budget web is spent"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("authorization: basic dXNlcjpwYXNz==; more", "authorization: basic ***; more"),
        ("""{"Authorization": "Bearer abc.def"}""", """{"Authorization": "Bearer ***"}"""),
        (r"""{\"Authorization\": \"Bearer abc.def\"}""", r"""{\"Authorization\": \"Bearer ***\"}"""),
        ("invalid bearer 0123456789abcdef0 given", "invalid bearer *** given"),
        ("the bearer token is missing", "the bearer token is missing"),
        (f"token {JWT} has expired", "token *** has expired"),
        ("the authorization of worker-1 failed", "the authorization of worker-1 failed"),
    ],
)
def test_what_looks_like_credentials_is_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_line_of_a_log_shows_it_wherever_it_stands(formatter: logging.Formatter) -> None:
    try:
        raise ValueError(f"bad header Authorization: Bearer {JWT}")
    except ValueError as error:
        made = logging.LogRecord("x", logging.ERROR, __file__, 1, "refused %s", (JWT,), None)
        made.exc_info = (type(error), error, error.__traceback__)
        made.headers = {"Authorization": f"Bearer {JWT}"}
    line = formatter.format(made)
    assert "eyJ" not in line
    assert line.count("***") >= 3
