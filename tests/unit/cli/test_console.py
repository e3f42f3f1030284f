"""Where commands print: terminals with their width, files without any."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import UNLIMITED, print_on, stdout_console, text_of


def a_file(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What is printed from now on goes to a file of an old kind: it knows the characters of Latin-1 only."""
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="latin-1", write_through=True))
    return file


def test_a_file_has_lines_without_end_and_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    a_file(monkeypatch)
    monkeypatch.delenv("COLUMNS", raising=False)
    console = stdout_console()
    assert (console.width, console.is_terminal) == (UNLIMITED, False)
    assert text_of(console, Text("x" * 5000, "red")) == "x" * 5000


def test_an_explicit_number_of_columns_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    a_file(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    assert stdout_console().width == 40


def test_what_a_stream_does_not_know_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(monkeypatch)
    print_on(stdout_console(), "… ä")
    assert file.getvalue() == b"? \xe4\n"


def test_tables_leave_no_spaces_at_the_ends_of_lines() -> None:
    table = Table.grid()
    table.add_column(width=10)
    table.add_column(width=10)
    table.add_row("a", "b")
    assert text_of(stdout_console(), table) == "a         b"


def test_a_text_is_printed_as_it_is() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard")
    assert text_of(console, "cluster: [bold]a[/bold] (https://10.0.0.1:6443)") == (
        "cluster: [bold]a[/bold] (https://10.0.0.1:6443)"
    )
