"""What the library says in Python's words, the command says in its own."""

import ast
import re
from pathlib import Path

import pytest

import codauc as package
from codauc.cli.options import parsers
from codauc.cli.setting_options import in_options

SOURCE = Path(package.__file__).parent
ARGUMENT = re.compile(r"(?<![\w./-])([a-z_]+)=(?!=)")

# Arguments that a command has no option for, and why no command's person reads of them.
NOT_OF_COMMANDS = {
    "index": "pandas' own, of a frame that was saved",
    "shape": "of a file that was changed: read from the run",
    **dict.fromkeys(
        ("split", "part", "count", "keep", "held_out", "suffix", "files", "directory", "path"),
        "of Python's functions, which commands call with values of their own",
    ),
    **dict.fromkeys(
        ("augment", "balanced", "probability", "size", "worker", "rank", "channels"),
        "of Python's functions, which commands call with values of their own",
    ),
    "residual": "of a network, in --model-arguments",
    **dict.fromkeys(("head", "sample_weight", "groups", "weights"), "of Python alone"),
}
# The modules whose messages reach those who type `codauc train`, `evaluate` or `predict`.
ROOMS = ("_internal", "data", "models", "runs", "training", "cli")


def text_of(node):
    """A literal as a message has it, with X for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        parts = (v.value if isinstance(v, ast.Constant) else "'X'" for v in node.values)
        return "".join(map(str, parts))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages():
    """Every text in a raise, a warning or a note, with the file that has it."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ROOMS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            speaks = isinstance(node, ast.Raise) or (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", getattr(node.func, "attr", ""))
                in ("warn", "note", "append")
            )
            for inner in ast.walk(node) if speaks else ():
                text = text_of(inner)
                if ARGUMENT.search(text):
                    yield path.relative_to(SOURCE).as_posix(), text


FOUND = sorted(set(messages()))


def test_there_are_messages_that_name_arguments():
    names = {name for _, text in FOUND for name in ARGUMENT.findall(text)}
    assert {"drop", "positive", "target", "resume"} <= names
    assert len(FOUND) > 30


@pytest.mark.parametrize(("file", "text"), FOUND, ids=lambda value: value[:50])
def test_the_command_names_its_options_in_every_message(file, text):
    del file
    command = parsers(full=True)[1]["train"]
    said = in_options(text, command.options, command.positionals)
    left = set(ARGUMENT.findall(said)) - set(NOT_OF_COMMANDS)
    assert not left, said


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_messages_about_other_data_name_options_of_the_commands_that_read_them(name):
    command = parsers(full=True)[1][name]
    for text in ("say positive=['yes', 'maybe']", "leave it out with drop=['uuid']",
                 "target='y': expected a column"):  # fmt: skip
        assert not ARGUMENT.search(in_options(text, command.options, command.positionals))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("leave it out with drop=['uuid'].", "leave it out with --drop uuid."),
        ("drop=['a', 'b c'] and positive='yes'", "--drop 'a,b c' and --positive yes"),
        ('say positive=["it\'s"] now', "say --positive 'it'\"'\"'s' now"),
        ("pass resume=True, or out=runs/a-1", "pass --resume, or --out runs/a-1"),
        ("nan='missing' or recipe.lr=0.1", "--nan missing or --lr 0.1"),
        ("the file a=b stays; /x/drop=1 too", "the file a=b stays; /x/drop=1 too"),
    ],
)
def test_arguments_become_options_with_values_as_they_are_typed(message, said):
    assert in_options(message, parsers()[1]["train"].options) == said


def test_labels_of_other_names_are_told_apart_by_positive(run, codauc, tmp_path):
    path = tmp_path / "new.csv"
    rows = [f"{20 + i},{i},DE,{'fraudulent' if i % 3 else 'fine'}" for i in range(30)]
    path.write_text("\n".join(["age,amount,country,fraud", *rows]))
    code, _, error = codauc("evaluate", run, path)
    assert (code, "say --positive yes to take all others" in error) == (2, True), error
    code, output, error = codauc("evaluate", run, path, "--positive", "fraudulent")
    assert (code, "20 positive" in output) == (0, True), error
