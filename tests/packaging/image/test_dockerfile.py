"""The Dockerfile, as far as it can be told without building it: what goes in, what it runs as, and how it is asked.

What a build makes of it has to be seen with an engine; docs/compose.md says what was.
"""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from support.servers import answering
from support.tools import BEFORE, BUILD, BUILD_KUBESIM, DEFAULT, FINAL, KUBESIM, ROOT, Instruction, the_only

from gracectl import __version__
from gracectl.cli.controller import controller
from gracectl.cli.root import root
from gracectl.config import load_settings

LISTS = ["build-requirements.txt", "requirements.txt"]


def ignored(path: Path) -> bool:
    """Whether .dockerignore keeps a file or folder from the builder."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    return not any(f"!{each}" in lines for each in (path, *path.parents))


@pytest.mark.parametrize("stage", [BUILD, BUILD_KUBESIM, FINAL])
def test_what_is_copied_is_there_and_not_ignored(stage: list[Instruction]) -> None:
    for instruction in stage:
        if instruction.word != "COPY" or "from" in instruction.flags:
            continue
        *sources, _ = instruction.rest.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert not ignored(Path(source))


def test_dependencies_are_installed_before_the_source_is_copied() -> None:
    steps = [one.rest for one in BUILD if one.word == "COPY"]
    assert steps == [
        "deploy/container/build-requirements.txt deploy/container/requirements.txt deploy/container/prune.py "
        "deploy/container/",
        # What pyproject.toml names: the readme, the license files, the package.
        "pyproject.toml README.md LICENSE NOTICE ./",
        "gracectl gracectl",
    ]
    source = next(number for number, one in enumerate(BUILD) if one.rest == steps[1])
    early, late = ([one.listed for one in part if one.word == "RUN"] for part in (BUILD[:source], BUILD[source:]))
    assert [run[-1] for run in early if "--requirement" in run] == [f"deploy/container/{name}" for name in LISTS]
    assert [run[-1] for run in late if "pip" in run] == [".", "gracectl[agent,aws]"]


@pytest.mark.parametrize("stage", [BUILD, BUILD_KUBESIM])
def test_nothing_is_downloaded_but_what_has_a_hash(stage: list[Instruction]) -> None:
    for command in (one.listed for one in stage if one.word == "RUN" and {"wheel", "install"} & set(one.listed)):
        assert any(
            flags <= set(command)
            for flags in (
                {"--require-hashes", "--no-deps", "--only-binary"},
                {"--no-build-isolation", "--no-deps"},
                {"--no-index", "--find-links"},
            )
        )


def test_nothing_of_the_first_stage_comes_along_but_the_environment() -> None:
    taken = [one.rest for one in FINAL if one.word == "COPY" and one.flags.get("from") == "build"]
    assert taken == ["/opt/gracectl /opt/gracectl"]


def test_only_the_image_of_the_simulated_cluster_has_kubesim() -> None:
    assert [one.rest for one in DEFAULT] == ["controller"]
    assert FINAL[0].rest.endswith(" AS controller")
    assert not [one.rest for one in [*BUILD, *FINAL] if "kubesim" in one.rest]
    assert KUBESIM[0].rest == "controller AS kubesim"
    assert the_only(KUBESIM, "COPY").flags == {"from": "build-kubesim"}
    assert BUILD_KUBESIM[0].rest == "build AS build-kubesim"
    assert the_only(BUILD_KUBESIM, "COPY").rest == "kubesim kubesim"


def test_no_shell_anywhere() -> None:
    for instruction in [*BUILD, *BUILD_KUBESIM, *FINAL, *KUBESIM]:
        if instruction.word in {"RUN", "ENTRYPOINT", "CMD"}:
            assert instruction.listed


def test_both_stages_have_the_same_pinned_python() -> None:
    tag = the_only(BEFORE, "ARG").rest
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-trixie@sha256:[0-9a-f]{64}", tag)
    assert [stage[0].rest.split()[0] for stage in (BUILD, FINAL)] == ["python:${PYTHON}"] * 2


def test_it_runs_as_a_number_that_is_not_root() -> None:
    user, _, group = the_only(FINAL, "USER").rest.partition(":")
    assert int(user) > 1000
    assert int(group) > 1000


def test_the_label_tells_the_version() -> None:
    assert f"VERSION={__version__}" in [one.rest for one in FINAL if one.word == "ARG"]


def test_it_starts_the_controller_with_the_settings_that_are_copied() -> None:
    assert the_only(FINAL, "ENTRYPOINT").listed == ["gracectl"]
    command, *arguments = the_only(FINAL, "CMD").listed
    assert command == controller.name
    context = controller.make_context(command, arguments, **root.context_settings)
    where = {one.rest.split()[-1]: one.rest.split()[0] for one in FINAL if one.word == "COPY"}
    settings = load_settings(ROOT / where[str(context.params["config"])])
    assert settings.log.format == "json"
    addresses = [settings.metrics.address(), settings.probes.address()]
    assert addresses == [(None, int(port)) for port in the_only(FINAL, "EXPOSE").rest.split()]


def healthcheck() -> list[str]:
    """The command of HEALTHCHECK."""
    word, _, command = the_only(FINAL, "HEALTHCHECK").rest.partition(" ")
    assert word == "CMD"
    return Instruction("CMD", {}, command).listed


def test_the_healthcheck_asks_where_the_probes_are_served() -> None:
    settings = load_settings(ROOT / "deploy/container" / "config.yaml")
    address = settings.probes.address()
    assert address is not None
    assert f"http://127.0.0.1:{address[1]}/healthz" in healthcheck()[-1]


@pytest.mark.real_time
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
async def test_the_healthcheck_tells_health_by_its_exit_code(status: int | None, healthy: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/healthz"
        return web.Response(status=status or 200)

    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(answering(answer))
        if status is None:
            await stack.aclose()
        python, *arguments = healthcheck()
        assert python == "python"
        asked = [argument.replace(":8081/", f":{port}/") for argument in arguments]
        # It ignores proxy settings: loopback needs no proxy.
        proxies = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
        ended = await anyio.run_process([sys.executable, *asked], env=proxies, check=False)
    assert (ended.returncode == 0) == healthy, ended.stderr.decode()
