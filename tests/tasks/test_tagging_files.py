"""Files of tagged sentences: schemes against seqeval, KLUE against its own annotated sentences, and everything malformed."""

import gzip
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from albertkit.errors import ConfigError, DataError
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.evaluate import score_file
from albertkit.tasks.metrics import entity_spans
from albertkit.tasks.registry import find_task
from albertkit.tasks.tagging_files import (
    SCHEMES,
    TagFileLayout,
    TaggedExample,
    read_tagged,
    write_tags,
)

from .conftest import read_examples, reread

WORDS = TagFileLayout()


def read_text(file, text, layout=WORDS, labelled=True):
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    bad_rows = BadRows("skip")
    return list(read_tagged(file, layout, labelled=labelled, bad_rows=bad_rows)), bad_rows


def read_file(file, layout=WORDS, **options):
    """Where a bad row is an error."""
    return list(read_tagged(file, layout, **{"labelled": True, "bad_rows": BadRows(), **options}))


def test_fields_of_records_that_are_not_read_are_said_at_training(tmp_path):
    record = {"tokens": ["Ann", "went", "home"], "tags": ["B-PER", "O", "O"], "fine_tags": ["B-woman", "O", "B-place"],
              "note": "checked by two people twice", "source": "web", "numbers": [1, 0, 2]}  # fmt: skip
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(record) + "\n")
    note = "`train.jsonl`: 2 fields hold texts that are not read: {}; name those to read with --text-column and --label-column"
    for layout, fields in (
        (WORDS, "`fine_tags`, `note`"),
        (TagFileLayout(tags_field="fine_tags"), "`tags`, `note`"),
    ):
        for strict in (True, False):
            bad_rows = BadRows("stop")
            assert len(read_file(file, layout, bad_rows=bad_rows, strict=strict)) == 1
            assert bad_rows.notes == ([note.format(fields)] if strict else [])


# --- real files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentences", "words", "entities"),
    [
        ("wnut17train.conll", 3394, 62730, 1975),  # Derczynski et al. 2017, table 2
        ("emerging.dev.conll", 1009, 15733, 836),
        ("emerging.test.annotated", 1287, 23394, 1079),
    ],
)
def test_wnut(data, name, sentences, words, entities):
    bad_rows = BadRows()
    examples = read_file(data / "ner/wnut17" / name, bad_rows=bad_rows)
    assert len(examples) == sentences
    assert sum(len(example.words) for example in examples) == words
    assert sum(len(entity_spans(example.tags)) for example in examples) == entities
    assert bad_rows.notes == []


def annotated(sentence):
    """KLUE's comment, `<경찰:OG>은`, as text and entities."""
    text = ""
    entities = []
    position = 0
    for match in re.finditer("<(<?[^<>]+):(PS|LC|OG|DT|TI|QT)>", sentence):
        text += sentence[position : match.start()]
        entities.append((match[2], len(text), len(text) + len(match[1]) - 1))
        text = text + match[1]
        position = match.end()
    return text + sentence[position:], entities


