"""Labelled data in every layout, files of predictions, and folders of fine-tuned models."""

import dataclasses
import itertools
import json

from hostile import Reader, read_each

TEXTS = [
    "A lazy dog sleeps.",
    "The fox, it jumps!",
    "서울에서 온 여우",
    'He said "no" twice.',
    "seven wizards",
    "calm rivers",
]
LABELS = "yes no maybe yes no maybe".split()
PASSAGE = "The quick brown fox jumps over a lazy dog near calm rivers."


def _rows():
    return [
        {"id": str(n), "text": t, "pair": TEXTS[-n], "label": b}
        for n, (t, b) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]


def make_tables(folder):
    import gzip

    import pyarrow as arrow
    from pyarrow import parquet

    rows = _rows()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = "".join("\t".join(row.values()) + "\n" for row in rows)
    (folder / "t.tsv").write_text("id\ttext\tpair\tlabel\n" + table)
    quoted = "".join(
        ",".join('"' + value.replace('"', '""') + '"' for value in row.values()) + "\n"
        for row in rows
    )
    (folder / "c.csv").write_text("id,text,pair,label\n" + quoted)
    (folder / "l.jsonl").write_text(lines)
    (folder / "a.json").write_text(json.dumps(rows))
    (folder / "g.tsv.gz").write_bytes(gzip.compress(("id\ttext\tpair\tlabel\n" + table).encode()))
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "p.parquet")


def read_tables(folder):
    """Every table as classes and as several labels, in quotes or as it looks."""
    from albertkit.tables.columns import Columns
    from albertkit.tasks.registry import find_task

    ways = itertools.product(("classify", "multilabel"), (None, True))
    columns = Columns(text="text", pair="pair", label="label", id="id")
    tasks = [find_task(name, dataclasses.replace(columns, quoted=quoted)) for name, quoted in ways]
    return _read_all(folder.iterdir(), tasks)


def _read_all(files, tasks):
    """The examples of every file for every task, stopping at bad rows and passing over them."""
    from albertkit.tables.bad_rows import BadRows
    from albertkit.tasks.data import read_split

    def read(file, task, on_error):
        examples = read_split(task, file, "train", BadRows(on_error))
        task.fitted(examples)
        return examples

    ways = itertools.product(sorted(files), tasks, ("stop", "skip"))
    return read_each(lambda arguments=arguments: read(*arguments) for arguments in ways)


def make_squad(folder):
    answers = [{"text": "brown fox", "answer_start": PASSAGE.index("brown fox")}]
    questions = [{"id": f"q{n}", "question": "Who jumps?", "answers": answers} for n in range(2)]
    impossible = {
        "id": "q2",
        "question": "Who?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": answers,
    }
    data = [
        {"title": "Foxes", "paragraphs": [{"context": PASSAGE, "qas": [*questions, impossible]}]}
    ]
    (folder / "train-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": data}))


def read_squad(folder):
    from albertkit.tasks.registry import find_task

    for examples in _read_all(folder.iterdir(), [find_task("squad2")]):
        assert all(e.question and e.context and (e.impossible or e.target) for e in examples)


