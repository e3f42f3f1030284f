"""What is under test, controller or agent: always the real command in a process of its own, with a settings file of its
own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import orjson
import yaml
from kubesim_support.patience import PATIENCE
from support.chart import defaults

from benchmarks.ground.process import peak_memory
from e2e_support.cgroup import Cgroup, memory_cgroup
from gracectl.model.times import parse_time
from gracectl.runtime.clock import SystemClock

START_SECONDS: Final = 1.0
"""Within which a program says something first, where the machine has nothing else to do."""


class Program:
    """One running (or ended) `gracectl`. `errors`: the file of its stderr, `config` that of its settings; `cgroup`: its
    own."""

    def __init__(self, process: anyio.abc.Process, errors: Path, config: Path, cgroup: Cgroup | None) -> None:
        self._process = process
        self._cgroup = cgroup
        self._config = config
        self._clock = SystemClock()
        self._began = self._clock.now()
        self.errors = errors

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative number of a signal that ended it."""
        return self._process.returncode

    def peak(self) -> float:
        """The most MiB that it has held: of its cgroup, or resident where it has none."""
        return peak_memory(self.pid) if self._cgroup is None else self._cgroup.peak()

    def configure(self, **sections: Any) -> None:
        """Write these sections into its settings file in place of its own, as a ConfigMap changes: at once."""
        settings = {**yaml.safe_load(self.settings()), **sections}
        self.write_settings(yaml.safe_dump(settings))

    def settings(self) -> str:
        """The text of its settings file."""
        return self._config.read_text()

    def write_settings(self, text: str) -> None:
        """Write this into its settings file, at once."""
        new = self._config.with_suffix(".new")
        new.write_text(text)
        new.replace(self._config)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    @property
    def slowness(self) -> float:
        """How many times as long as on an idle machine things take, as its start shows: until it says something first,
        it computes."""
        entries = self.entries()
        first = parse_time(entries[0]["ts"]) if entries else self._clock.now()
        return max(1.0, (first - self._began) / START_SECONDS)

    async def ended(self, seconds: float = PATIENCE) -> int:
        """Its exit code. Raises AssertionError if it has not ended after so many seconds."""
        with anyio.move_on_after(seconds):
            return await self._process.wait()
        raise AssertionError(f"it still runs after {seconds:g} s; its last words:\n{self.text()[-2000:]}")

    def text(self) -> str:
        """All that it has said on stderr so far."""
        return self.errors.read_text()

    def entries(self) -> list[dict[str, Any]]:
        """The whole lines of its log, as the JSON that they must be."""
        return [orjson.loads(line) for line in self.text().splitlines(keepends=True) if line.endswith("\n")]

    def said(self, words: str) -> list[dict[str, Any]]:
        """The entries of its log whose message contains these words."""
        return [entry for entry in self.entries() if words in entry["message"]]

    async def until_said(self, words: str, seconds: float = PATIENCE) -> None:
        """Wait until its log contains a message with these words."""
        with anyio.move_on_after(seconds):
            while not self.said(words):
                await self._clock.sleep(0.05)  # each look reads all of the log
            return
        raise AssertionError(f"not said within {seconds:g} s: {words}")


@asynccontextmanager
async def running(
    kubeconfig: Path, settings: Mapping[str, Any], folder: Path, *arguments: str
) -> AsyncIterator[Program]:
    """`gracectl controller`, or what the `arguments` say, until the end of the block, at which it is killed if it still
    runs. It has the memory that the chart gives the controller, where this machine can limit it."""
    config, errors = _files(folder, settings)
    command = [sys.executable, "-m", "gracectl", *(arguments or ("controller",))]
    command += ["--kubeconfig", str(kubeconfig), "--config", str(config)]
    with errors.open("wb") as file, memory_cgroup(f"{folder.name}-{config.stem}", memory_limit()) as cgroup:
        if cgroup is not None:
            command = [*cgroup.command(*command)]
        process = await anyio.open_process(
            command, stdin=None, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            yield Program(process, errors, config, cgroup)
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.aclose()
            # Shown by pytest beside a failure.
            print(f"the end of {errors.name}:", *errors.read_text().splitlines()[-40:], sep="\n")


def memory_limit() -> float:
    """MiB that the chart gives the controller."""
    text: str = defaults()["resources"]["limits"]["memory"]
    assert text.endswith("Gi"), text
    return float(text.removesuffix("Gi")) * 1024


def _files(folder: Path, settings: Mapping[str, Any]) -> tuple[Path, Path]:
    """The settings file of one more program, and where its stderr goes."""
    number = len(list(folder.glob("program-*.log")))
    config = folder / f"settings-{number}.yaml"
    config.write_text(yaml.safe_dump(dict(settings)))
    return config, folder / f"program-{number}.log"