def test_klue_agrees_with_its_own_comments(data):
    file = data / "korean/klue/klue-ner-v1.1_dev.tsv"
    examples = read_file(file, TagFileLayout(characters=True))
    comments = re.findall(
        r"^## (klue-ner\S+)\t(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [example.id for example in examples] == [name for name, _ in comments]
    differing = [
        e.id
        for e, (_, s) in zip(examples, comments, strict=True)
        if (e.text, entity_spans(e.tags)) != annotated(s)
    ]
    assert len(examples) == 5000
    assert sum(len(example.words) for example in examples) == 285929
    assert len(differing) == 0
    assert annotated(comments[0][1].replace("OG", "PS"))[1] != entity_spans(examples[0].tags)


# --- schemes --------------------------------------------------------------------------------------


@st.composite
def sentences(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    entities = []
    position = draw(st.integers(0, 2))
    for kind, length, gap in draw(
        st.lists(
            st.tuples(
                st.sampled_from(["PER", "creative-work"]), st.integers(1, 3), st.integers(0, 2)
            ),
            max_size=5,
        )
    ):
        entities.append((kind, position, position + length - 1))
        position += length + gap
    return position + draw(st.integers(1, 3)), entities


@given(sentences(), st.sampled_from(SCHEMES))
def test_schemes_are_seqevals(sentence, scheme):
    num_words, entities = sentence
    tags = write_tags(entities, num_words, scheme)
    theirs = Entities([tags], {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES}[scheme]).entities[0]
    assert [(entity.tag, entity.start, entity.end - 1) for entity in theirs] == entities
    assert entity_spans(tags) == entities


@given(st.lists(sentences(), min_size=1, max_size=6), st.sampled_from([*SCHEMES, "BILOU"]))
def test_every_scheme_is_read_as_iob2(tmp_path_factory, contents, scheme):
    rows = [
        write_tags(entities, n, "BIOES" if scheme == "BILOU" else scheme)
        for n, entities in contents
    ]
    if scheme == "BILOU":
        rows = [[tag.replace("E-", "L-").replace("S-", "U-") for tag in tags] for tags in rows]
    text = "\n".join("".join(f"word {tag}\n" for tag in tags) for tags in rows)
    examples, bad_rows = read_text(tmp_path_factory.getbasetemp() / "tags.conll", text)
    assert [(len(example.words), entity_spans(example.tags)) for example in examples] == contents
    assert [list(example.tags) for example in examples] == [
        write_tags(entities, n) for n, entities in contents
    ]
    is_unchanged = rows == [list(example.tags) for example in examples]
    scheme_in_note = "BIOES" if scheme == "BILOU" else scheme
    assert [note.split(" has ")[1] for note in bad_rows.notes] == [
        f"{scheme_in_note} tags; they were read as IOB2"
    ] * (not is_unchanged)


def test_a_mixture_of_schemes_is_not_guessed(tmp_path):
    text = "a B-X\nb O\n\nc B-X\nd I-X\n\ne O\nf I-X\n\ng I-X\n"
    examples, bad_rows = read_text(tmp_path / "a.conll", text)
    assert [example.words for example in examples] == [("a", "b"), ("c", "d")]
    assert [(row.line, row.reason) for row in bad_rows.rows] == [
        (8, "`I-X` after `O` is not IOB2, as the file's other tags are: `B-X` would be"),
        (
            10,
            "`I-X` at the start of a sentence is not IOB2, as the file's other tags are: `B-X` would be",
        ),
    ]
    with pytest.raises(DataError, match="line 8: `I-X` after `O`"):
        read_file(tmp_path / "a.conll")


# --- layouts --------------------------------------------------------------------------------------


def test_columns_separators_and_comments(tmp_path):
    text = (
        "\ufeff-DOCSTART- -X- -X- O\r\n\r\nEU NNP B-NP B-ORG \r\n  rejects VBZ B-VP O\r\n \r\n"
        "# a comment\r\n# NN B-NP O\r\n-DOCSTART- -X- O O\r\nPeter\tNNP\tB-NP\tB-PER\r\n"
    )
    examples, bad_rows = read_text(tmp_path / "a.txt", text)
    assert examples == [
        TaggedExample("0", ("EU", "rejects"), ("B-ORG", "O")),
        TaggedExample("1", ("#",), ("O",)),
        TaggedExample("2", ("Peter",), ("B-PER",)),
    ]
    assert bad_rows.rows == []
    chunks, _ = read_text(tmp_path / "a.txt", text, TagFileLayout(tag_column=2))
    assert [example.tags for example in chunks] == [("B-NP", "B-VP"), ("B-NP",), ("B-NP",)]
    assert examples[0].text == "EU rejects"


def test_compressed(tmp_path):
    assert len(read_text(tmp_path / "a.conll.gz", gzip.compress(b"a O\n\nb B-X\n"))[0]) == 2


def test_odd_characters_are_no_line_ends(tmp_path):
    examples, _ = read_text(tmp_path / "a.conll", "a\u2028b\u0085e\tO\nc\u00a0d O\n")
    assert examples[0].words == ("a\u2028b\u0085e", "c\u00a0d")


def test_klue_characters(tmp_path):
    text = "## 주석 : ##\n## klue-0\t<박:PS> 씨#\n박\tB-PS\n \tO\n씨\tO\n#\tO\n\n## klue-1\t가\n가\tO\n\t\n나\tO\n"
    examples, bad_rows = read_text(tmp_path / "a.tsv", text, TagFileLayout(characters=True))
    assert [(example.id, example.text) for example in examples] == [
        ("klue-0", "박 씨#"),
        ("klue-1", "가"),
        ("2", "나"),
    ]
    assert examples[0].tags == ("B-PS", "O", "O", "O")
    assert examples[0].spaces is False
    assert bad_rows.rows == []
    unlabelled, _ = read_text(
        tmp_path / "b.tsv", "박\n \n씨\n\n가\n", TagFileLayout(characters=True), labelled=False
    )
    assert [example.text for example in unlabelled] == ["박 씨", "가"]


def test_jsonl(tmp_path):
    good = [
        {"id": "x", "tokens": ["New York", "!"], "tags": ["S-LOC", "O"]},
        {"tokens": ["a"], "tags": ["O"]},
    ]
    text = "\n" + "\n".join(map(json.dumps, good)) + "\n"
    examples, bad_rows = read_text(tmp_path / "a.jsonl", text)
    assert examples == [
        TaggedExample("x", ("New York", "!"), ("B-LOC", "O")),
        TaggedExample("1", ("a",), ("O",)),
    ]
    assert bad_rows.notes == [f"`{tmp_path / 'a.jsonl'}` has BIOES tags; they were read as IOB2"]
    with_guid, _ = read_text(
        tmp_path / "c.jsonl", '{"guid": "x-1", "tokens": ["a"], "tags": ["O"]}'
    )
    assert with_guid[0].id == "x-1"
    unlabelled, _ = read_text(tmp_path / "b.jsonl", '{"tokens": ["a", "b"]}', labelled=False)
    assert unlabelled == [TaggedExample("0", ("a", "b"))]


# --- what cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("word", "number of columns 1, of the first line 2"),
        ("New York B-LOC", "number of columns 3, of the first line 2"),
        ("word PER", "tag `PER` is neither `O` nor `B-…`, `I-…`, `E-…` or `S-…`"),
        ("word B-", "tag `B-` is neither `O` nor `B-…`, `I-…`, `E-…` or `S-…`"),
        ("word\t", "tag `` is neither `O` nor `B-…`, `I-…`, `E-…` or `S-…`"),
        ("\tO", "'' is not a word: it is empty, or has a tab or a line break"),
        (" \tO", "' ' is not a word: it is empty, or has a tab or a line break"),
        ("caf\udce9 O", "bytes that are not UTF-8"),
    ],
)
def test_a_bad_line_takes_its_sentence_with_it(tmp_path, line, reason):
    text = f"good O\n\nbefore O\n{line}\nafter X\n\nlast O\n".encode("utf-8", "surrogateescape")
    examples, bad_rows = read_text(tmp_path / "a.conll", text)
    assert [(example.id, example.words) for example in examples] == [
        ("0", ("good",)),
        ("2", ("last",)),
    ]
    assert [(row.line, row.reason) for row in bad_rows.rows] == [(4, reason)]
    assert ("iconv -f LATIN1" in bad_rows.rows[0].hint) is ("UTF-8" in reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object of JSON"),
        ('{"words": ["a"], "tags": ["O"]}', "there is no field `tokens` (known: tags, words)"),
        ('{"tokens": ["a"], "tag": ["O"]}', "there is no field `tags` (did you mean `tag`?)"),
        ('{"tokens": ["a"], "tags": [0]}', "`tags` is not a list of strings"),
        ('{"tokens": "a", "tags": ["O"]}', "`tokens` is not a list of strings"),
        ('{"tokens": ["a"], "tags": []}', "1 tokens, 0 tags"),
        ('{"tokens": [], "tags": []}', "0 tokens, 0 tags"),
        (
            '{"tokens": ["a"], "tokens": ["b"], "tags": ["O"]}',
            "not JSON: the key `tokens` occurs twice",
        ),
        ('{"tokens": ["\\ud800"], "tags": ["O"]}', "bytes that are not UTF-8"),
    ],
)
def test_bad_records(tmp_path, line, reason):
    examples, bad_rows = read_text(
        tmp_path / "a.jsonl", f'{{"tokens": ["a"], "tags": ["O"]}}\n{line}\n'
    )
    assert len(examples) == 1
    assert bad_rows.rows[0].line == 2
    assert bad_rows.rows[0].reason.startswith(reason)


