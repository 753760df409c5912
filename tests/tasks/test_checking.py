"""The look at data before training: counts against plain counting, and every oddity that is to be found."""

import io
import os
import shutil
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from albertkit.errors import AlbertKitError
from albertkit.output.render import print_sections
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.answers import AnswerTask
from albertkit.tasks.check import check_data, check_task, label_findings
from albertkit.tasks.choices import ChoiceExample, choice_task
from albertkit.tasks.data import Overlap, hold_out_share, measure_overlap, read_data
from albertkit.tasks.questions import QuestionExample
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.tagging import tagging_task
from albertkit.tasks.tagging_files import TaggedExample
from albertkit.tasks.texts import TextExample, official_task, table_task
from albertkit.tokenizer import AlbertTokenizer

from .conftest import COLUMNS, read_examples, text_examples


def check(tokenizer, train, dev, kind="classification", pair=None, **settings):
    task = table_task(kind, "mine", Columns(text="text", pair=pair, label="label"), **settings)
    return check_data(task, {"train": train, "dev": dev}, tokenizer)


def render_report(report):
    """The report as a terminal shows it."""
    stream = io.StringIO()
    print_sections(report.sections(), stream)
    return stream.getvalue()


def examples(*rows):
    """Return examples from rows of text and label, or of text, pair and label."""
    return [
        TextExample(str(n), row[0], row[1] if len(row) == 3 else None, row[-1])
        for n, row in enumerate(rows)
    ]


WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()


def sound(count=40):
    """Texts that differ, with two labels."""
    return examples(
        *(
            (f"{WORDS[n % 16]} and {WORDS[n // 16]} more", "yes" if n % 2 else "no")
            for n in range(count)
        )
    )


# --- counts ---------------------------------------------------------------------------------------


