"""Fuzzing guided by coverage, with atheris: readers written in Python, from the bytes of one file.

python tests/fuzz/guided.py SECONDS            all targets, one after the other
python tests/fuzz/guided.py TARGET [libFuzzer's options]

Where hypothesis knows the formats, libFuzzer knows which bytes led to code that had not been
reached. What is found is a failure that ends the target; its input is kept as `crash-…` in the
folder that is printed.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PASSAGE = "The quick brown fox jumps over a lazy dog."


def seeds():
    """Of each target the name of its file, and good contents to begin with."""
    from albertkit.conversion.tensorflow.records import encode_example
    from albertkit.conversion.tensorflow.table import write_table

    config = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_attention_heads": 1,
        "id2label": {"0": "no"},
        "architectures": ["AlbertModel"],
    }
    question = {
        "id": "q",
        "question": "Who?",
        "answers": [{"text": "fox", "answer_start": 16}],
        "is_impossible": False,
    }
    squad = {
        "version": "v2.0",
        "data": [{"title": "t", "paragraphs": [{"context": PASSAGE, "qas": [question]}]}],
    }
    race = {
        "id": "a",
        "article": PASSAGE,
        "questions": ["Who?"],
        "options": [["a", "b", "c", "d"]],
        "answers": ["A"],
    }
    metrics = [{"event": "step", "step": 1, "loss": 2.0}, {"event": "eval", "step": 1, "loss": 1.5}]
    return {
        "config": ("config.json", [json.dumps(config).encode()]),
        "records": (
            "payload",
            [encode_example({"input_ids": [1, 2, 3], "weights": [0.5], "text": [b"x"]})],
        ),
        "table": (
            "index",
            [write_table([(b"", b"\x08\x01"), (b"a", b"\x08\x01\x12\x02"), (b"ab", b"x" * 30)])],
        ),
        "wiki": ("pages.wiki", [b'<doc id="1" url="u" title="T">\nT\n\nA text.\n</doc>\n']),
        "jsonl": ("lines.jsonl", [b'{"text": "a", "n": 1}\n{"text": "b"}\n']),
        "separated": (
            "t.csv",
            [b'id,text,label\n1,"a ""b"", c",yes\n2,d,no\n', b"id\ttext\tlabel\n1\ta\tyes\n"],
        ),
        "squad": ("train-v2.0.json", [json.dumps(squad).encode()]),
        "race": ("race.txt", [json.dumps(race).encode()]),
        "tags": ("train.txt", [b"-DOCSTART- -X- O O\n\nThe DT O O\nfox NN O B-X\n\n"]),
        "piece model": ("spiece.model", [b"\x0a\x0e\x0a\x05<pad>\x15\0\0\0\0\x18\x03"]),
        "metrics": (
            "metrics.jsonl",
            ["".join(json.dumps(line) + "\n" for line in metrics).encode()],
        ),
        "captions": ("pred.tsv", [b'k0\t[{"caption": "a dog", "conf": 0.5}]\n']),
        "lineidx": ("a.lineidx", [b"0\n4\n"]),
    }


def reader(target):
    """What reads the file of a target."""
    if target == "config":
        from albertkit.config import AlbertConfig

        return AlbertConfig.from_pretrained
    if target == "records":
        from albertkit.conversion.tensorflow.records import read_example

        return lambda file: read_example(file.read_bytes())
    if target == "table":
        from albertkit.conversion.tensorflow.records import parser_errors_name_file
        from albertkit.conversion.tensorflow.table import read_num_shards_and_entries

        def read(file):
            with parser_errors_name_file(file):
                read_num_shards_and_entries(file.read_bytes())

        return read
    if target in ("wiki", "jsonl"):
        from albertkit.corpus.documents import DocumentFile
        from albertkit.corpus.options import BuildSettings
        from albertkit.tables.files import find_inputs

        return lambda file: list(DocumentFile(find_inputs([file])[0], BuildSettings(target)))
    if target == "piece model":
        from albertkit.tokenizer.sentencepiece_model import load_processor

        return lambda file: load_processor(file.read_bytes(), file)
    if target == "metrics":
        from albertkit.training.monitor import read_metrics

        return read_metrics
    if target == "captions":
        from albertkit.captioning.score import read_caption_file

        return read_caption_file
    if target == "lineidx":
        from albertkit.captioning.swinbert_files import TsvFile

        def rows(file):
            file.with_suffix(".tsv").write_bytes(b"a\tb\nc\td\n")
            table = TsvFile(file.with_suffix(".tsv"))
            return [table.row(number) for number in range(len(table))]

        return rows
    from albertkit.tables.bad_rows import BadRows
    from albertkit.tables.columns import Columns
    from albertkit.tasks.data import read_split
    from albertkit.tasks.registry import find_task

    task_name = {"separated": "classify", "squad": "squad2", "tags": "ner", "race": "race"}[target]
    task = find_task(
        task_name, Columns(text="text", label="label") if target == "separated" else None
    )
    return lambda file: read_split(task, file, "train", BadRows("skip"))


def run(target, options):
    """Attack one reader until libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["albertkit"]):
        from albertkit.errors import AlbertKitError

        read_file = reader(target)
    name, good = seeds()[target]
    folder = Path(tempfile.mkdtemp(prefix="guided-"))
    file = folder / name
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, content in enumerate(good):
        (corpus / str(number)).write_bytes(content)

    def attack(data):
        file.write_bytes(data)
        with contextlib.suppress(AlbertKitError):
            read_file(file)

    print(f"kept in {folder}", file=sys.stderr)
    atheris.Setup(
        [
            sys.argv[0],
            "-rss_limit_mb=3000",
            "-timeout=30",
            f"-artifact_prefix={folder}/",
            *options,
            str(corpus),
        ],
        attack,
    )
    atheris.Fuzz()


def run_all(seconds):
    """Every target for its share of the time; how many failed."""
    targets = list(seeds())
    failed = 0
    for target in targets:
        limit = max(5, int(seconds / len(targets)))
        command = [sys.executable, __file__, target, f"-max_total_time={limit}", "-max_len=20000"]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace")
        runs = re.findall(r"(?:Done|#)\s*(\d+)", process.stderr)
        reached = re.findall(r"cov: (\d+)", process.stderr)
        print(
            f"{target}: {int(runs[-1]) if runs else 0:,} runs, {reached[-1] if reached else 0} edges, exit {process.returncode}",
            flush=True,
        )
        if process.returncode:
            failed += 1
            print(process.stderr[-3000:])
    return failed


if __name__ == "__main__":
    if sys.argv[1] in seeds():
        run(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(run_all(float(sys.argv[1])))