def make_records(folder):
    rows = [
        {
            "id": f"q{n}",
            "question": "Who?",
            "context": PASSAGE,
            "answers": {"text": ["fox"], "answer_start": [16]},
        }
        for n in range(3)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_race(folder):
    for number in range(2):
        passage = {"id": f"high{number}.txt", "article": PASSAGE, "answers": ["A", "C"]}
        passage |= {
            "questions": ["Who jumps?", "Who _ ?"],
            "options": [["fox", "dog", "river", "wizard"]] * 2,
        }
        (folder / "train/high").mkdir(parents=True, exist_ok=True)
        (folder / "train/high" / f"{number}.txt").write_text(json.dumps(passage))


def read_race(folder):
    from albertkit.tasks.registry import find_task

    task = find_task("race")
    return _read_all([task.files(folder)["train"]], [task])


def make_tagged(folder):
    words = [("The", "O"), ("fox", "B-ANIMAL"), ("of", "O"), ("Seoul", "B-LOC"), ("City", "I-LOC")]
    (folder / "train.txt").write_text(
        "-DOCSTART- -X- O O\n\n" + "\n".join(f"{w} NN O {t}" for w, t in words) + "\n\nHe PRP O O\n"
    )
    (folder / "train.conll").write_text("\n".join(f"{w}\t{t}" for w, t in words) + "\n\n")
    record = {"tokens": [w for w, _ in words], "tags": [t for _, t in words]}
    (folder / "train.jsonl").write_text(json.dumps(record) + "\n")


def read_tagged(folder):
    from albertkit.tasks.registry import find_task

    return _read_all(folder.iterdir(), [find_task("ner")])


def make_glue(folder):
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (folder / "mrpc.tsv").write_text(
        head + "".join(f"{n % 2}\t{n}\t{n + 9}\t{TEXTS[n]}\t{TEXTS[-n]}\n" for n in range(6))
    )
    (folder / "cola.tsv").write_text("".join(f"x\t{n % 2}\t*\t{TEXTS[n]}\n" for n in range(6)))
    head = "index genre filename year old_index source1 source2 sentence1 sentence2 score".replace(
        " ", "\t"
    )
    rows = "".join(f"{n}\tg\tf\ty\t{n}\ts\tt\t{TEXTS[n]}\t{TEXTS[-n]}\t{n}.5\n" for n in range(4))
    (folder / "stsb.tsv").write_text(f"{head}\n{rows}")


def read_glue(folder):
    from albertkit.tasks.registry import find_task

    names = ("mrpc", "cola", "stsb")
    return read_each(
        lambda n=name: _read_all([folder / f"{n}.tsv"], [find_task(n)]) for name in names
    )


def make_predictions(folder):
    make_glue(folder)
    make_squad(folder)
    (folder / "cola-predictions.tsv").write_text(
        "index\tprediction\n" + "".join(f"{n}\t{n % 2}\n" for n in range(6))
    )
    (folder / "answers.json").write_text(json.dumps({"q0": "brown fox", "q1": "a dog", "q2": ""}))
    (folder / "null_odds.json").write_text(json.dumps({"q0": -3.5, "q1": 0.0, "q2": 4}))
    words = [("The", "O", "O"), ("fox", "B-X", "B-X"), ("of", "O", "B-X"), ("Seoul", "B-Y", "I-Y")]
    (folder / "tags.txt").write_text("\n".join(" ".join(word) for word in words) + "\n\n")


def score(folder):
    from albertkit.tasks.evaluate import score_file

    odds = folder / "null_odds.json"
    return json.dumps(
        read_each(
            [
                lambda: score_file("cola", folder / "cola-predictions.tsv", folder / "cola.tsv"),
                lambda: score_file(
                    "squad2", folder / "answers.json", folder / "train-v2.0.json", null_odds=odds
                ),
                lambda: score_file("ner", folder / "tags.txt"),
            ]
        )
    )


def make_model(folder):
    _save_classifier(folder, passes=1)


def _save_classifier(folder, passes):
    """A fine-tuned classifier with an untrained head."""
    import torch
    from read_tokenizers import make_wordpiece

    from albertkit.config import AlbertConfig
    from albertkit.tables.columns import Columns
    from albertkit.tasks.models import save_task_model
    from albertkit.tasks.registry import find_task
    from albertkit.tasks.texts import TextExample
    from albertkit.tokenizer import AlbertTokenizer

    make_wordpiece(folder)
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    task = find_task("classify", Columns(text="text", pair="pair", label="label"))
    task = task.fitted(
        [TextExample(row["id"], row["text"], row["pair"], row["label"]) for row in _rows()]
    )
    sizes = dict(
        vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=32, intermediate_size=16
    )
    sizes |= dict(
        num_hidden_layers=passes, num_attention_heads=1, max_position_embeddings=512, **task.head()
    )
    torch.manual_seed(0)
    save_task_model(folder, task.model_class(AlbertConfig.from_dict(sizes)), tokenizer, task)
    (folder / "in.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows())
    )


def predict_with(folder):
    from albertkit.pipelines.predict import predict
    from albertkit.tasks.models import load_task_model

    load_task_model(folder)
    return predict(folder, folder / "in.jsonl", folder / "out.jsonl")


def predict_lines_with(folder):
    from albertkit.pipelines.load import load_pipeline
    from albertkit.pipelines.predict import predict

    pipeline = load_pipeline(folder, precision="fp32")
    pipeline(["text", ["a", "pair"]])
    lines = folder / "lines.jsonl"
    return predict(
        folder, folder / "in.jsonl", lines, kind=pipeline.kind, on_error="skip", precision="fp32"
    )


def make_model_with_exits(folder):
    from albertkit.tasks.early_exit import ExitHeads
    from albertkit.tasks.models import load_task_model

    _save_classifier(folder, passes=3)
    config = load_task_model(folder).model.config
    ExitHeads(config.num_hidden_layers, config.hidden_size, config.num_labels).save(folder)


def leave_early_with(folder):
    from albertkit.pipelines.load import load_pipeline

    return load_pipeline(folder, precision="fp32", exits="patience:1")(["text", ["a", "pair"]])


READERS = {
    "tables": Reader(make_tables, read_tables, streams=True),
    "SQuAD": Reader(make_squad, read_squad, streams=True),
    "question records": Reader(make_records, read_squad, streams=True),
    "RACE": Reader(make_race, read_race),
    "tagged words": Reader(make_tagged, read_tagged, streams=True),
    "GLUE": Reader(make_glue, read_glue, streams=True),
    "predictions": Reader(
        make_predictions,
        score,
        ("*pred*", "answers.json", "null*", "tags.txt"),
        streams=True,
        examples=15,
    ),
    "task folder": Reader(make_model, predict_with, ("task.json", "config.json"), writes=True),
    "exit heads": Reader(
        make_model_with_exits, leave_early_with, ("exits.safetensors",), memory=128 << 20
    ),
    "lines to predict": Reader(
        make_model, predict_lines_with, ("in.jsonl", "task.json"), writes=True, streams=True
    ),
}
