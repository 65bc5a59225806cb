#!/bin/sh
# Resolves requirements/*.lock anew from pyproject.toml: exact versions with the hashes of every platform's
# files, and no address of a package index, so that whatever index pip is set up for serves them.
# lock.sh --upgrade takes the newest versions; without it, versions that still fit stay as they are.
set -eu

if command -v uv >/dev/null 2>&1; then
    uv=uv
else
    # A tool of this one script, kept out of the environment the locks describe.
    uv=build/lock-tools/bin/uv
    if ! [ -x "$uv" ]; then
        "$(sh scripts/find_python.sh)" -m venv build/lock-tools
        build/lock-tools/bin/python -m pip --quiet --disable-pip-version-check install uv
    fi
fi

compile() {
    "$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-annotate --no-header \
        --no-emit-index-url --no-emit-find-links "$@" pyproject.toml >&2
}

mkdir -p requirements
compile "$@" --extra server --extra postgres --group dev --output-file requirements/dev.lock
# The demo's packages are a subset of the developers', at the same versions.
compile "$@" --extra server --extra postgres --group build --constraint requirements/dev.lock --output-file requirements/server.lock
