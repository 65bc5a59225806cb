"""No file names the place it was made at: no index of packages, no folder of somebody's machine."""

import re

import pytest

from tests.architecture.sources import ROOT, text_files

# The brackets keep this file from matching itself.
_UNWANTED = {
    "a package index (whatever index pip is set up for shall serve the locks)": re.compile(
        r"pypi[.]org|python[h]osted[.]org|npm[j]s[.]org|anaconda[.]org|^--(?:extra-)?index-[u]rl|^--find-[l]inks",
        re.MULTILINE,
    ),
    "a folder of one machine": re.compile(
        r"(?<![\w.])/(?:root|Users|home/\w+|work/(?:main|shared|\.\w+)|opt/(?:pypi|wheels))[/]"
    ),
}


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in text_files()])
def test_file_names_no_package_index_and_no_machine(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for what, pattern in _UNWANTED.items():
        found = pattern.findall(text)
        assert not found, f"{path} names {what}: {found}"


@pytest.mark.parametrize("name", ["server", "dev"])
def test_every_locked_version_is_pinned_with_a_hash(name: str) -> None:
    requirements = re.split(r"\n(?=\S)", (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8").strip())
    assert len(requirements) > 20
    loose = [
        entry
        for entry in requirements
        if not re.match(r"[\w.\[\]-]+==\S+[^\n]*\\\n\s+--hash=sha256:[0-9a-f]{64}", entry)
    ]
    assert not loose


def test_demo_installs_a_subset_of_the_developers_versions() -> None:
    pins = {
        name: set(
            re.findall(
                r"^([\w.-]+==\S+)", (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8"), re.MULTILINE
            )
        )
        for name in ("server", "dev")
    }
    assert pins["server"] < pins["dev"]
