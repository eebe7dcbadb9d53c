"""The plan of the house: imports point one way, and the public names are documented."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import codauc

SOURCE = Path(codauc.__file__).parent

# Each room may import from those above it only.
ROOMS = [
    "version",
    "checks",
    "writing",
    "snapshot",
    "objective",
    "theory",
    "schedules",
    "config",
    "runs",
    "recipes",
    "reference",
    "metrics",
    "paired",
    "ranking",
    "models",
    "progress",
    "streams",
    "closed_form",
    "loss",
    "memory",
    "flat",
    "compiled",
    "stretches",
    "parameters",
    "optim",
    "adaptive",
    "group",
    "agreement",
    "checkpoints",
    "data",
    "encoding",
    "averaging",
    "stack",
    "lockstep",
    "dual",
    "guards",
    "online",
    "coda",
    "evaluation",
    "saved",
    "interrupts",
    "stopped",
    "processes",
    "launching",
    "report",
    "demo",
    "callbacks",
    "selection",
    "making",
    "watching",
    "resuming",
    "profiling",
    "trainer",
    "tensorboard",
    "running",
    "baselines",
    "onnx_export",
    "streaming",
    "estimator",
    "experiments",
    "options",
    "commands",
    "cli",
]


def room_of(module):
    return module.split(".")[1]


def imports_of(path):
    """The codauc modules a file imports, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("codauc."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("codauc."))


FILES = sorted(path for path in SOURCE.rglob("*.py"))


def test_every_room_has_its_place():
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms - {"__init__", "__main__"} == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_upward_only(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    for module in imports_of(path):
        target = room_of(module)
        assert target == room or ROOMS.index(target) < ROOMS.index(room), f"{room} imports {module}"


@pytest.mark.parametrize("name", ["theory", "schedules", "checks", "progress", "config"])
def test_plain_rooms_do_not_know_torch(name):
    tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ] + [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [n for n in names if n.split(".")[0] == "torch"]


def test_public_names_exist_and_say_what_is_true():
    for name in codauc.__all__:
        assert inspect.getdoc(getattr(codauc, name)), name


def test_every_module_imports_alone():
    for path in FILES:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[-1] not in ("__main__",):
            importlib.import_module(".".join(["codauc", *parts]).removesuffix(".__init__"))


def test_no_module_has_the_name_of_something_public():
    """Importing it would put the module in the place of the name."""
    modules = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert not modules & set(codauc.__all__)


def test_the_package_and_the_command_s_help_do_without_torch():
    code = (
        "import sys, codauc\n"
        "from codauc.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert set(codauc.__all__) <= set(dir(codauc))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'lunch'"):
        codauc.lunch  # noqa: B018
    assert not hasattr(codauc, "__path_that_is_not__")
