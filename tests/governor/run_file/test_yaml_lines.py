import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.run_file import yaml_lines


def test_every_value_has_its_line():
    document = yaml_lines.read("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")
    assert document.data == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert [
        document.line(path) for path in [("a",), ("b", 0), ("b", 1, "c"), ("b", 1, "d"), ("b", 1, "missing")]
    ] == [1, 3, 4, 5, 4]


def test_the_habits_that_bite_are_off():
    assert yaml_lines.read("a: 1e-3\nb: 2024-01-01\nc: 1.5\nd: yes").data == {
        "a": 0.001,
        "b": "2024-01-01",
        "c": 1.5,
        "d": True,
    }


def test_a_key_that_stands_twice_is_a_fault_in_its_second_line():
    document = yaml_lines.read("a: 1\nb: 2\na: 3\n")
    assert document.faults == [(("a",), 3, "key 'a' stands twice (first in line 1)")]


def test_merge_keys_give_way_to_own_keys():
    assert yaml_lines.read("x: &x {p: 1, q: 2}\ny: {<<: *x, q: 3}").data["y"] == {"p": 1, "q": 3}


def test_each_value_of_a_merged_mapping_has_the_line_where_it_is_written():
    document = yaml_lines.read(
        "x: &x\n  p: 1\n  q: {r: 2}\nz: &z {p: 8, s: 9}\ny:\n  q: {t: 3}\n  <<: [*x, *z]\n"
    )
    assert document.data["y"] == {"p": 1, "q": {"t": 3}, "s": 9}
    lines = [document.line(("y", *path)) for path in (["p"], ["q"], ["q", "t"], ["s"])]
    assert lines == [2, 6, 6, 4]
    assert document.line(("y", "q", "r")) == 6, "its own value replaces the merged one"


def test_a_fault_below_an_anchor_is_told_once():
    text = "x: &x {a: 1, a: 2, 3: b}\ny: {<<: *x}\nz: [*x, {<<: 7}]\n"
    assert yaml_lines.read(text).faults == [
        (("x", "a"), 1, "key 'a' stands twice (first in line 1)"),
        (("x",), 1, "the key 3 must be a text: put it in quotes"),
        (("z", 1), 3, "'<<' merges mappings only"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: &a {<<: *a}", 1, "nested deeper"),
        ("a: [1,\nb: }", 2, "is not YAML"),
        ("a: 1\n\tb: 2", 2, "is not YAML"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", 2, "tag"),
        ("a: !!binary aGk=", 1, "bytes values are not taken"),
        ("a: 1\nb: !!int abc", 2, "not a valid int"),
        ("1: x", 1, "must be a text"),
        ("a: &a [*a]", 1, "100 levels"),
        ("[" * 5000, 1, "nested deeper"),
        ("a: 1\nb: \x00", 2, "forbids"),
    ],
)
def test_bad_yaml_is_a_fault_with_a_line(text, line, said):
    (fault,) = yaml_lines.read(text).faults
    assert fault[1] == line
    assert said in fault[2]


def test_aliases_do_not_grow_without_bound():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (fault,) = yaml_lines.read("\n".join(rows)).faults
    assert fault[2].startswith("has aliases that stand for more than 100000 values: write less of it twice")


@pytest.mark.parametrize("pairs", ["", "k: 1"])
def test_merged_mappings_do_not_grow_without_bound(pairs):
    rows = [f"a0: &a0 {{{pairs}}}"]
    rows += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 30)}]}}" for n in range(1, 9)]
    (fault,) = yaml_lines.read("\n".join(rows)).faults
    assert fault[2].startswith("has aliases that stand for more than 100000 values")


def test_data_in_the_file_is_bounded_by_the_size_of_the_file_alone(monkeypatch):
    monkeypatch.setattr(yaml_lines, "_MAX_COPIES", 1_000)
    rows = f"- [{'x, ' * 100}]\n" * 11
    document = yaml_lines.read(f"a: &a [x]\nrows:\n{rows}b: *a\n")
    assert document.faults == []
    assert sum(map(len, document.data["rows"])) == 1_100
    assert document.data["b"] == ["x"]


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!<>|#'\" \n\t1"), max_size=60))
def test_no_text_breaks_it(text):
    yaml_lines.read(text)
