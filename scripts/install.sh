#!/bin/sh
# install.sh LOCK: puts the pinned packages of requirements/LOCK.lock and, editable, Rollbook itself into .venv.
# Needs nothing but the pip inside .venv. Only errors are shown.
set -eu

lock=requirements/$1.lock
pip() {
    # Twice quiet: warnings about the machine's own index settings would bury what matters.
    .venv/bin/python -m pip -qq --disable-pip-version-check --no-input "$@"
}

echo "Installing $lock into .venv ..." >&2
# The lock is whole; what is left out of it, is so on purpose (pyproject.toml, tool.uv).
pip install --no-deps --require-hashes -r "$lock"
# The build backend has just come with the lock, so that nothing unpinned is fetched for the build.
pip install --no-deps --no-build-isolation --editable .