def test_columns_that_are_not_there(tmp_path):
    _, bad_rows = read_text(tmp_path / "a.conll", "a\nb\n")
    assert bad_rows.rows[0].reason == "one column alone, so there is no tag"
    _, bad_rows = read_text(tmp_path / "a.conll", "a O\n", TagFileLayout(tag_column=3))
    assert bad_rows.rows[0].reason == "there is no column 3 (counted from 0) among 2"
    _, bad_rows = read_text(tmp_path / "a.tsv", "ab\tO\n", TagFileLayout(characters=True))
    assert bad_rows.rows[0].reason == "`ab` is not one character"


@pytest.mark.parametrize("text", ["", "\n\n \t\n", "-DOCSTART- O\n"])
def test_nothing_in_it(tmp_path, text):
    assert read_text(tmp_path / "a.conll", text)[0] == []


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_file(tmp_path / "a.conll")


# --- columns that are no words, and comments ------------------------------------------------------

CONLL_U = (
    "# sent_id = 1\n# text = EU rejects\n1\tEU\teu\tPROPN\tB-ORG\n2\trejects\treject\tVERB\tO\n\n"
    "1-2\tdel\t_\t_\t_\n1\tde\tde\tADP\tO\n2\tel\tel\tDET\tO\n2.1\tx\t_\t_\tO\n"
)
COUNTED = {  # file, sentences
    "CoNLL-U": (CONLL_U, [["EU", "rejects"], ["de", "el"]]),
    "WikiNEuRal": (
        "0\tThis\tO\n1\tdivision\tO\n\n0\tParis\tB-LOC\n",
        [["This", "division"], ["Paris"]],
    ),
    "GermEval": (
        "#\thttp://de [2009-10-17]\n1\tBerlin\tB-LOC\n2\t#\tO\n\n#\tx\n1\tEr\tO\n",
        [["Berlin", "#"], ["Er"]],
    ),
    "through the file": ("1 a O\n2 b O\n\n3 c B-X\n4 d I-X\n", [["a", "b"], ["c", "d"]]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_column_that_counts_the_words_is_no_word(tmp_path, name):
    text, sentences = COUNTED[name]
    examples, bad_rows = read_text(tmp_path / "a.conll", text)
    assert [list(example.words) for example in examples] == sentences
    assert bad_rows.rows == []
    note = f"`{tmp_path / 'a.conll'}`: the first column counts the words of each sentence; the words are in the second"
    assert bad_rows.notes[0] == note
    assert any("2 lines with an index such as" in note for note in bad_rows.notes) is (
        name == "CoNLL-U"
    )
    unlabelled, _ = read_text(
        tmp_path / "a.conll", re.sub("[\t ][^\t\n ]*$", "", text, flags=re.M), labelled=False
    )
    assert [list(example.words) for example in unlabelled] == sentences


NAMED = {
    "blank lines": "7\tBob\tB-PER\n7\tran\tO\n\n8\tParis\tB-LOC\n8\tis\tO\n",
    "none": "7 Bob B-PER\n7 ran O\n8 Paris B-LOC\n8 is O\n",
    "words": "s-1 Bob NNP B-PER\ns-1 ran VBD O\n\ns-2 Paris NNP B-LOC\ns-2 is VBZ O\n",
    "a document": "d1 Bob B-PER\nd1 ran O\n\nd1 Paris B-LOC\nd1 is O\n",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_column_that_names_the_sentences_is_no_word(tmp_path, name):
    file = tmp_path / "train.conll"
    bad_rows = BadRows()
    file.write_text(NAMED[name])
    examples = read_examples(find_task("ner"), file, "train", bad_rows=bad_rows)
    assert [(e.words, e.tags) for e in examples] == [
        (("Bob", "ran"), ("B-PER", "O")),
        (("Paris", "is"), ("B-LOC", "O")),
    ]
    (note,) = bad_rows.notes
    assert note.endswith(
        "the first column names the sentence of each word; the words are in the second"
    )


PLACES = {
    "CoNLL-2012": "bc/00 0 0 Bob NNP B-PER\nbc/00 0 1 ran VBD O\n\n",
    "WebAnno": "1-1\t0-3\tBob\tB-PER\n1-2\t4-7\tran\tO\n\n",
    "offsets": "0 3 Bob B-PER\n4 7 ran O\n\n",
}


@pytest.mark.parametrize("name", PLACES)
def test_places_of_words_are_not_read_as_words(tmp_path, name):
    file = tmp_path / "a b.conll"
    file.write_text(2 * PLACES[name])
    with pytest.raises(DataError, match="has a letter: are they places of words") as caught:
        read_file(file)
    command = caught.value.hint.partition(": ")[2].replace("NEW_FILE", "words.conll")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    examples = read_file(tmp_path / "words.conll")
    assert [(e.words, e.tags) for e in examples] == 2 * [(("Bob", "ran"), ("B-PER", "O"))]


def test_words_that_stand_twice_are_words(tmp_path):
    text = "ha UH O\nha UH O\nho UH O\nBob NNP B-PER\n"
    assert read_text(tmp_path / "a", text)[0][0].words == ("ha", "ha", "ho", "Bob")


def test_the_language_before_the_words_of_wikiann_is_left_out(tmp_path):
    file = tmp_path / "train"
    bad_rows = BadRows()
    file.write_text("en:Bob\tB-PER\nen::\tO\n\nen:Paris\tB-LOC\n")
    assert [e.words for e in read_examples(find_task("ner"), file, "train", bad_rows=bad_rows)] == [
        ("Bob", ":"),
        ("Paris",),
    ]
    assert "every word begins with `en:`" in bad_rows.notes[0]
    predictions = tmp_path / "p"
    predictions.write_text("en:Bob\tO\nen::\tO\n\nen:Paris\tB-LOC\n")
    assert score_file("ner", predictions, file)["accuracy"] == pytest.approx(2 / 3)
    assert read_text(tmp_path / "a", "en:Bob O\nis: B-PER\n")[0][0].words == ("en:Bob", "is:")


@pytest.mark.parametrize("blank", [*" \u00a0\u2009\u3000\u200b\ufeff"])
@pytest.mark.parametrize("name", ["a.conll", "a.jsonl"])
def test_blanks_that_are_not_seen_belong_to_no_label(tmp_path, blank, name):
    words = [f"Bob{blank}", f"{blank}ran"]
    tags = [f"B-PER{blank}", f"{blank}O{blank}"]
    file = tmp_path / name
    if name == "a.jsonl":
        file.write_text(json.dumps({"tokens": words, "tags": tags}) + "\n")
    else:
        file.write_text(
            "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))
            + f"{blank}\n"
        )
    (example,) = read_examples(find_task("ner"), file, "train")
    assert example.words == ("Bob", "ran")
    assert example.tags == ("B-PER", "O")
    assert score_file("ner", file, file)["accuracy"] == 1


def test_a_line_without_its_number_takes_its_sentence_with_it(tmp_path):
    examples, bad_rows = read_text(
        tmp_path / "a.conll", "1 a O\n2 b O\n\nEU NN O\n\n1 c O\n2 d O\n"
    )
    assert [example.words for example in examples] == [("a", "b"), ("c", "d")]
    assert [(row.line, row.reason) for row in bad_rows.rows] == [
        (4, "`EU` in the first column, which counts the words of each sentence")
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"{'9' * 5000} O\n",
        "1 O\n2 O\n3 O\n",
        "1 CD O\n2 CD O\n\nEU NN O\nis VB O\n\nhe PR O\nran VB O\n",
    ],
    ids=["a long one", "alone", "in a sentence"],
)
def test_numbers_may_be_words(tmp_path, text):
    examples, bad_rows = read_text(tmp_path / "a.conll", text)
    assert [word for example in examples for word in example.words] == [
        line.split()[0] for line in text.split("\n") if line
    ]
    assert bad_rows.notes == []


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "# NN\nis VB\n\nthe DT\n# NN\n",
            [["#", "is"], ["the", "#"]],
        ),  # parts of speech: as a row has them
        ("# 1\nEU\tNN\n#\tNN\n\n# 2\n# text = is\nis\tVB\n", [["EU", "#"], ["is"]]),
        ("# one comment\n#\nis\n\n# b\nNN\n", [["#", "is"], ["NN"]]),
        (
            "# 12\nEU B-ORG\nis O\n\n# 13\n# O\n",
            [["EU", "is"], ["#"]],
        ),  # has tags, though they are not asked for
    ],
)
def test_comments_of_unlabelled_files(tmp_path, text, sentences):
    examples, bad_rows = read_text(tmp_path / "a.conll", text, labelled=False)
    assert [list(example.words) for example in examples] == sentences
    assert bad_rows.rows == []
    assert any("1 line such as `# …` read as the word `#`" in note for note in bad_rows.notes) is (
        "# NN\nis" in text
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a O\n# x y\nb O\n", "number of columns 3, of the first line 2"),
        ("a O\n# x\nb O\n", "tag `x` is neither `O` nor"),
        ("a B-X\rb O\nc O\n", "carriage returns within the line"),
    ],
)
def test_a_line_that_only_looks_like_a_comment_or_a_file_is_refused(tmp_path, text, reason):
    examples, bad_rows = read_text(tmp_path / "a.conll", text)
    assert examples == []
    assert [row.reason.startswith(reason) for row in bad_rows.rows] == [True]


