"""Ids of traces and spans: pinned, because processes of different versions must agree on them."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.telemetry.spans import Trace, span_attributes

UID, BEGAN = "0b1c7c2e-8d5f-4c4e-9a3e-6f1d2e3c4b5a", 1_767_225_600.0  # 2026-01-01T00:00:00Z
TRACE = Trace.of(UID, BEGAN)
IDS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)


class TestIds:
    """By hand, with coreutils:

    printf 'gracectl/termination/0b1c7c2e-8d5f-4c4e-9a3e-6f1d2e3c4b5a/2026-01-01T00:00:00Z' | sha256sum
    83e819ee2a34881a7c2fc529eca2d295 f9106e2217ffedd0 466550b74bc3b4ea

    printf '83e819ee2a34881a7c2fc529eca2d295/drain' | sha256sum; printf '83e819ee2a34881a7c2fc529eca2d295/wave/0' | …
    """

    def test_of_a_trace_and_its_root(self) -> None:
        assert TRACE.hex == "83e819ee2a34881a7c2fc529eca2d295"
        assert (TRACE.id, TRACE.root) == (0x83E819EE2A34881A7C2FC529ECA2D295, 0xF9106E2217FFEDD0)

    @pytest.mark.parametrize(("place", "id_"), [(("drain",), 0x35EF9054560CB2AE), (("wave", "0"), 0xA9A9F409DED1C18D)])
    def test_of_spans_that_have_children(self, place: tuple[str, ...], id_: int) -> None:
        assert TRACE.span(*place) == id_

    def test_parts_of_a_second_do_not_count_as_the_server_has_none(self) -> None:
        assert Trace.of(UID, BEGAN + 0.9) == TRACE
        assert Trace.of(UID, BEGAN + 1) != TRACE

    def test_another_object_has_another_trace(self) -> None:
        assert Trace.of(UID.replace("0", "1"), BEGAN).id != TRACE.id

    def test_none_is_zero_which_stands_for_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Nothing:
            def __init__(self, data: bytes) -> None:
                pass

            def digest(self) -> bytes:
                return bytes(32)

        monkeypatch.setattr(hashlib, "sha256", Nothing)
        trace = Trace.of(UID, BEGAN)
        assert (trace.id, trace.root, trace.span("drain")) == (1, 1, 1)


class TestTraceparent:
    def test_as_the_standard_has_it(self) -> None:
        ids = "83e819ee2a34881a7c2fc529eca2d295-f9106e2217ffedd0"
        assert TRACE.traceparent(is_sampled=True) == f"00-{ids}-01"
        assert TRACE.traceparent(is_sampled=False) == f"00-{ids}-00"

    @given(*IDS, st.booleans())
    def test_it_is_read_as_it_was_written(self, id_: int, root: int, is_sampled: bool) -> None:
        trace = Trace(id_, root)
        written = trace.traceparent(is_sampled=is_sampled)
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", written)
        assert Trace.read(written) == trace

    @pytest.mark.parametrize("written", [
        "",
        "00-83e819ee2a34881a7c2fc529eca2d295-f9106e2217ffedd0",
        "00-83E819EE2A34881A7C2FC529ECA2D295-f9106e2217ffedd0-01",
        "ff-83e819ee2a34881a7c2fc529eca2d295-f9106e2217ffedd0-01",
        "00-83e819ee2a34881a7c2fc529eca2d295-f9106e2217ffedd0-01-more",
        "00-83e819ee2a34881a7c2fc529eca2d295-f9106e2217ffedd0-01\n",
        f"00-{'0' * 32}-f9106e2217ffedd0-01",
        f"00-83e819ee2a34881a7c2fc529eca2d295-{'0' * 16}-01",
        "00-83e819ee2a34881a7c2fc529eca2d29٥-f9106e2217ffedd0-01",
    ])  # fmt: skip
    def test_what_is_none(self, written: str) -> None:
        assert Trace.read(written) is None

    @given(st.text() | st.from_regex(r"\A[0-9a-f]{2}-[0-9a-g]{31,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}\Z"))
    def test_garbage_is_none_or_a_trace_that_is_written_the_same(self, written: str) -> None:
        trace = Trace.read(written)
        if trace is not None:
            assert trace.traceparent(is_sampled=False)[:-2] == written[:-2]
            assert 0 not in (trace.id, trace.root)


def test_attributes_without_a_value_are_left_out_and_two_underscores_are_a_dot() -> None:
    attributes = span_attributes(
        k8s__pod__name="web-1", gracectl__late_seconds=0, gracectl__deadline=None, gracectl__rewritten=False
    )
    assert attributes == {"k8s.pod.name": "web-1", "gracectl.late_seconds": 0, "gracectl.rewritten": False}
