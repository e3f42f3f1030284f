"""`python -m kubesim`."""

from kubesim.cli import main

main(prog_name="kubesim")