def test_bmes(tmp_path):
    """As ResumeNER and MSRA-NER have them; the entities are those of the same tags in BIOES, by seqeval."""
    tags = "B-PER M-PER M-PER E-PER O S-LOC B-LOC E-LOC".split()
    (example,), bad_rows = read_text(tmp_path / "a.conll", "".join(f"字 {tag}\n" for tag in tags))
    theirs = Entities([[tag.replace("M-", "I-") for tag in tags]], IOBES).entities[0]
    assert entity_spans(example.tags) == [
        (entity.tag, entity.start, entity.end - 1) for entity in theirs
    ]
    assert entity_spans(example.tags)[0] == ("PER", 0, 3)
    assert bad_rows.rows == []


def test_fields_of_records_may_be_named_and_ner_tags_are_known(tmp_path):
    """The hub's sets have `tokens` and `ner_tags`, often beside the tags of other tasks."""
    record = {
        "tokens": ["Ann", "ran"],
        "words": ["x", "y"],
        "pos_tags": ["NNP", "VBD"],
        "ner_tags": ["B-PER", "O"],
    }
    file = tmp_path / "train.jsonl"
    [example], _ = read_text(file, json.dumps(record))
    assert example.words == ("Ann", "ran")
    assert example.tags == ("B-PER", "O")
    [example], _ = read_text(file, json.dumps({**record, "tags": ["O", "B-ACT"]}))
    assert example.tags == ("O", "B-ACT")
    task = find_task("ner", Columns(text="words", label="ner_tags"))
    [example] = read_examples(task, file, "train")
    assert example.words == ("x", "y")
    assert example.tags == ("B-PER", "O")
    assert reread(task) == task
    with pytest.raises(DataError, match="there is no field `gold`"):
        read_examples(find_task("ner", Columns(label="gold")), file, "train")
    file.write_text("Ann\tB-PER\n")
    with pytest.raises(DataError, match="columns without names, and `words` is named"):
        read_examples(task, file, "train")
    with pytest.raises(ConfigError, match="leave out --pair-column"):
        find_task("ner", Columns(label="ner_tags", pair="x"))


