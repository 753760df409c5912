"""The one place that checks the types of our own JSON and TOML files."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albertkit import files
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, atomic_folder, lock_folder, read_typed


@dataclass(frozen=True)
class Part:
    name: str
    share: float = 0.5


@dataclass(frozen=True)
class Whole:
    step: int
    parts: list[Part] = field(default_factory=list)
    where: Path | None = None


def test_a_file_becomes_a_value_of_its_type(tmp_path):
    (tmp_path / "a.json").write_text(
        '{"step": 3, "parts": [{"name": "x", "share": 1}], "unknown": [1]}'
    )
    assert read_typed(tmp_path / "a.json", Whole) == Whole(3, [Part("x", 1.0)])
    (tmp_path / "a.toml").write_text('step = 3\n[[parts]]\nname = "x"\n')
    assert read_typed(tmp_path / "a.toml", Whole) == Whole(3, [Part("x")])
    (tmp_path / "b.json").write_text('{"a": -Infinity}')  # a metric that was not defined
    assert read_typed(tmp_path / "b.json", dict[str, float]) == {"a": float("-inf")}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "is not valid JSON: Expecting value: line 1 column 1"),
        ('{"step": 1', "is not valid JSON: Expecting"),
        ("[" * 100_000, "is not valid JSON"),
        ("9" * 6_000, "is not valid JSON"),
        ("[]", "expected `object`, found `array`"),
        ("{}", "lacks the key `step`"),
        ('{"step": "1"}', "`step`: expected `int`, found `str`"),
        (
            '{"step": 1, "parts": [{"name": "x"}, {"name": null}]}',
            "`parts[1].name`: expected `str`, found `null`",
        ),
    ],
)
def test_what_is_not_of_the_type_is_one_error_with_file_key_expected_and_found(
    tmp_path, text, fact
):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError) as caught:
        read_typed(tmp_path / "a.json", Whole, "thing", "make it again")
    assert str(tmp_path / "a.json") in caught.value.message
    assert fact in caught.value.message
    assert caught.value.hint == "make it again"


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)
_KEYS = st.sampled_from("step parts where name share".split())


@given(
    _JSON
    | st.fixed_dictionaries(
        {"step": _JSON}, optional={"parts": st.lists(st.dictionaries(_KEYS, _JSON)), "where": _JSON}
    )
)
@example({"step": 10**40})
@example({"step": 1, "where": "\0"})
@example({"step": 1, "parts": [{"name": "\ud800"}]})
@example({"step": "\ud800"})
def test_any_json_is_a_value_of_the_type_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, content: object
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(content))
    problem = None
    value = None
    try:
        value = read_typed(file, Whole)
    except DataError as error:
        problem = error
    if problem is not None:
        assert problem.slug == "bad-file"
        assert str(file) in problem.message
    else:
        assert type(value.step) is int
        assert all(type(part.name) is str and type(part.share) is float for part in value.parts)


def test_a_file_of_another_format_size_or_kind_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_bytes(b'a = "\xff"')
    (tmp_path / "b.toml").write_text("a = [")
    for name in ("a.toml", "b.toml"):
        with pytest.raises(DataError, match="is not valid TOML"):
            read_typed(tmp_path / name, dict[str, int])
    with pytest.raises(DataError, match="no thing at"):
        read_typed(tmp_path / "c.json", dict[str, int], "thing")
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 3)
    with pytest.raises(DataError, match="has 5 bytes, no file has as many"):
        read_typed(tmp_path / "b.toml", dict[str, int])


@pytest.mark.parametrize("write", [atomic_file, atomic_folder, lock_folder])
def test_nothing_is_written_to_an_address(tmp_path, monkeypatch, write):
    """`Path("gs://bucket/run")` is a folder `gs:` here."""
    monkeypatch.chdir(tmp_path)
    for address in ("gs://bucket/run", Path("gs://bucket/run")):
        with pytest.raises(ConfigError, match="`gs://bucket/run` is an address"), write(address):
            pass
    assert not list(tmp_path.iterdir())
