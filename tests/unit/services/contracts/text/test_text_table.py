"""Tables as text: whatever is in them, they fit, and nothing of it is lost."""

from hypothesis import given
from hypothesis import strategies as st

from services.contracts.text.text_table import Table

CELLS = st.text(st.sampled_from("ab_ \n"), max_size=60)
ROWS = st.lists(st.tuples(*[CELLS] * 5), min_size=1, max_size=4)


@given(ROWS, st.integers(min_value=13, max_value=120))
def test_no_line_is_wider_than_asked_and_no_letter_is_lost(
    rows: list[tuple[str, ...]], width: int
) -> None:
    table = Table("t", ("one", "two", "three", "four", "five"), rows)
    lines = table.lines(width)
    assert max(map(len, lines)) <= width
    for letter in "ab_":
        before = sum(cell.count(letter) for row in (table.columns, *rows) for cell in row)
        assert sum(line.count(letter) for line in lines[1:]) == before


def test_prose_is_folded_before_a_name_is_broken() -> None:
    reason = "no node of its generation is there, and none that could run it instead is known"
    table = Table("Models", ("model", "reason"), [("sentence-embedder-multilingual", reason)])
    lines = table.lines(60)
    assert lines[:4] == [
        "Models",
        "model                           reason",
        "------------------------------  ----------------------------",
        "sentence-embedder-multilingual  no node of its generation is",
    ]
    assert " ".join(line[32:] for line in lines[3:]) == reason


def test_wide_columns_are_in_wide_tables_which_fold_nothing() -> None:
    table = Table("t", ("a", "b"), [("x", "long " * 40)], wide=("b",))
    assert table.lines(80) == ["t", "a", "-", "x"]
    assert table.lines(None)[-1] == f"x  {'long ' * 40}".rstrip()


def test_a_cell_keeps_its_lines() -> None:
    table = Table("t", ("name", "values"), [("y", "[[1 2]\n [3 4]]"), ("z", "")])
    assert table.lines(80)[3:] == ["y     [[1 2]", "       [3 4]]", "z"]


def test_an_empty_table_says_so() -> None:
    assert Table("Models", ("model",), []).lines(80) == ["Models: none"]
