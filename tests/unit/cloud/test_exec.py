"""Instances terminated by an external command: its input, the meaning of its answers, and that none of it is left."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from kubesim_support.patience import PATIENCE

from gracectl.cloud import exec as execs
from gracectl.cloud.exec import LONGEST_OUTPUT, ExecProvider
from gracectl.cloud.provider import (
    TRACEPARENT,
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderSettings,
    ProviderUnavailable,
    load_provider,
)
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

ID = "vm://rack-7/i-1; rm -rf $HOME"
SH = "/bin/sh"


def sh(script: str, **options: Any) -> ExecProvider:
    """A provider whose command is this shell script."""
    return made([SH, "-c", script], **options)


def made(command: list[str], **options: Any) -> ExecProvider:
    return ExecProvider(msgspec.convert({"command": command, **options}, ExecProvider.Options))


async def until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    with anyio.fail_after(PATIENCE):
        while not condition():
            await clock.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs; one that was not waited for counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has lost its parent may be waiting to be reaped.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children() -> set[str]:
    """Children of this process, by number; one that was not waited for counts. Those of other tests are among them."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def descriptors() -> Counter[str]:
    """Open files of this process, without sockets: only other tests have those, and may leave or close them."""
    counts: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            counts[os.readlink(f"/proc/self/fd/{name}")] += 1
    return Counter({target: count for target, count in counts.items() if not target.startswith("socket:")})


# -- the question ------------------------------------------------------------------------------------------------------


async def test_the_command_is_told_in_variables_and_where_it_wants_in_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f'printf "%s|" "$@" "$GRACECTL_ACTION" "$GRACECTL_PROVIDER_ID" "$GRACECTL_REQUEST_ID" > {out}'
    provider = made([SH, "-c", script, "x", "--do={action}", "{providerID}"])
    await provider.terminate(ID)
    *variables, request = out.read_text().split("|")[:-1]
    assert variables == ["--do=terminate", ID, "terminate", ID]
    await sh(f'printf %s "$GRACECTL_REQUEST_ID" > {out}').terminate(ID)
    assert out.read_text() == request  # of the same end, by another process
    await sh(f'printf %s "$GRACECTL_REQUEST_ID" > {out}').terminate("another")
    assert out.read_text() != request


async def test_the_command_gets_the_trace_of_the_termination() -> None:
    provider = sh('echo \'{"state": "\'$([ "$TRACEPARENT" = here ] && echo ending || echo running)\'"}\'')
    assert await provider.state(ID) is InstanceState.RUNNING
    token = TRACEPARENT.set("here")
    assert await provider.state(ID) is InstanceState.ENDING
    TRACEPARENT.reset(token)


async def test_the_command_gets_little_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("SECRET_OF_OURS", "s")
    monkeypatch.setenv("REGION", "eu-1")
    await sh(f"env > {out}", env={"ZONE": "a", "LANG": "tlh"}, passEnv=["REGION", "NOT_THERE"]).terminate(ID)
    variables = dict(line.split("=", 1) for line in out.read_text().splitlines())
    assert "SECRET_OF_OURS" not in variables
    assert (variables["REGION"], variables["ZONE"], variables["LANG"], variables["PATH"]) == (
        "eu-1",
        "a",
        "tlh",
        os.environ["PATH"],
    )
    ours = {"GRACECTL_ACTION", "GRACECTL_PROVIDER_ID", "GRACECTL_REQUEST_ID", "REGION", "ZONE"}
    assert variables.keys() <= {*ours, *execs.INHERITED, "PWD", "SHLVL", "OLDPWD", "_"}


async def test_the_command_that_ends_an_instance_is_told_of_its_node(tmp_path: Path) -> None:
    out = tmp_path / "out"
    variables = " ".join(f'"${{GRACECTL_NODE_{each}-none}}"' for each in ("NAME", "ADDRESSES", "CLAIM", "CONFLICTS"))
    script = f'printf "%s|" {variables} > {out}'
    node = NodeIdentity("n1", ("10.0.0.7", "n1.local"), "c1", ("n2", "n3"))
    await sh(script, env={"GRACECTL": "theirs"}).terminate(ID, node)
    assert out.read_text() == "n1|10.0.0.7 n1.local|c1|n2 n3|"
    await sh(script).terminate(ID)  # of a claim without a node
    assert out.read_text() == "none|none|none|none|"


