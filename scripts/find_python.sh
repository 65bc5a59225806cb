#!/bin/sh
# Prints the path of a Python that can make Rollbook's environment, or says what to do and exits 1.
#
# Looks at, in this order: $PYTHON; python3.14, 3.13, 3.12 on PATH; what uv knows; pyenv's versions folder
# (newest first); and, if uv is there, a Python that uv downloads. Whatever is found has to run: a shim of
# pyenv lies on PATH for versions that are not selected, and fails when it is called.
set -u

# True for a CPython >= 3.12 with what `python -m venv` needs (Debian ships those modules separately) and
# with the GIL: not every pinned package has wheels without one. Prints "major.minor.micro path".
probe='
import sys, sysconfig
if sys.version_info < (3, 12) or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
import ensurepip, venv
# Of a virtual environment, the Python below it: the environment may be the one about to be replaced.
print(".".join(map(str, sys.version_info[:3])), getattr(sys, "_base_executable", None) or sys.executable)
'

describe() {
    "$1" -I -c "$probe" 2>/dev/null
}

# Prints the path and ends the script if the candidate will do.
take() {
    found=$(describe "$1") || return 1
    printf '%s\n' "${found#* }"
    exit 0
}

complain() {
    printf '%s\n' "$@" >&2
    exit 1
}

if [ -n "${PYTHON:-}" ]; then
    take "$PYTHON"
    complain "PYTHON=$PYTHON is no working CPython >= 3.12 with the venv module." \
        "Name another one (make PYTHON=/path/to/python3.12 ...), or leave PYTHON unset to have one looked for."
fi

for name in python3.14 python3.13 python3.12; do
    # Every match on PATH, not the first only: a shim that fails may hide a Python that works.
    old_ifs=$IFS
    IFS=:
    for folder in $PATH; do
        IFS=$old_ifs
        if [ -x "$folder/$name" ]; then
            take "$folder/$name"
        fi
        IFS=:
    done
    IFS=$old_ifs
done

uv_find() {
    found=$(uv python find --system --no-project '>=3.12' 2>/dev/null) && [ -n "$found" ] && take "$found"
}

if command -v uv >/dev/null 2>&1; then
    uv_find
fi

# HOME may be another one than at pyenv's installation, so its folder is looked for in every way there is.
pyenv_roots() {
    if [ -n "${PYENV_ROOT:-}" ]; then printf '%s\n' "$PYENV_ROOT"; fi
    if [ -n "${HOME:-}" ]; then printf '%s\n' "$HOME/.pyenv"; fi
    if binary=$(command -v pyenv 2>/dev/null); then
        # A package manager puts a link on PATH; what it points at lies in the root's bin (or libexec).
        for path in "$binary" "$(readlink -f "$binary" 2>/dev/null)"; do
            if [ -n "$path" ]; then dirname "$(dirname "$path")"; fi
        done
        pyenv root 2>/dev/null
    fi
    printf '%s\n' "$PATH" | tr : '\n' | sed -n 's,/shims/*$,,p'
}

newest=$(
    pyenv_roots | sort -u | while IFS= read -r root; do
        for python in "$root"/versions/3.1[2-9]*/bin/python3 "$root"/versions/3.[2-9][0-9]*/bin/python3; do
            if [ -x "$python" ]; then describe "$python"; fi
        done
    done | sort -t . -k 1,1n -k 2,2n -k 3,3n | tail -n 1
)
if [ -n "$newest" ]; then
    printf '%s\n' "${newest#* }"
    exit 0
fi

if command -v uv >/dev/null 2>&1 && uv python install --quiet 3.12 >&2; then
    uv_find
fi

complain "Rollbook needs CPython >= 3.12, and none was found (on PATH, with uv, or in pyenv's versions folder)." \
    "Install one (your system's python3.12 and python3.12-venv, 'uv python install 3.12' or 'pyenv install 3.12')" \
    "and run make again, or name one: make PYTHON=/path/to/python3.12 ..."
