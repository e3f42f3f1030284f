"""`gracectl crds`: what it prints is what the embedded cluster serves, and it is there wherever gracectl is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from kubesim.cli import Choice
from kubesim.scenarios.options import options_of
from support.shell import run_program

import gracectl
from gracectl.cli.crds import shipped_definitions
from gracectl.cli.root import root

ROOM = Path(gracectl.__file__).parent


def test_it_prints_the_files_as_they_are() -> None:
    shown = CliRunner().invoke(root, ["crds"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == "---\n".join(file.read_text() for file in sorted((ROOM / "crds").glob("*.yaml")))
    assert shown.stdout.endswith("\n")


def test_a_cluster_serves_what_is_printed() -> None:
    printed = CliRunner().invoke(root, ["crds"]).stdout
    assert tuple(yaml.safe_load_all(printed)) == shipped_definitions()


def test_each_file_is_one_definition_and_named_after_it() -> None:
    for file in (ROOM / "crds").iterdir():
        (definition,) = yaml.safe_load_all(file.read_text())
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        assert file.name == f"{group}_{plural}.yaml"
        assert definition["metadata"] == {"name": f"{plural}.{group}"}


def test_the_folder_ships_with_the_package() -> None:
    config = (ROOM.parent / "pyproject.toml").read_text()
    assert '[tool.hatch.build.targets.wheel]\npackages = ["gracectl"]\n' in config
    assert (ROOM / "crds" / "karpenter.sh_nodeclaims.yaml").is_file()
    assert not (ROOM / "crds" / "__init__.py").exists()


def test_printing_them_loads_no_embedded_cluster() -> None:
    program = (
        "import sys\n"
        "from gracectl.cli.root import root\n"
        "root.main(['crds'], standalone_mode=False)\n"
        "loaded = sorted(name for name in sys.modules if name.startswith(('kubesim', 'gracectl.kube')))\n"
        "assert not loaded, loaded\n"
    )
    assert "kind: CustomResourceDefinition" in run_program(program)


def test_help_says_what_to_do_with_them() -> None:
    shown = CliRunner().invoke(root, ["crds", "--help"]).output
    assert "gracectl crds | kubectl apply --server-side -f -" in " ".join(shown.split())


@pytest.mark.parametrize(("crds", "names"), [(None, 3), (True, 3), (False, 0)])
def test_a_simulation_has_them_unless_it_is_told_otherwise(crds: bool | None, names: int) -> None:
    scenario = Choice(scenario="small", crds=crds).read()
    assert len(options_of(scenario, shipped_definitions()).definitions) == names


def test_claims_without_their_definition_are_refused_before_anything_starts(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    arguments = ["simulate", "--scenario", "deadlines", "--no-crds", "--kubeconfig", str(kubeconfig)]
    refused = CliRunner().invoke(root, arguments)
    assert refused.exit_code == 2
    assert "nodes[0].claims: there can be no NodeClaims: server.crds is false (--no-crds)" in refused.stderr
    assert not kubeconfig.exists()
