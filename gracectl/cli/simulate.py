"""`gracectl simulate`: `kubesim up` with the definitions of gracectl, and the scenarios that need them."""

from __future__ import annotations

from importlib.resources import files

from kubesim.cli import Embedding, up_command

from gracectl.cli.crds import shipped_definitions
from gracectl.cli.output import program

SCENARIOS = files("gracectl.cli") / "scenarios"

simulate = up_command(
    Embedding(
        name="simulate",
        program=program,
        scenario="demo",
        definitions=shipped_definitions,
        scenarios=(SCENARIOS,),
        try_it=("gracectl controller --kubeconfig {kubeconfig}",),
    )
)
