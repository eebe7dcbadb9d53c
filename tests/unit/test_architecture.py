"""The plan of the house: imports point one way, and the public names are documented."""

import ast
import importlib
import inspect
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import codauc

SOURCE = Path(codauc.__file__).parent

# What each package may import, and nothing else. Every edge points to a package further up.
EDGES = {
    "_internal": (),
    "workers": ("_internal",),
    "data": ("_internal", "workers"),
    "metrics": ("_internal", "workers", "data"),
    "models": ("_internal", "data", "metrics"),
    "algorithm": ("_internal", "workers", "models"),
    "runs": ("_internal", "workers", "data"),
    "report": ("_internal", "metrics", "runs"),
    "training": (
        *("_internal", "workers", "data", "metrics", "models", "algorithm", "runs"),
        "report",
    ),
    "integrations": (
        *("_internal", "workers", "data", "metrics", "models", "algorithm", "runs"),
        "training",
    ),
    "reproduce": (
        *("_internal", "workers", "data", "metrics", "models", "algorithm", "runs"),
        *("report", "training"),
    ),
    "cli": (
        *("_internal", "workers", "data", "metrics", "models", "runs", "report", "training"),
        "reproduce",
    ),
}
ALONE = {"__init__", "__main__", "version"}


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


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_package_has_its_place():
    assert {package_of(path) for path in FILES} - ALONE == set(EDGES)


def test_edges_point_one_way():
    order = list(EDGES)
    for package, targets in EDGES.items():
        assert all(order.index(target) < order.index(package) for target in targets), package


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_allowed_edges(path):
    package = package_of(path)
    if package in ALONE:
        return
    for module in imports_of(path):
        target = room_of(module)
        assert target in (package, "version", *EDGES[package]), f"{path.name} imports {module}"


def test_no_edge_is_allowed_that_nobody_uses():
    for package, targets in EDGES.items():
        files = [path for path in FILES if package_of(path) == package]
        used = {room_of(module) for path in files for module in imports_of(path)}
        assert set(targets) <= used, package


def test_no_two_modules_have_one_name():
    names = [path.stem for path in FILES if path.stem not in ("__init__", "__main__")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "name",
    [
        *("algorithm/theory", "algorithm/schedules", "data/data_settings", "runs/settings"),
        *("_internal/checks", "_internal/terminal", "_internal/files", "_internal/imports"),
        *("_internal/progress", "reproduce/demo_settings", "reproduce/study"),
    ],
)
def test_modules_that_options_need_do_not_know_torch(name):
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
        "from codauc.cli.main import main\n"
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


# Sizes. Lines of a function are counted without its docstring, parameters without self.

PACKAGES = 12
LINES_OF_A_FILE, LINES_OF_A_CLASS = 400, 250
PARAMETERS, FUNCTIONS_WITH_MORE = 6, 6
MEDIAN, NINETY_PERCENT = 6, 20  # lines of functions

MIRRORS = {  # signatures that users know from elsewhere
    "PPDSG.__init__": "torch.optim.SGD",
    "PPDAdam.__init__": "torch.optim.Adam",
    "Batches.__init__": "torch.utils.data.DataLoader",
    "AUCClassifier.__init__": "scikit-learn: every parameter of an estimator is an argument",
}

# What does not keep to a limit yet, and how far it is from it. A value may only become smaller.
NOT_YET = {
    "file": {},
    "class": {},
    "types of one name": set(),
}

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
CLASSES = [node for tree in TREES.values() for node in ast.walk(tree) if type(node) is ast.ClassDef]


def functions(node, owner=""):
    """Every function below a node of the tree, with the names of the classes that hold it."""
    for child in ast.iter_child_nodes(node):
        inner = f"{owner}{child.name}." if isinstance(child, ast.ClassDef) else owner
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{owner}{child.name}", child
        yield from functions(child, inner)


FUNCTIONS = [found for tree in TREES.values() for found in functions(tree)]


def lines(node):
    return node.end_lineno - node.lineno + 1


def lines_without_docstring(function):
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def parameters(function):
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_the_packages_are_few():
    beside = {"__init__.py", "__main__.py", "version.py", "py.typed", "__pycache__"}
    found = sorted(path.name for path in SOURCE.iterdir() if path.name not in beside)
    assert found == sorted(EDGES)
    assert len(found) <= PACKAGES


def test_no_source_file_is_long():
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        count = path.read_text(encoding="utf-8").count("\n")
        assert count <= NOT_YET["file"].get(name, LINES_OF_A_FILE), name


def test_no_class_is_long():
    for node in CLASSES:
        assert lines(node) <= NOT_YET["class"].get(node.name, LINES_OF_A_CLASS), node.name


def test_few_functions_have_many_parameters():
    many = {name: parameters(node) for name, node in FUNCTIONS if parameters(node) > PARAMETERS}
    own = {name: count for name, count in many.items() if name not in MIRRORS}
    most = NOT_YET.get("functions with more parameters", FUNCTIONS_WITH_MORE)
    assert len(own) <= most, own


def test_functions_are_short():
    counts = [lines_without_docstring(node) for _, node in FUNCTIONS]
    assert statistics.median(counts) <= MEDIAN
    assert statistics.quantiles(counts, n=10)[-1] <= NINETY_PERCENT


def test_no_two_types_have_one_name():
    counts = Counter(node.name for node in CLASSES)
    twice = {name for name, count in counts.items() if count > 1}
    assert twice <= NOT_YET["types of one name"]


# Private names of libraries that have no public one for the same.
PRIVATE_OF_LIBRARIES = {
    "_asdict": "NamedTuple: public in spite of its name",
    "_fields": "NamedTuple: public in spite of its name",
    "_replace": "NamedTuple: public in spite of its name",
    "_buffers": "torch.nn.Module: a buffer is replaced without a copy",
    "_parameters": "torch.nn.Module: a parameter is replaced without a copy",
    **{
        f"_foreach_{name}": "torch: what its own optimizers call"
        for name in ("add_", "mul_", "lerp_", "sqrt", "addcmul_", "addcdiv_")
    },
    "_active_ddp_module": "torch: which DistributedDataParallel runs a forward pass",
    "_C": "torch: whether it traces or transforms a function",
    "_are_functorch_transforms_active": "torch: whether it transforms a function",
    "_get_tracing_state": "torch: whether it traces",
    "_is_tracing": "torch: whether it traces",
    "_profiler_enabled": "torch: whether it profiles",
    "_set_pg_timeout": "torch: the name before set_timeout was public",
    "_actions": "argparse: the options of a parser",
    "_SubParsersAction": "argparse: the commands of a parser",
    "_children": "multiprocessing: active_children() would reap them",
    "_linear_pointwise": "oneDNN's product of matrices, with a plain path beside it",
    "_type_": "ctypes: public in spite of its name",
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(tree):
    """What a module defines: functions, classes, variables, attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            yield node.attr


def of_self(node):
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def private_names_reached(tree):
    """Private names that a module takes from other modules or from objects of their types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not of_self(node):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codauc"):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            *("getattr", "setattr", "hasattr", "delattr"),
        ):
            yield from (str(a.value) for a in node.args[1:2] if isinstance(a, ast.Constant))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_reaches_a_private_name_of_another(path):
    reached = set(filter(is_private, private_names_reached(TREES[path])))
    assert not reached - set(own_names(TREES[path])) - set(PRIVATE_OF_LIBRARIES)
