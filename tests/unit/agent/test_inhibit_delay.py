"""The drop-in: how it is written, and which file has the last word; of that, the real logind is the referee."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.logind import a_machine
from support.message_bus import RealLogind

from gracectl.agent.inhibit_delay import FILE, DropIn, Setting

MAIN, ETC, RUN = "etc/systemd/logind.conf", "etc/systemd/logind.conf.d", "run/systemd/logind.conf.d"

LAYOUTS: dict[str, tuple[dict[str, str], tuple[str, str] | None]] = {
    "nothing": ({}, None),
    "main": ({MAIN: "[Login]\nInhibitDelayMaxSec=11\n"}, (MAIN, "11")),
    "a drop-in after the main file": (
        {
            "etc/systemd/logind.conf": "[Login]\nInhibitDelayMaxSec=11",
            f"{ETC}/10.conf": "[Login]\nInhibitDelayMaxSec=12",
        },
        (f"{ETC}/10.conf", "12"),
    ),
    "the order of names, whatever the directory": (
        {f"{ETC}/10.conf": "[Login]\nInhibitDelayMaxSec=12\n", f"{RUN}/20.conf": "[Login]\nInhibitDelayMaxSec=13\n"},
        (f"{RUN}/20.conf", "13"),
    ),
    "one name, two directories": (
        {f"{ETC}/20.conf": "[Login]\n", f"{RUN}/20.conf": "[Login]\nInhibitDelayMaxSec=13\n"},
        None,
    ),
    "comments, other sections, other endings": (
        {
            f"{ETC}/10.conf": "[Login]\n InhibitDelayMaxSec = 14 \n#InhibitDelayMaxSec=1\n;InhibitDelayMaxSec=1\n",
            f"{ETC}/20.conf": "[Other]\nInhibitDelayMaxSec=1\n",
            f"{ETC}/30.conf.bak": "[Login]\nInhibitDelayMaxSec=1\n",
            f"{ETC}/.40.conf": "[Login]\nInhibitDelayMaxSec=1\n",
        },
        (f"{ETC}/10.conf", "14"),
    ),
    "twice in one file": (
        {f"{ETC}/10.conf": "[Login]\nInhibitDelayMaxSec=1\nInhibitDelayMaxSec=15\n"},
        (f"{ETC}/10.conf", "15"),
    ),
    "capital letters first": (
        {f"{ETC}/a.conf": "[Login]\nInhibitDelayMaxSec=16\n", f"{ETC}/Z.conf": "[Login]\nInhibitDelayMaxSec=1\n"},
        (f"{ETC}/a.conf", "16"),
    ),
}


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_file_that_sets_a_value_wins(tmp_path: Path, layout: str) -> None:
    files, winner = LAYOUTS[layout]
    lay_out(tmp_path, files)
    expected = None if winner is None else Setting(tmp_path / winner[0], winner[1])
    assert DropIn(tmp_path / ETC, tmp_path).winner() == expected


@pytest.mark.real_time
async def test_the_real_logind_reads_the_files_as_we_do(tmp_path: Path) -> None:
    async with a_machine(tmp_path, RealLogind) as machine:
        for layout, (files, winner) in LAYOUTS.items():
            await machine.stop_logind()
            for file in [*machine.root.glob("etc/systemd/*"), *machine.root.glob("*/systemd/logind.conf.d/*")]:
                if file.is_file():
                    file.unlink()
            lay_out(machine.root, files)
            await machine.start_logind()
            granted = await machine.granted()
            assert granted == (5 if winner is None else int(winner[1])), layout


def test_a_file_that_is_masked_counts_for_nothing(tmp_path: Path) -> None:
    lay_out(tmp_path, {f"{RUN}/20.conf": "[Login]\nInhibitDelayMaxSec=13\n"})
    (tmp_path / ETC).mkdir(parents=True)
    (tmp_path / ETC / "20.conf").symlink_to("/dev/null")
    assert DropIn(tmp_path / ETC, tmp_path).winner() is None


def test_ours_is_seen_where_it_is_mounted(tmp_path: Path) -> None:
    ours = DropIn(tmp_path / "mounted", tmp_path / "host")
    ours.ensure(30)
    lay_out(tmp_path / "host", {f"{ETC}/10.conf": "[Login]\nInhibitDelayMaxSec=1\n"})
    assert ours.winner() == Setting(tmp_path / "mounted" / FILE, "30")


def test_the_file_is_whole_readable_by_all_and_alone(tmp_path: Path) -> None:
    drop_in = DropIn(tmp_path / "a" / "b", tmp_path)
    assert drop_in.ensure(29.2)
    assert drop_in.path.read_text().splitlines()[-2:] == ["[Login]", "InhibitDelayMaxSec=30"]
    assert stat.S_IMODE(drop_in.path.stat().st_mode) == 0o644
    assert [file.name for file in drop_in.path.parent.iterdir()] == [FILE]


def test_it_is_written_only_to_ask_for_more(tmp_path: Path) -> None:
    drop_in = DropIn(tmp_path, tmp_path)
    drop_in.ensure(30)
    # A write replaces the file, so it would be another one; reading it changes its access time.
    before = drop_in.path.stat().st_ino
    assert not drop_in.ensure(30)
    assert not drop_in.ensure(10)
    assert drop_in.path.stat().st_ino == before
    assert drop_in.ensure(31)
    assert drop_in.path.read_text().endswith("=31\n")


def test_a_changed_file_is_restored(tmp_path: Path) -> None:
    drop_in = DropIn(tmp_path, tmp_path)
    drop_in.path.write_text("[Login]\nInhibitDelayMaxSec=often\n")
    assert drop_in.ensure(30)
    assert drop_in.path.read_text().endswith("[Login]\nInhibitDelayMaxSec=30\n")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    drop_in = DropIn(tmp_path, tmp_path)
    drop_in.path.mkdir()
    with pytest.raises(IsADirectoryError):
        drop_in.ensure(30)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
