"""What is installed is everything in the package."""

import shutil
import subprocess
from pathlib import Path

import pytest

import codauc

SOURCE = Path(codauc.__file__).parent


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_no_source_file_is_ignored():
    """The wheel leaves out what .gitignore names, wherever it is."""
    files = [str(p) for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    command = ["git", "-C", str(SOURCE), "check-ignore", "--no-index", "--stdin"]
    found = subprocess.run(
        command, input="\n".join(files), capture_output=True, text=True, timeout=60, check=False
    )
    if found.returncode == 128:
        pytest.skip("not a git repository")
    assert found.stdout.splitlines() == []