@pytest.fixture
def said_to_us() -> Iterator[None]:
    """Data is written to our own standard input."""
    before, (ours, theirs) = os.dup(0), os.pipe()
    os.write(theirs, b"not for others")
    os.close(theirs)
    os.dup2(ours, 0)
    os.close(ours)
    yield
    os.dup2(before, 0)
    os.close(before)


async def test_there_is_nothing_to_read(tmp_path: Path, said_to_us: None) -> None:
    out = tmp_path / "out"
    await sh(f"wc -c > {out}").terminate(ID)
    assert out.read_text().strip() == "0"


# -- the answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", list(InstanceState))
async def test_the_four_states(word: InstanceState) -> None:
    assert await sh(f"""echo '{{"state": "{word}", "more": 1}}'""").state(ID) is word


async def test_an_end_is_accepted_by_the_exit_code_alone() -> None:
    await sh("exit 0").terminate(ID)
    await sh("""echo '{"state": "ending"}'; echo progress >&2""").terminate(ID)


async def test_gone_is_what_says_so() -> None:
    with pytest.raises(InstanceGone, match=r"command /bin/sh: vm://rack-7"):
        await sh("""echo '{"state": "gone"}'""").terminate(ID)


@pytest.mark.parametrize("code", [1, 2, 3, 5, 44, 127, 255])
async def test_no_exit_code_says_that_an_instance_is_gone(code: int) -> None:
    """Broken scripts end with any of them."""
    provider = sh(f"echo; echo 'cannot reach the API' >&2; exit {code}")
    for call in (provider.state, provider.terminate):
        with pytest.raises(ProviderUnavailable, match=f"failed with exit code {code}: cannot reach the API"):
            await call(ID)


async def test_not_even_with_the_word_for_it() -> None:
    with pytest.raises(ProviderUnavailable, match="exit code 1"):
        await sh("""echo '{"state": "gone"}'; exit 1""").state(ID)


@pytest.mark.parametrize("said", ["", "gone", "[]", '{"state": "stopped"}', '{"no": "state"}'])
async def test_a_state_has_to_be_said(said: str) -> None:
    with pytest.raises(ProviderUnavailable):
        await sh(f"echo '{said}'").state(ID)


async def test_a_refusal_has_its_message_and_its_remedy() -> None:
    with pytest.raises(ProviderRefused) as caught:
        await sh("echo 'Remedy: ask Eve' >&2; echo 'held by the auditors' >&2; echo more >&2; exit 4").terminate(ID)
    assert str(caught.value) == "command /bin/sh refused: held by the auditors; ask Eve"
    with pytest.raises(ProviderRefused, match="no reason given; see the command's documentation"):
        await sh("exit 4").terminate(ID)


async def test_one_that_dies_is_unavailable() -> None:
    with pytest.raises(ProviderUnavailable, match="was killed by signal 9"):
        await sh("kill -9 $$").state(ID)


async def test_one_that_is_not_there_is_for_people() -> None:
    with pytest.raises(ProviderRefused, match=r"command /no/such cannot be started: No such file.*into the image"):
        await made(["/no/such"]).state(ID)
    with pytest.raises(ProviderRefused, match="Permission denied"):
        await made(["/etc/passwd"]).terminate(ID)


async def test_a_provider_id_that_no_process_can_be_told_is_for_people() -> None:
    with pytest.raises(ProviderRefused, match=r"correct spec\.providerID"):
        await sh("exit 0").terminate("vm://\0")


async def test_much_output_is_read_and_not_kept() -> None:
    loud = f"head -c {LONGEST_OUTPUT * 20} /dev/zero"
    with pytest.raises(ProviderUnavailable, match="wrote more than 64 KiB"):
        await sh(loud).state(ID)
    await sh(f"{loud} >&2").terminate(ID)  # output on standard error alone is no failure


# -- nothing is left ---------------------------------------------------------------------------------------------------


FAMILY = "sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"
STUBBORN = "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! >> {pids}; echo $$ >> {pids}; while :; do sleep 1; done"


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.mark.parametrize("script", [FAMILY, STUBBORN])
async def test_a_slow_one_dies_with_its_children(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "GRACE_SECONDS", 0.2)
    pids = tmp_path / "pids"
    with pytest.raises(ProviderUnavailable, match=r"was killed after 0\.5 s"):
        await sh(script.format(pids=pids), timeoutSeconds=0.5).state(ID)
    assert len(pids_in(pids)) == 2
    await until(lambda: not any(map(is_alive, pids_in(pids))))


