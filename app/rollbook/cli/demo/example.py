"""The files of the example that the demo runs: `examples/multiply`, one copy, in the repository or the wheel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.cli.failures import CommandError

EXAMPLE = Path("examples", "multiply")


class Row(msgspec.Struct, frozen=True):
    """One task of the data set."""

    system_prompt: str
    user_prompt: str
    ground_truth: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as messages."""
        return [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": self.user_prompt}]

    @property
    def question(self) -> str:
        """The task in short, for tables."""
        return self.user_prompt.removeprefix("What is ").removesuffix("?")


def example_folder() -> Path:
    """Where the example is: a wheel carries it inside the package, a work tree has it at its root.

    Raises:
        CommandError: in neither place.
    """
    package = Path(__file__).parents[2]
    for base in (package, package.parents[1]):
        if (base / EXAMPLE / "multiply.py").is_file():
            return base / EXAMPLE
    raise CommandError(f"{EXAMPLE} is missing from this installation; install rollbook again")


def read_rows(file: Path) -> list[Row]:
    """The rows of a JSONL file.

    Raises:
        CommandError: a line is no row.
    """
    rows: list[Row] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=Row))
            except msgspec.DecodeError as error:
                raise CommandError(f"{file}, line {number}: {error}; correct the line") from error
    return rows
