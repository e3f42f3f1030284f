#!/usr/bin/env bash
# Lists of dependencies with the hashes of all their files, for every supported Python and system: `make lock`, which has
# python and uv on its PATH. What is in several lists has the same version in each: constraints.txt decides.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --annotation-style line \
        --custom-compile-command 'make lock' --no-emit-package kubesim "$@"
}
# kubesim is not published: its folder is where the extras that name it find it.
compile - pyproject.toml kubesim/pyproject.toml --extra agent --extra aws --extra demo --extra dev --extra docs \
    --output-file constraints.txt "$@" <<< '-e ./kubesim'
compile pyproject.toml --extra agent --extra aws --constraint constraints.txt --output-file deploy/container/requirements.txt
compile - --constraint constraints.txt --output-file deploy/container/build-requirements.txt \
    < <(python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
compile - --constraint constraints.txt --output-file benchmarks/requirements.txt "$@" \
    < <(python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")')
# What make audit runs.
compile - --constraint constraints.txt --output-file tools/audit/requirements.txt "$@" < <(printf '%s\n' deptry pip-audit)
# What tools/plugin bundles with, and what releases are uploaded with.
compile - --constraint constraints.txt --output-file tools/requirements.txt "$@" < <(printf '%s\n' pyinstaller "uv==$UV_VERSION")
