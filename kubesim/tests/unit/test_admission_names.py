"""Webhooks that meddle with names."""

from __future__ import annotations

import pytest
from kubesim_support.webhooks import CONFIGMAPS, Stage, config_map

pytestmark = pytest.mark.anyio


async def test_no_webhook_renames_what_is_updated() -> None:
    stage = Stage()
    await stage.create(CONFIGMAPS, config_map("one"))
    hook = await stage.hook("mutating")
    hook.patches({"op": "replace", "path": "/metadata/name", "value": "two"})
    refused = await stage.call("PUT", f"{CONFIGMAPS}/one", config_map("one", a="b"))
    assert refused.status == 422
    assert refused.body["details"]["causes"][0]["field"] == "metadata.name"
    names = [each["metadata"]["name"] for each in (await stage.get(CONFIGMAPS))["items"]]
    assert names == ["one"]