def test_a_second_column_of_tags_is_reported(tmp_path):
    """GermEval has nested entities in its last column; the chunks of CoNLL-2003 are tags of another kind."""
    nested = "1\tder\tO\tO\n2\tVerein\tB-ORG\tO\n3\tBerlin\tI-ORG\tB-LOC\n\n1\tBonn\tB-LOC\tO\n"
    examples, bad_rows = read_text(tmp_path / "a.tsv", nested)
    assert [example.tags for example in examples] == [("O", "O", "B-LOC"), ("O",)]
    assert (
        "column 3 has tags of the same types as column 4, the last, which is read"
        in bad_rows.notes[-1]
    )
    assert f"cut -f 1,2,3 {tmp_path / 'a.tsv'}" in bad_rows.notes[-1]
    for text, layout in (
        ("EU NNP B-NP B-ORG\nran VBD B-VP O\n", WORDS),
        ("EU B-ORG B-ORG\n", TagFileLayout(tag_column=1)),
    ):
        assert read_text(tmp_path / "b.conll", text, layout)[1].notes == []


@pytest.mark.parametrize(
    ("task", "ending"),
    [
        ("ner", "conll"),
        ("ner", "jsonl"),
        ("sst2", "tsv"),
        ("klue-nli", "jsonl"),
    ],
)
@pytest.mark.parametrize(
    "names",
    ["training validate testing", "train val test", "train valid test", "train validation test"],
)
def test_splits_have_the_same_names_in_every_task(tmp_path, task, ending, names):
    files = [tmp_path / f"{name}.{ending}" for name in names.split()]
    for file in files:
        file.touch()
    assert list(find_task(task).files(tmp_path).values()) == files