@pytest.mark.parametrize("script", [FAMILY, STUBBORN])
async def test_a_cancelled_question_leaves_nothing(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs, "GRACE_SECONDS", 0.2)
    pids = tmp_path / "pids"
    provider = sh(script.format(pids=pids))
    async with while_running(partial(provider.terminate, ID)):
        await until(lambda: len(pids_in(pids)) == 2)
    await until(lambda: not any(map(is_alive, pids_in(pids))))


async def test_one_that_obeys_may_clear_up(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = f"trap 'echo done > {note}; exit 0' TERM; echo > {note}; while :; do sleep 0.05; done"
    with pytest.raises(ProviderUnavailable, match="was killed"):
        await sh(script, timeoutSeconds=1).state(ID)
    assert note.read_text() == "done\n"


async def test_a_child_that_stays_behind_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "LINGER_SECONDS", 0.1)
    pids = tmp_path / "pids"
    with anyio.fail_after(PATIENCE):
        answer = await sh(f"""sleep 1000 & echo $! > {pids}; echo '{{"state": "running"}}'""").state(ID)
    assert answer is InstanceState.RUNNING
    await until(lambda: not is_alive(pids_in(pids)[0]))


async def test_no_descriptor_and_no_zombie_is_left() -> None:
    provider = sh("""echo '{"state": "running"}'""")
    others = children()
    await provider.state(ID)
    before = descriptors()
    for _ in range(10):
        await provider.state(ID)
        with pytest.raises(ProviderRefused):
            await made(["/no/such"]).state(ID)
    assert not descriptors() - before
    assert children() <= others


async def test_no_more_than_so_many_run_at_once(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "mine = folder / str(os.getpid())\n"
        "mine.touch()\n"
        "time.sleep(0.1)\n"
        'print(\'{"state": "running"}\')\n'
        "count = len(list(folder.glob('[0-9]*')))\n"
        "mine.unlink()\n"
        "open(folder / 'counts', 'a').write(f'{count}\\n')\n"
    )
    provider = made([sys.executable, "-S", "-c", script, str(tmp_path)], maxParallel=2)
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(provider.state, f"i-{number}")
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 6
    assert max(counts) <= 2


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({}, "missing required field `command`"),
    ({"command": "end-vm --now"}, r"Expected `array`, got `str` - at `\$\.command`"),
    ({"command": []}, r"length >= 1 - at `\$\.command`"),
    ({"command": [" "]}, "is not a program"),
    ({"command": ["{action}"]}, "is not a program"),
    ({"command": ["x\0"]}, "NUL"),
    ({"command": ["x"], "env": {"A=B": "c"}}, '"A=B" is not a name of a variable'),
    ({"command": ["x"], "env": {"GRACECTL_ACTION": "c"}}, "GRACECTL_ACTION is reserved"),
    ({"command": ["x"], "passEnv": ["A=B"]}, 'passEnv: "A=B" is not a name of a variable'),
    ({"command": ["x"], "passEnv": ["GRACECTL_ACTION"]}, "passEnv: GRACECTL_ACTION is reserved"),
    ({"command": ["x"], "timeoutSeconds": 61}, r"<= 60.0 - at `\$\.timeoutSeconds`"),
    ({"command": ["x"], "maxParallel": 0}, r">= 1 - at `\$\.maxParallel`"),
    ({"command": ["x"], "shell": True}, "unknown field `shell`"),
])  # fmt: skip
def test_options_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        load_provider(ProviderSettings("exec", options))


async def test_a_cancelled_question_leaves_no_child_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "LINGER_SECONDS", 1000.0)
    pids, others = tmp_path / "pids", children()
    async with while_running(partial(sh(f"sleep 1000 & echo $! > {pids}; exit 0").state, ID)):
        await until(lambda: pids.exists() and bool(pids.read_text().strip()) and children() <= others)
    await until(lambda: not is_alive(pids_in(pids)[0]))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM], ids=errno.errorcode.get)
async def test_a_shortage_of_ours_passes_and_leaves_no_descriptor(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = os.pipe
    made: list[tuple[int, int]] = []

    def one_pipe() -> tuple[int, int]:
        if made:
            raise OSError(number, os.strerror(number))
        made.append(pipe())
        return made[0]

    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", one_pipe)
        with pytest.raises(ProviderUnavailable, match=os.strerror(number)):
            await sh("exit 0").state(ID)
    assert made
    assert not descriptors() - before
