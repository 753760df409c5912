"""Plain text whose lines are paragraphs or documents is not read as if a line were a sentence."""

import pytest
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings, TokenStore, build_store
from albertkit.corpus.build import choose_build_settings, detect_line_layout
from albertkit.corpus.sentences import split_sentences
from albertkit.errors import DataError
from albertkit.tables.files import find_inputs

SENTENCES = [f"Sentence number {n} has some words in it, and ends here." for n in range(120)]
KOREAN = [f"{n}번째 문장에도 낱말이 몇 개 있고 여기에서 끝난다." for n in range(120)]


def paragraphs(sentences, num_sentences=6):
    return [
        " ".join(sentences[n : n + num_sentences]) for n in range(0, len(sentences), num_sentences)
    ]


def write_lines(folder, lines, separator="\n"):
    path = folder / "text.txt"
    path.write_text(separator.join(lines) + "\n", encoding="utf-8")
    return path


def build(text, **settings):
    out = text.with_name("store")
    return build_store(
        [text], out, WordTokenizer(), BuildSettings(**settings), workers=0
    ), TokenStore.open(out)


@pytest.mark.parametrize("sentences", [SENTENCES, KOREAN])
@pytest.mark.parametrize(
    ("separator", "first"),
    [
        ("\n", "`--format paragraphs` if each"),
        ("\n\n", "`--sentences split` if blank"),
    ],
)
def test_paragraphs_in_lines_stop_the_build(tmp_path, sentences, separator, first):
    text = write_lines(tmp_path, paragraphs(sentences), separator)
    with pytest.raises(DataError, match=rf"(?s)doubtful.*6\.0 sentences.*hint: add {first}"):
        build(text)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("sentences", [SENTENCES, KOREAN])
def test_what_the_hint_says_keeps_every_sentence(tmp_path, sentences):
    text = write_lines(tmp_path, paragraphs(sentences))
    report, store = build(text, format="paragraphs")
    assert report.documents == 20
    assert store.num_sentences == 120
    assert report.warnings == ()


def test_a_line_that_is_said_to_be_a_sentence_is_one(tmp_path):
    report, store = build(write_lines(tmp_path, paragraphs(SENTENCES, 12)), sentences="lines")
    assert store.num_sentences == 10
    assert "a line has 132 tokens on average" in report.warnings[0]
    assert "--format paragraphs" in report.warnings[0]


@pytest.mark.parametrize("sentences", [SENTENCES, KOREAN])
def test_a_sentence_a_line_is_built_as_before(tmp_path, sentences):
    report, store = build(write_lines(tmp_path, sentences))
    assert store.num_sentences == 120
    assert report.warnings == ()


def test_a_single_line_of_any_length_is_noticed(tmp_path):
    layout = detect_line_layout(
        find_inputs([write_lines(tmp_path, [" ".join(SENTENCES * 40)])]), BuildSettings()
    )
    assert layout is not None
    assert layout.paragraphs
    assert layout.characters == pytest.approx(1 << 16, rel=0.01)


def test_little_text_says_nothing(tmp_path):
    assert (
        detect_line_layout(
            find_inputs([write_lines(tmp_path, paragraphs(SENTENCES[:12]))]), BuildSettings()
        )
        is None
    )


def test_settings_for_callers_that_cannot_ask(tmp_path):
    assert choose_build_settings(find_inputs([write_lines(tmp_path, SENTENCES)])) == BuildSettings()
    assert choose_build_settings(
        find_inputs([write_lines(tmp_path, paragraphs(SENTENCES))])
    ) == BuildSettings(format="paragraphs")
    both_files = BuildSettings(sentences="split")
    assert (
        choose_build_settings(find_inputs([write_lines(tmp_path, paragraphs(SENTENCES), "\n\n")]))
        == both_files
    )
    (tmp_path / "more.jsonl").write_text('{"text": "One. Two."}\n')
    files = find_inputs([write_lines(tmp_path, paragraphs(SENTENCES)), tmp_path / "more.jsonl"])
    assert choose_build_settings(files) == both_files


def test_long_lines_are_not_joined_when_text_is_unwrapped():
    """An open quotation mark hides the sentences after it, but only to the end of its own paragraph."""
    broken = 'He said "never and left. ' + " ".join(SENTENCES[:6])
    text = "\n".join([broken, *paragraphs(SENTENCES)])
    assert split_sentences(text, "wrapped")[-120:] == SENTENCES
    unwrapped = split_sentences("A line that is\nbroken. Here is\nmore.", "wrapped")
    assert unwrapped == ["A line that is broken.", "Here is more."]