def test_counts_of_cola_are_those_of_plain_counting(data, tokenizer):
    task = official_task("cola", length=20)
    rows = {
        split: read_examples(task, path, split)
        for split, path in task.files(data / "glue/CoLA").items()
        if split in ("train", "dev")
    }
    report = check_data(task, rows, tokenizer)
    plain = {
        split: [" ".join(e.text.lower().split()) for e in part] for split, part in rows.items()
    }
    for split, part in rows.items():
        split_check = report.splits[split]
        lengths = sorted(2 + len(tokenizer.encode(e.text)) for e in part)
        assert split_check.examples == len(part)
        assert split_check.labels == Counter(e.label for e in part)
        assert split_check.tokens == {
            "median": lengths[(len(part) - 1) // 2],
            "p90": lengths[-(len(part) // 10) - 1],
            "p99": lengths[-(len(part) // 100) - 1],
            "longest": lengths[-1],
        }
        assert split_check.cut == sum(n > 20 for n in lengths)
        assert split_check.windowed == 0
        assert split_check.windows == len(part)
        assert split_check.repeated == len(part) - len(set(plain[split]))
    assert (
        report.splits["dev"].overlap.same
        == sum(text in set(plain["train"]) for text in plain["dev"])
        > 0
    )
    printed = render_report(report)
    assert "cola" in printed
    assert all(finding.split(":")[0] in printed.replace("\n", " ") for finding in report.findings)


def test_squad_and_wnut(data, tokenizer):
    task = AnswerTask(name="squad2", version=2, length=128, stride=64)
    rows = read_examples(task, data / "squad/half-dev-v2.0.json.gz", "dev")[:300]
    report = check_data(task, {"train": rows[:250], "dev": rows[200:]}, tokenizer)
    train = report.splits["train"]
    dev = report.splits["dev"]
    assert train.labels == Counter(
        "impossible" if e.impossible else "answerable" for e in rows[:250]
    )
    assert dev.overlap.same == 50
    assert train.cut == 0
    assert train.windowed > 100
    assert train.windows == task.features(rows[:250], tokenizer, labelled=False).num_sequences
    shared = {e.context for e in rows[:250]}
    assert dev.overlap.sharing == sum(e.context in shared for e in rows[250:]) > 0
    tags = tagging_task("wnut17")
    sentences = read_examples(tags, data / "ner/wnut17/emerging.dev.conll", "dev")
    tag_check = check_data(tags, {"train": sentences}, tokenizer).splits["train"]
    begun = Counter(tag[2:] for e in sentences for tag in e.tags if tag.startswith("B-"))
    assert tag_check.labels == begun


# --- oddities -------------------------------------------------------------------------------------


def test_sound_data_give_no_finding(tokenizer):
    report = check(tokenizer, sound(40)[:30], sound(40)[30:])
    assert report.findings == ()
    assert "nothing odd was found" in render_report(report)


def changed(make):
    """The sound examples made otherwise."""
    return examples(*(make(number, example) for number, example in enumerate(sound())))


def hundred(n):
    return f"{WORDS[n % 10]} {WORDS[n // 10]}", "no" if n else "yes"


FIRST, SECOND = sound(2)
ODD = {
    "leak": (
        "2 of 4 dev examples are in train, too",
        sound(),
        examples(
            (f" {FIRST.text.upper()} ", "no"), (SECOND.text, "yes"), ("x", "yes"), ("y", "no")
        ),
    ),
    "punctuation": (
        "1 of 1 dev examples share a text with a training",
        sound(),
        examples((FIRST.text + "!", "no")),
    ),
    "contradictory": (
        "2 of 41 train examples have texts that occur with different labels",
        sound() + examples((FIRST.text, "yes")),
        sound(1),
    ),
    "one class": (
        "all training labels are `yes`",
        changed(lambda _, e: (e.text, "yes")),
        examples(("x", "yes")),
    ),
    "dominant": (
        "99.0% of the training labels are `no`",
        examples(*map(hundred, range(100))),
        sound(2),
    ),
    "rare": (
        "labels `maybe`: fewer than 5 training examples",
        sound() + examples(("so so", "maybe")),
        sound(2),
    ),
    "new label": (
        "finetune will stop: labels of dev that train lacks: `maybe` (1)",
        sound(),
        examples(("so so", "maybe")),
    ),
    "numbers": (
        "the labels are 40 different numbers: is this a regression",
        changed(lambda n, e: (e.text, f"{n}.5")),
        examples(("x", "1.5")),
    ),
    "wrong column": (
        "40 of 40 train examples have no letter in their text",
        changed(lambda n, e: (str(n), e.label)),
        sound(2),
    ),
    "repeated": (
        "38 of 40 train examples are repetitions",
        changed(lambda _, e: (f"same {e.label}", e.label)),
        sound(2),
    ),
    "language": (
        "of the tokens of train are unknown",
        changed(lambda _, e: (f"{e.text} 한국어 문장입니다", e.label)),
        sound(2),
    ),
    "long": (
        "longer than 16 tokens, and are cut: --length 64 holds 99%",
        changed(lambda _, e: (e.text + " word" * 40, e.label)),
        sound(2),
    ),
    "missing text": (
        "1 training text such as `NaN`: or is it missing there?",
        changed(lambda n, e: (e.text if n else "NaN", e.label)),
        sound(2),
    ),
    "same pair": (
        "100% of the training pairs have the same text twice",
        changed(lambda _, e: (e.text, e.text, e.label)),
        examples(("a", "b", "no")),
    ),
    "swapped": (
        "1 pair of dev in train the other way round",
        changed(lambda _, e: (e.text, f"is {e.text}", e.label)),
        examples((f"is {FIRST.text}", FIRST.text, "no")),
    ),
}


ALIKE = {
    "composed and not": (
        "긍정",
        unicodedata.normalize("NFD", "긍정"),
        "the form of Unicode (NFC or NFD)",
    ),
    "numbers": ("1", "1.0", "how the number is written"),
    "case": ("Pos", "pos", "upper case"),
    "width": ("Ａ", "A", "white space or the width of characters"),
    "dashes": ("non-fiction", "non–fiction", "dashes, quotes or characters that are not seen"),
    "unseen": ("yes", "yes\u2060", "dashes, quotes or characters that are not seen"),
    "marks": ("yes", "yes\u200f", "dashes, quotes or characters that are not seen"),
    "words": ("very_good", "very good", "punctuation"),
    "hyphens": ("sci-fi", "sci fi", "punctuation"),
    "in quotes": ("pos", '"pos"', "punctuation"),
    "a full stop": ("pos", "pos.", "punctuation"),
    "inner blanks": ("very good", "very  good", "white space or the width of characters"),
}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("kind", ["classification", "multilabel", "tagging"])
def test_labels_that_look_alike_are_found(name, kind):
    first, second, difference = ALIKE[name]
    finding = f"labels `{first}`, `{second}` differ in {difference} alone: are they one label?"
    other_labels = {"other": 10}
    assert finding in list(label_findings(kind, {"train": {first: 10, second: 10, **other_labels}}))
    assert finding in list(
        label_findings(kind, {"train": {first: 10, **other_labels}, "dev": {second: 10}})
    )
    assert not [
        line
        for line in label_findings(kind, {"train": {first: 10, **other_labels}})
        if "alone" in line
    ]


def test_signs_may_distinguish_labels():
    names = ["C", "C++", "C#", "-", "-1", "1", "1-10", "110", "scifi", "sci-fi", "(", ")"]
    names += ["very good", "very bad", "good", "bad", "R & B", "drum & bass", "a/b"]
    findings = label_findings("classification", {"train": dict.fromkeys(names, 10)})
    assert not [finding for finding in findings if "alone" in finding or "seem" in finding]


@pytest.mark.parametrize(
    ("kind", "separator"),
    [
        ("multilabel", "、"),
        ("multilabel", "+"),
        ("multilabel", "|"),
        ("multilabel", ";"),
        ("classification", ","),
    ],
)
def test_labels_that_are_several_names_are_found(kind, separator):
    names = ["a", "b", f"a{separator}b", f"b{separator}c"]
    [finding] = label_findings(kind, {"train": dict.fromkeys(names, 10)})
    assert finding.startswith(
        f"labels `a{separator}b`, `b{separator}c` seem to be several labels with `{separator}` between"
    )
    no_name_twice = dict.fromkeys(["and|or", "read, write", "b"], 10)
    assert not list(label_findings(kind, {"train": no_name_twice}))


def test_labels_with_blanks_between_are_found():
    names = ["a", "b", "c", "a b", "b c"]
    [finding] = label_findings("multilabel", {"train": dict.fromkeys(names, 10)})
    assert finding.startswith("labels `a b`, `b c` seem to be several labels with ` ` between")


def test_several_tags_of_one_word_are_found():
    [finding] = label_findings("tagging", {"train": {"PER|B-ORG": 10, "PER": 10}})
    assert finding.startswith("labels `PER|B-ORG` seem to be several tags of one word")


def test_labels_that_share_a_name_are_found_though_there_are_as_many_names():
    [finding] = label_findings("multilabel", {"train": dict.fromkeys(["a|b", "b|c", "a"], 10)})
    assert finding.startswith("labels `a|b`, `b|c` seem to be several labels with `|`")


@pytest.mark.parametrize("name", ODD)
def test_oddities_are_found(tokenizer, name):
    says, train, dev = ODD[name]
    pair = {"pair": "pair"} if train[0].pair is not None else {}
    report = check(tokenizer, train, dev, length=16 if name == "long" else 64, **pair)
    assert [finding for finding in report.findings if says in finding], report.findings


def test_numbers_label_sets_and_choices(tokenizer):
    numbers = [TextExample(e.id, e.text, None, 2.5) for e in sound()]
    report = check(tokenizer, numbers, numbers[:1], "regression")
    assert report.splits["train"].labels == {"lowest": 2.5, "median": 2.5, "highest": 2.5}
    assert report.findings[0] == "all training labels are 2.5: there is nothing to learn"
    sets = [
        TextExample(e.id, e.text, None, ("a", "b") if e.label == "yes" else ()) for e in sound()
    ]
    report = check(tokenizer, sets, sets[:1], "multilabel")
    assert report.splits["train"].labels == {"(no label)": 20, "a": 20, "b": 20}
    assert render_report(report).count("20   50.0%") == 3  # of the examples
    with_11_labels = [TextExample(e.id, e.text, None, str(n % 11)) for n, e in enumerate(sound())]
    assert list(check(tokenizer, with_11_labels, with_11_labels[:1]).splits["train"].labels) == [
        str(n) for n in range(11)
    ]
    questions = [
        ChoiceExample(e.id, "", e.text, ("12", "it is"), 0 if n < 36 else 1, ("A", "B"))
        for n, e in enumerate(sound())
    ]
    report = check_data(choice_task("choice"), {"train": questions}, tokenizer)
    assert report.splits["train"].labels == {"choice 1": 36, "choice 2": 4}
    split_check = report.splits["train"]
    assert split_check.windows == 80
    assert split_check.windowed == 0
    assert split_check.wordless == 0
    assert split_check.empty == 0
    assert report.findings == (
        "90.0% of the right choices are choice 1: always saying so is right as often",
    )


def test_what_finetune_would_train_on(start, table, tmp_path):
    folder = shutil.copytree(table, tmp_path / "table")
    with open(folder / "train.tsv", "a", encoding="utf-8") as stream:
        stream.write("a row without its label\n")
    report = check_task("classify", start, folder, FinetuneSettings(length=12), columns=COLUMNS)
    train = report.splits["train"]
    assert report.length == 12
    assert train.examples == 300
    assert report.splits["dev"].examples == 100
    assert train.labels == {"magic": 150, "plain": 150}
    tokenizer = AlbertTokenizer.from_pretrained(start)
    lines = (table / "train.tsv").read_text().splitlines()[1:]
    assert train.cut == sum(2 + len(tokenizer.encode(line.split("\t")[0])) > 12 for line in lines)
    assert report.findings[0] == (
        "1 row cannot be used, finetune will stop at it unless --on-error skip: "
        "`train.tsv`, line 302: 1 field, but the table has 2 columns"
    )


def test_the_check_refuses_what_finetune_refuses(start, table):
    with pytest.raises(
        AlbertKitError, match=r"\[bad-value\].*length 5000 exceeds the 64 positions"
    ):
        check_task("classify", start, table, FinetuneSettings(length=5000), columns=COLUMNS)


def test_types_and_ids_that_training_refuses_or_should_not_see(tokenizer):
    train = [
        TaggedExample("0", ("Oz", "is"), ("B-film", "O")),
        TaggedExample("0", ("no", "film"), ("O", "O")),
    ]
    dev = [
        TaggedExample("1", ("The", "Who", "Oz", "two"), ("B-band", "I-band", "B-film", "I-film"))
    ]
    task = tagging_task("ner").fitted(train)
    findings = check_data(task, {"train": train, "dev": dev}, tokenizer).findings
    assert "finetune will stop: labels of dev that train lacks: `band` (1)" in findings
    assert "1 id of train there more than once: `0`" in findings
    task.features(dev[:0], tokenizer, labelled=True)
    with pytest.raises(AlbertKitError, match=r"2 labels .*: `B-band` \(1\), `I-band` \(1\)"):
        task.features(dev, tokenizer, labelled=True)


@pytest.mark.parametrize(
    ("name", "content", "reason", "hint"),
    [
        (
            "classify",
            "sentence\tlabel\n",
            "has nothing to read but, perhaps, a header",
            "with examples",
        ),
        (
            "regress",
            "sentence\tlabel\nfine\tpos\n",
            "line 2: `label` is `pos`, not a number",
            "`classify`",
        ),
        (
            "ner",
            "text,label\ngood,pos\n",
            "line 1: one column alone, so there is no tag",
            "a word and its tag",
        ),
        (
            "race",
            "text,label\ngood,pos\n",
            "line 1: not JSON: Expecting value, column 1",
            "passage of RACE",
        ),
    ],
)
def test_why_there_are_no_examples(tmp_path, start, name, content, reason, hint):
    (tmp_path / "train.tsv").write_text(content)
    columns = COLUMNS if name in ("classify", "regress") else None
    with pytest.raises(AlbertKitError) as caught:
        check_task(name, start, tmp_path / "train.tsv", columns=columns)
    assert caught.value.slug == "too-little-data"
    assert reason in caught.value.message
    assert hint in caught.value.hint


def test_a_pipe_is_called_one(start, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(
        AlbertKitError, match=r"is not a plain file, and it must be read more than once"
    ):
        check_task("classify", start, tmp_path / "pipe.csv")


def hold_out(examples, share, kind="classification"):
    return hold_out_share(kind, examples, share, Path("train.tsv"))


def test_held_out_examples_are_stratified():
    labels = ["a"] * 600 + ["b"] * 300 + ["c"] * 99 + ["d"]
    rows = text_examples(["x"] * len(labels), labels)
    train, dev = hold_out(rows, 0.1)
    assert Counter(e.label for e in dev) == {"a": 60, "b": 30, "c": 10}
    assert sorted([*train, *dev], key=lambda e: int(e.id)) == rows
    assert hold_out(rows, 0.1) == (train, dev)
    half = Counter(e.label for e in hold_out(rows, 0.5)[1])
    assert half["d"] == 0
    assert abs(half["c"] - 50) <= 1
    sets = text_examples(
        ["x"] * 40, [("all", f"only {n}") if n % 2 else ("all",) for n in range(40)]
    )
    assert len(hold_out(sets, 0.3)[1]) == 12
    assert {e.label for e in hold_out(sets, 0.3)[1]} == {("all",)}
    with pytest.raises(AlbertKitError, match="every label"):
        hold_out(rows[-2:], 0.5)


def test_held_out_pairs_share_no_first_text():
    """A premise with one pair of each class: the class that train lacks for it would be the answer."""
    rows = [
        TextExample(str(n), f"premise {n // 3}", f"hypothesis {n}", "enc"[n % 3]) for n in range(90)
    ]
    train, dev = hold_out(rows, 0.2)
    assert not {e.text for e in train} & {e.text for e in dev}
    assert Counter(e.label for e in dev) == {"e": 6, "n": 6, "c": 6}
    # Each premise once: by class
    different = [TextExample(e.id, f"premise {e.id}", e.pair, e.label) for e in rows]
    assert {int(e.id) // 3 for e in hold_out(different, 0.2)[0]} & {
        int(e.id) // 3 for e in hold_out(different, 0.2)[1]
    }


@pytest.mark.parametrize("articles", [20, 1])
def test_held_out_questions_are_whole_articles_or_texts(articles):
    rows = [
        QuestionExample(str(n), "q", f"text {n // 5}", article=f"article {n // 5 // 2 % articles}")
        for n in range(200)
    ]
    train, dev = hold_out(rows, 0.1, "answers")
    assert 20 <= len(dev) <= 30
    assert not {e.context for e in train} & {e.context for e in dev}
    assert articles == 1 or not {e.article for e in train} & {e.article for e in dev}
    assert hold_out(rows, 0.1, "answers") == (train, dev)


def pairs(*texts):
    return [
        TextExample(str(n), first, second, "yes" if n % 2 else "no")
        for n, (first, second) in enumerate(texts)
    ]


# Kind and rows of each way in which examples have something in common, and the texts that must be
# on one side only.
CONNECTED = {
    "five times each": (
        "classification",
        [
            TextExample(str(n), f"Text {n % 60}" + "  !"[: n // 60], None, "yn"[n % 2])
            for n in range(300)
        ],
        lambda e: {e.text.rstrip(" !")},
    ),
    "in another case and width": (
        "classification",
        [
            TextExample(
                str(n), (f"text {n // 2}", f"ＴＥＸＴ {n // 2}")[n % 2], None, "yn"[n % 3 % 2]
            )
            for n in range(200)
        ],
        lambda e: {e.text.split()[1]},
    ),
    "label sets": (
        "multilabel",
        [
            TextExample(str(n), f"text {n % 50}", None, ("a",) if n % 3 else ("a", "b"))
            for n in range(200)
        ],
        lambda e: {e.text},
    ),
    "swapped pairs": (
        "classification",
        pairs(*((f"a {n // 2}", f"b {n // 2}")[:: 1 if n % 2 else -1] for n in range(200))),
        lambda e: {e.text, e.pair},
    ),
    "second texts": (
        "regression",
        [TextExample(str(n), f"a {n}", f"b {n % 40}", float(n % 5)) for n in range(200)],
        lambda e: {e.pair},
    ),
    "chains of pairs": (
        "classification",
        pairs(*((f"a {n // 4} {n % 4}", f"a {n // 4} {n % 4 + 1}") for n in range(200))),
        lambda e: {e.text, e.pair},
    ),
    "passages of choices": (
        "choice",
        [
            ChoiceExample(str(n), f"passage {n % 40}", f"q {n}", ("x", "y"), n % 2, ("A", "B"))
            for n in range(200)
        ],
        lambda e: {e.context},
    ),
    "questions of choices": (
        "choice",
        [
            ChoiceExample(str(n), "", f"question {n % 40}", ("x", f"y {n}"), n % 2, ("A", "B"))
            for n in range(200)
        ],
        lambda e: {e.question},
    ),
    "sentences": (
        "tagging",
        [TaggedExample(str(n), ("Sentence", str(n % 50)), ("B-X", "O")) for n in range(200)],
        lambda e: {e.words[1]},
    ),
    "contexts of several articles": (
        "answers",
        [
            QuestionExample(str(n), f"q {n}", f"text {n % 50}", article=f"article {n // 4 % 50}")
            for n in range(200)
        ],
        lambda e: {e.context},
    ),
}


@pytest.mark.parametrize("name", CONNECTED)
def test_held_out_examples_have_nothing_in_common_with_train(name):
    kind, rows, texts = CONNECTED[name]
    train, dev = hold_out(rows, 0.1, kind)
    assert sorted([*train, *dev], key=lambda e: int(e.id)) == rows
    assert len(rows) / 20 <= len(dev) <= len(rows) / 5
    assert not set().union(*map(texts, train)) & set().union(*map(texts, dev))
    assert measure_overlap(kind, train, dev) == Overlap()


def test_examples_that_all_hang_together_are_held_out_with_what_can_be_kept_apart():
    """Two documents with a hundred questions on each: no question is on both sides, the documents are."""
    rows = pairs(*((f"Question {n // 2 % 100}", f"document {n % 2}") for n in range(400)))
    train, dev = hold_out(rows, 0.1)
    assert 20 <= len(dev) <= 80
    assert not {e.text for e in train} & {e.text for e in dev}
    assert measure_overlap("classification", train, dev) == Overlap(sharing=len(dev))
    # A text a label
    rows = pairs(*(("one text", "another") if n % 2 else ("good", "better") for n in range(40)))
    assert measure_overlap("classification", *hold_out(rows, 0.1)) == Overlap(same=4)


def test_the_overlap_with_a_dev_file_is_said_at_every_training(tmp_path):
    train = tmp_path / "train.csv"
    dev = tmp_path / "dev.csv"
    rows = [(f"first {n}", f"second {n}", "ab"[n % 2]) for n in range(30)]
    theirs = [
        *rows[:3],
        ("SECOND 3", "first  3", "a"),
        ("first 4!", "second 4", "a"),
        ("first 5", "new", "b"),
        ("x", "y", "a"),
    ]
    for path, table in ((train, rows), (dev, theirs)):
        path.write_text("\n".join(map(",".join, [("s1", "s2", "label"), *table])))
    task = table_task("classification", "mine", Columns(text="s1", pair="s2", label="label"))
    notes = read_data(task, train, dev, 0.1, False, BadRows()).notes
    assert notes[1:] == [
        "4 of 7 dev examples are in train, too: they say nothing about new texts",
        "2 of 7 dev examples share a text with a training example",
    ]
    assert len(read_data(task, train, None, 0.1, False, BadRows()).notes) == 1