# --- texts with spans -----------------------------------------------------------------------------

SPAN_TEXTS = {
    "Ann Lee met Bo.": [(0, 7, "PER"), (12, 14, "PER")],
    "nobody here": [],
    "in Rome": [(3, 7, "LOC")],
}
SPAN_WORDS = {
    ("Ann", "Lee", "met", "Bo", "."): ("B-PER", "I-PER", "O", "B-PER", "O"),
    ("nobody", "here"): ("O", "O"),
    ("in", "Rome"): ("O", "B-LOC"),
}


def objects(marked, start, end, label):
    return [dict(zip((start, end, label), span, strict=True)) for span in marked]


SPAN_FILES = {
    "spaCy": lambda text, marked: {"text": text, "spans": objects(marked, "start", "end", "label")},
    "spaCy 2": lambda text, marked: [text, {"entities": marked}],
    "doccano": lambda text, marked: {"id": 1, "text": text, "label": marked},
    "doccano's relations": lambda text, marked: {
        "text": text,
        "entities": objects(marked, "start_offset", "end_offset", "label"),
        "relations": [],
    },
    "Prodigy": lambda text, marked: {
        "text": text,
        "tokens": [{"text": text, "id": 0}],
        "spans": objects(marked, "start", "end", "label"),
    },
    "Label Studio": lambda text, marked: {
        "data": {"text": text},
        "annotations": [
            {
                "result": [
                    {
                        "type": "labels",
                        "value": {
                            "start": start,
                            "end": end,
                            "text": text[start:end],
                            "labels": [label],
                        },
                    }
                    for start, end, label in marked
                ]
            }
        ],
    },
}


@pytest.mark.parametrize("name", SPAN_FILES)
@pytest.mark.parametrize("is_array", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
def test_the_command_that_is_named_for_spans_makes_words_and_tags(
    tmp_path, error_of, name, is_array, labelled
):
    records = [SPAN_FILES[name](text, marked) for text, marked in SPAN_TEXTS.items()]
    content = json.dumps(records, indent=1) if is_array else "\n".join(map(json.dumps, records))
    file = tmp_path / "a b.json"
    error = error_of(read_text, file, content, labelled=labelled)
    assert error.slug == "missing-column"
    assert f"`{file}` has texts with spans" in error.message
    command = error.hint.replace("python", sys.executable, 1).replace("NEW", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    examples, _ = read_text(tmp_path / "new.jsonl", (tmp_path / "new.jsonl").read_text())
    assert {example.words: example.tags for example in examples} == SPAN_WORDS


def test_a_name_that_a_shell_could_run_is_in_no_hint(tmp_path):
    record = {"text": "Ann", "$(touch x)": [[0, 3, "PER"]], "spans": []}
    _, bad_rows = read_text(tmp_path / "a.jsonl", json.dumps(record))
    assert bad_rows.rows[0].reason.startswith("there is no field `tokens`")
