"""Entrypoints: which texts they are, what is found in a file, and what each mistake is told."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.backends.base import ExecutionBackend
from rollbook.backends.entrypoint import check_entrypoint, entrypoint_name, load_entrypoint
from rollbook.backends.errors import EntrypointError
from rollbook.backends.local import LocalBackend
from rollbook_client.statuses import RolloutStatus
from tests.unit.backends.support import make_request

WORKFLOW = """
from rollbook import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, GraderConfig, LocalBackend

class Solve(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "42"}]
"""
GRADER = """
class Check(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""
OWN_BACKEND = """
from rollbook import ExecutionBackend

class Own(ExecutionBackend):
    async def execute(self, request):
        raise NotImplementedError
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder for a test, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, source: str, name: str = "entry_file.py") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(source)
    return name


def failure(spec: str, max_concurrent: int | None = None) -> str:
    with pytest.raises(EntrypointError) as caught:
        load_entrypoint(spec, max_concurrent=max_concurrent)
    assert caught.value.spec == spec
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_file_with_one_workflow_and_one_grader_is_a_backend(folder: Path) -> None:
    backend = load_entrypoint(write(folder, WORKFLOW + GRADER))
    assert isinstance(backend, LocalBackend)
    assert backend.max_concurrent == 4
    outcome = await backend.execute(make_request())
    assert outcome.result.status is RolloutStatus.SUCCESS
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward == 1.0


def test_grader_may_be_missing(folder: Path) -> None:
    backend = load_entrypoint(write(folder, WORKFLOW))
    assert isinstance(backend, LocalBackend)
    assert backend.grader_cls is None


def test_configs_of_the_file_are_used(folder: Path) -> None:
    source = (
        WORKFLOW
        + GRADER
        + (
            "anything = AgentWorkflowConfig(name='w', concurrency=ConcurrencyConfig(max_concurrent=7))\n"
            "alias = anything\n"
            "whatever = GraderConfig(name='g')\n"
        )
    )
    backend = load_entrypoint(write(folder, source))
    assert isinstance(backend, LocalBackend)
    assert backend.max_concurrent == 7
    assert backend.grader_config is not None
    assert backend.grader_config.name == "g"


def test_among_several_configs_the_named_one_is_used(folder: Path) -> None:
    several = "other = AgentWorkflowConfig(name='other')\nsecond = AgentWorkflowConfig(name='second')\n"
    assert "call the one to be used workflow_config" in failure(write(folder, WORKFLOW + several, "several.py"))
    named = several + "workflow_config = AgentWorkflowConfig(name='chosen')\n"
    backend = load_entrypoint(write(folder, WORKFLOW + named, "named.py"))
    assert isinstance(backend, LocalBackend)
    assert backend.workflow_config is not None
    assert backend.workflow_config.name == "chosen"


def test_abstract_and_imported_classes_do_not_count(folder: Path) -> None:
    write(folder, WORKFLOW + GRADER, "beside.py")
    source = (
        "from beside import Check, Solve\nfrom rollbook import AgentWorkflow\n"
        "class Base(AgentWorkflow):\n    pass\n"
        "class Mine(Base):\n    async def run(self, ctx):\n        return []\n"
    )
    backend = load_entrypoint(write(folder, source))
    assert isinstance(backend, LocalBackend)
    assert backend.workflow_cls.__name__ == "Mine"
    assert backend.grader_cls is None


def test_file_in_another_folder_can_import_what_lies_beside_it(folder: Path) -> None:
    write(folder, "ANSWER = 42\n", "rollouts/helper_module.py")
    spec = write(folder, "import helper_module\nassert helper_module.ANSWER == 42\n" + WORKFLOW, "rollouts/main-2.py")
    assert isinstance(load_entrypoint(spec), LocalBackend)


def test_file_named_like_a_module_of_the_standard_library_leaves_it_alone(folder: Path) -> None:
    json_before = sys.modules["json"]
    assert isinstance(load_entrypoint(write(folder, WORKFLOW, "json.py")), LocalBackend)
    assert sys.modules["json"] is json_before


def test_one_file_is_loaded_once(folder: Path) -> None:
    spec = write(folder, WORKFLOW)
    first, second = load_entrypoint(spec), load_entrypoint(spec)
    assert isinstance(first, LocalBackend)
    assert isinstance(second, LocalBackend)
    assert first.workflow_cls is second.workflow_cls


@pytest.mark.parametrize("spec", ["made_here:backend", "made_here:make", "made_here.py:backend", "made_here.py:make"])
def test_backend_and_function_that_makes_one_are_taken_by_name(folder: Path, spec: str) -> None:
    made = "backend = LocalBackend(workflow=Solve)\ndef make(max_concurrent=3):\n    return backend\n"
    write(folder, WORKFLOW + made, "made_here.py")
    assert isinstance(load_entrypoint(spec), LocalBackend)


def test_limit_replaces_the_configs(folder: Path) -> None:
    assert load_entrypoint(write(folder, WORKFLOW), max_concurrent=9).max_concurrent == 9
    assert "at least 1" in failure("entry_file.py", max_concurrent=0)


@pytest.mark.parametrize(
    ("author", "runner", "result"),
    [
        (None, None, None),
        (None, True, True),
        (None, False, False),
        (False, True, False),
        (True, None, True),
        (True, False, False),
    ],
)
def test_recording_of_model_calls_is_the_runners_choice_unless_the_author_made_one(
    folder: Path, author: bool | None, runner: bool | None, result: bool | None
) -> None:
    made = f"backend = LocalBackend(workflow=Solve, record_model_calls={author})\n"
    write(folder, WORKFLOW + made, "chooses.py")
    backend = load_entrypoint("chooses.py:backend", record_model_calls=runner)
    assert isinstance(backend, LocalBackend)
    assert backend.record_model_calls is result


def test_limit_is_refused_for_a_backend_with_a_limit_of_its_own(folder: Path) -> None:
    write(folder, OWN_BACKEND + "backend = Own()\n", "own.py")
    assert isinstance(load_entrypoint("own:backend"), ExecutionBackend)
    assert "sets its own concurrency" in failure("own:backend", max_concurrent=2)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("", ["defines no workflow", "subclass of rollbook.AgentWorkflow"]),
        ("from rollbook import AgentWorkflow\nclass A(AgentWorkflow): pass\n", ["A is abstract", "async def run"]),
        (WORKFLOW + "class Two(Solve): pass\n", ["several workflows (Solve, Two)", "entry_file.py:NAME"]),
        (WORKFLOW + GRADER + "class More(Check): pass\n", ["several graders (Check, More)"]),
        ("import no_such_module_at_all\n", ["ModuleNotFoundError", "no_such_module_at_all", "entry_file.py, line 1"]),
        ("x = 1\nraise SystemExit('stop here')\n", ["SystemExit: stop here", "entry_file.py, line 2"]),
        ("raise RuntimeError('several\\nlines')\n", ["RuntimeError: several lines"]),
        ("def broken(:\n", ["SyntaxError", "entry_file.py, line 1"]),
    ],
)
def test_mistake_in_a_file_is_told_in_one_line(folder: Path, source: str, texts: list[str]) -> None:
    message = failure(write(folder, source))
    assert all(text in message for text in texts), message
    assert message.startswith("entry_file.py: ")


@pytest.mark.parametrize(
    "made",
    [
        "def backend():\n    return LocalBackend(workflow=Solve)\n",
        "def backend() -> LocalBackend:\n    return LocalBackend(workflow=Solve)\n",
        "from __future__ import annotations\ndef make() -> 'LocalBackend':\n    return LocalBackend(workflow=Solve)\n",
        "backend = LocalBackend(workflow=Solve)\n",
    ],
)
def test_file_with_a_backend_alone_is_told_to_name_it(folder: Path, made: str) -> None:
    write(folder, WORKFLOW, "beside_it.py")
    imports = "from rollbook import LocalBackend\nfrom beside_it import Solve\n"
    source = made.replace("annotations\n", f"annotations\n{imports}") if "annotations" in made else imports + made
    name = "make" if "make()" in made else "backend"
    message = failure(write(folder, source))
    assert message.endswith(f"this one has a backend; name that too: entry_file.py:{name}")
    assert isinstance(load_entrypoint(f"entry_file.py:{name}"), LocalBackend)


def test_file_with_a_task_alone_is_told_what_runs_it(folder: Path) -> None:
    source = "from rollbook.tasks import Task, TaskData\nclass Sums(Task[TaskData]):\n    pass\n"
    message = failure(write(folder, source))
    assert "holds the task Sums and nothing that runs it" in message
    assert "return TaskBackend(task=Sums, harness=…, runtime=…)` and pass entry_file.py:backend" in message


@pytest.mark.parametrize(
    ("spec", "what", "task"),
    [
        ("entry_file.py:Sums", "the class Sums", "Sums"),
        ("entry_file.py:TASK", "of type Sums", "TASK"),
        ("entry_file.py:make", "of type Sums", "make"),
    ],
)
def test_task_in_the_place_of_a_backend_is_told_what_runs_it(folder: Path, spec: str, what: str, task: str) -> None:
    source = (
        "from rollbook.tasks import Task, TaskData\nclass Sums(Task[TaskData]):\n    pass\n"
        "TASK = Sums()\ndef make():\n    return TASK\n"
    )
    write(folder, source)
    message = failure(spec)
    assert f"is {what}, not a backend; write a function `def backend(): return TaskBackend(task={task}" in message
    assert message.endswith("and pass entry_file.py:backend")


def test_what_is_neither_backend_nor_task_is_told_of_both_backends(folder: Path) -> None:
    write(folder, "number = 1\n")
    message = failure("entry_file.py:number")
    assert "LocalBackend(workflow=…) for workflows and TaskBackend(task=…, harness=…, runtime=…) for tasks" in message


def test_hook_that_is_refused_is_shown_where_its_author_wrote_it(folder: Path) -> None:
    source = (
        "from rollbook.tasks import Task, TaskData, stop\n"
        "class Sums(Task[TaskData]):\n    @stop\n    def over(self, request: int) -> bool:\n        return True\n"
    )
    message = failure(write(folder, source))
    assert "@stop Sums.over annotates 'request' as int" in message
    assert message.count("line ") == 1
    assert f"({folder / 'entry_file.py'}, line 3)" in message


def test_argument_that_rollbook_refuses_is_shown_where_its_author_gave_it(folder: Path) -> None:
    source = WORKFLOW + "\nbackend = LocalBackend(workflow='no reference')\n"
    assert f"({folder / 'entry_file.py'}, line {source.count(chr(10))})" in failure(write(folder, source))


CHECKED = (
    OWN_BACKEND
    + """
from rollbook.backends.errors import MachineError

class Needy(Own):
    async def check(self):
        raise {error}

backend = Needy()
"""
)


def test_backend_that_misses_something_on_this_machine_is_refused_with_what_it_is(folder: Path) -> None:
    source = CHECKED.format(error="MachineError('a GPU is missing; buy one')")
    backend = load_entrypoint(f"{write(folder, source)}:backend")
    with pytest.raises(EntrypointError) as caught:
        check_entrypoint("entry_file.py:backend", backend)
    assert str(caught.value) == "entry_file.py:backend: this machine cannot run it: a GPU is missing; buy one"


def test_check_that_breaks_is_told_with_its_place(folder: Path) -> None:
    backend = load_entrypoint(f"{write(folder, CHECKED.format(error='KeyError(3)'))}:backend")
    with pytest.raises(EntrypointError, match=r"checking what it needs raised KeyError: 3 \(.*entry_file.py, line"):
        check_entrypoint("entry_file.py:backend", backend)


def test_backend_that_needs_nothing_is_well(folder: Path) -> None:
    check_entrypoint("entry_file.py", load_entrypoint(write(folder, WORKFLOW)))


def test_file_that_failed_is_loaded_anew_after_a_correction(folder: Path) -> None:
    failure(write(folder, "raise RuntimeError('not yet')\n"))
    assert isinstance(load_entrypoint(write(folder, WORKFLOW)), LocalBackend)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("missing.py", "there is no such file"),
        ("missing.py:backend", "there is no such file"),
        ("no_such_module_at_all:backend", "ModuleNotFoundError"),
        ("named_things:absent", "named_things has no 'absent'; check the name after the colon"),
        ("named_things:solve", "named_things has no 'solve'; did you mean Solve?"),
        ("named_things.py:failin", "named_things has no 'failin'; did you mean failing?"),
        ("named_things:Solve", "is the class Solve, not a backend"),
        ("named_things:number", "is of type int, not a backend"),
        ("named_things:demanding", "takes arguments"),
        ("named_things:failing", "ValueError: no GPU"),
        ("named_things:nothing", "is of type NoneType, not a backend"),
        ("just-a-word", "is no entrypoint"),
        ("module:", "is no entrypoint"),
        (":name", "is no entrypoint"),
        ("module:two words", "is no entrypoint"),
        ("", "is no entrypoint"),
    ],
)
def test_mistake_in_a_name_is_told_in_one_line(folder: Path, spec: str, text: str) -> None:
    things = (
        "number = 1\ndef demanding(a):\n    pass\ndef failing():\n    raise ValueError('no GPU')\n"
        "def nothing():\n    pass\n"
    )
    write(folder, WORKFLOW + things, "named_things.py")
    assert text in failure(spec)


def test_cause_is_chained(folder: Path) -> None:
    with pytest.raises(EntrypointError) as caught:
        load_entrypoint(write(folder, "1 / 0\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rollouts/multiply/main.py", "main"),
        ("/abs/my-rollout.py", "my-rollout"),
        ("package.module:backend", "package.module:backend"),
        ("path/to/file.py:backend", "file:backend"),
    ],
)
def test_name_of_an_entrypoint(spec: str, name: str) -> None:
    assert entrypoint_name(spec) == name


def test_text_that_is_no_entrypoint_has_no_name() -> None:
    with pytest.raises(EntrypointError, match=r"pass the path of a \.py file with a workflow, or file\.py:name or"):
        entrypoint_name("nonsense")
