"""Labels that differ only in how they are spelled."""

import pytest

from codauc.data import read_table


def table(tmp_path):
    path = tmp_path / "labels.csv"
    rows = [("no", 12), ("Yes", 4), ("yes ", 3)]
    lines = [f"{i},{label}" for label, count in rows for i in range(count)]
    path.write_text("x,y\n" + "\n".join(lines) + "\n")
    return path


def test_the_hint_names_every_spelling(tmp_path):
    with pytest.raises(ValueError, match=r"say for example positive=\['Yes', 'yes ?'\]"):
        read_table(table(tmp_path), target="y")


def test_a_spelling_that_is_left_out_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match=r"'yes ?' counts as negative.*upper and lower case"):
        read_table(table(tmp_path), target="y", positive="Yes")
