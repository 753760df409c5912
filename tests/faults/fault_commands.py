"""The long commands of albertkit on small real inputs, and what of their outputs must be the same after any disturbance."""

import csv
import gzip
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# What depends on the clock and on how often a run was begun: times, speeds, plots of them, records
# of every attempt.
_VOLATILE = re.compile(
    r"metrics\.jsonl|tensorboard/|loss\.png|README\.md|SHA256SUMS|results\.html|\.png$"
)
_TIMES = re.compile(rb'"(seconds|seconds_of_updates|sha256)": "?[0-9a-f.]+"?|in [0-9.]+ s')


# Those that work long
COMMANDS = ("build", "pretrain", "finetune", "encode", "encode_parquet", "prepare")
TIMES = int(os.environ.get("ALBERTKIT_FAULTS", "12"))


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: In the table.
        line: Its arguments; `FOLDER` is the folder of an attempt.
        resumes: Whether `--resume` is needed once there is a run.
    """

    name: str
    line: str
    resumes: bool = False

    def arguments(self, folder: Path) -> list[str]:
        """Of an attempt.

        Args:
            folder: Its folder.
        """
        resumed = ["--resume"] if self.resumes and (folder / "out/run.toml").exists() else []
        return [*(word.replace("FOLDER", str(folder)) for word in self.line.split()), *resumed]


def final_bytes(root: Path) -> dict[str, bytes]:
    """What a command left in its folder: every file, without what the clock decides."""
    contents = {}
    for file in sorted(root.rglob("*")):
        name = str(file.relative_to(root))
        if file.is_file() and not _VOLATILE.search(name):
            content = file.read_bytes()
            contents[name] = (
                _TIMES.sub(b"", content) if name.endswith((".json", ".jsonl")) else content
            )
    folders = (str(folder.relative_to(root)) for folder in root.rglob("*") if folder.is_dir())
    return contents | {f"{name}/": b"" for name in folders if not _VOLATILE.search(f"{name}/")}


def differences(expected: dict[str, bytes], actual: dict[str, bytes]) -> list[str]:
    """What is too much, missing, or of other bytes."""
    return [
        f"{name}: {'missing' if name not in actual else 'too much' if name not in expected else 'other bytes'}"
        for name in sorted(expected.keys() | actual.keys())
        if expected.get(name) != actual.get(name)
    ]


class Inputs:
    """Small real inputs.

    Args:
        data: ALBERTKIT_DATA.
        folder: Where they are made.
    """

    def __init__(self, data: Path, folder: Path) -> None:
        self.folder = folder
        with gzip.open(data / "wiki-en/wiki_00.gz", "rt", encoding="utf-8") as stream:
            text = stream.read(220_000)
        lines = [
            line
            for line in text.splitlines()
            if len(line) > 40 and not line.startswith(("<doc", "</doc"))
        ]
        three = ["\n".join(lines[index : index + 3]) for index in range(0, len(lines), 3)]
        documents = [
            f'<doc id="{n}" url="" title="{n}">\n{n}\n\n{text}\n' for n, text in enumerate(three)
        ]
        self.texts = folder / "texts"
        self.texts.mkdir()
        for number in range(3):
            part = documents[number::3]
            (self.texts / f"wiki_{number:02d}").write_text(
                "".join(d + "</doc>\n" for d in part), encoding="utf-8"
            )
        self.lines = folder / "lines.txt"
        self.lines.write_text(
            "\n".join(line[:200] for line in lines[:260]) + "\n", encoding="utf-8"
        )
        self.korean = folder / "korean.txt"
        with open(data / "parallel-en-ko/tatoeba_kor-eng.txt", encoding="utf-8") as stream:
            self.korean.write_text(
                "".join(next(stream).split("\t")[1] + "\n" for _ in range(300)), encoding="utf-8"
            )
        self.pairs = folder / "pairs"
        self.pairs.mkdir()
        with open(data / "glue/MRPC/msr_paraphrase_train.txt", encoding="utf-8-sig") as stream:
            rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        for name, part in (("train", rows[:160]), ("dev", rows[160:220])):
            table = [["first", "second", "label"], *([row[3], row[4], row[0]] for row in part)]
            with open(self.pairs / f"{name}.tsv", "w", encoding="utf-8") as stream:
                stream.writelines("\t".join(row) + "\n" for row in table)
        self.clips = folder / "clips.jsonl"
        clips = [
            {
                "video": str(data / "videos" / name),
                "key": f"{number}-{name}",
                "caption": f"part {number}",
                "start": number * 0.3,
                "end": number * 0.3 + 0.3,
            }
            for name in ("part_0.mp4", "demo.mp4")
            for number in range(5)
        ]
        self.clips.write_text("".join(json.dumps(clip) + "\n" for clip in clips), encoding="utf-8")

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"

    @property
    def store(self) -> Path:
        return self.folder / "made-store/out"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def prepared(self) -> Path:
        return self.folder / "made-prepared/out"

    def first(self) -> list[list[object]]:
        """Commands that make what the others need; they warm the server, too."""
        (self.folder / "config.json").write_text(json.dumps(_TINY))
        train = ["tokenizer", "train", *sorted(self.texts.iterdir()), "--out", self.tokenizer]
        return [
            [*train, "--vocab-size", "900"],
            self.build.arguments(self.folder / "made-store"),
            [
                "init",
                "--tokenizer",
                self.tokenizer,
                "--out",
                self.model,
                "--config",
                self.folder / "config.json",
            ],
            self.prepare.arguments(self.folder / "made-prepared"),
            *(
                c.arguments(self.folder / "warm" / c.name)
                for c in (self.pretrain, self.finetune, self.encode_parquet)
            ),
        ]

    @property
    def build(self) -> Command:
        return Command(
            "corpus build",
            f"corpus build {self.texts} --tokenizer {self.tokenizer} --out FOLDER/out --workers 0 --shard-tokens 10000",
        )

    @property
    def pretrain(self) -> Command:
        return Command(
            "pretrain",
            f"pretrain {self.store} --out FOLDER/out --config {self.folder}/config.json --steps 12 "
            "--length 64 --batch-tokens 512 --save-every 2 --eval-every 4 --log-every 3 --held-out 0.1 "
            "--warmup-steps 2 --ema-decay 0.9 --device cpu --precision fp32",
            resumes=True,
        )

    @property
    def finetune(self) -> Command:
        return Command(
            "finetune",
            f"finetune classify {self.model} {self.pairs} --out FOLDER/out --text first --pair second "
            "--label label --steps 6 --eval-every 2 --batch-size 8 --length 64 --lr 1e-3 --dropout 0.1 "
            "--device cpu --precision fp32",
            resumes=True,
        )

    @property
    def tokenizer_train(self) -> Command:
        return Command(
            "tokenizer train", f"tokenizer train {self.lines} --out FOLDER/out --vocab-size 300"
        )

    @property
    def tokenizer_extend(self) -> Command:
        return Command(
            "tokenizer extend",
            f"tokenizer extend {self.tokenizer} {self.korean} --model {self.model} --out FOLDER/out "
            "--max-new 400 --min-count 2",
        )

    @property
    def convert(self) -> Command:
        return Command("convert", f"convert {self.model} FOLDER/out --to tf1")

    @property
    def export(self) -> Command:
        return Command("export onnx", f"export onnx {self.model} --out FOLDER/out")

    @property
    def predict(self) -> Command:
        return Command(
            "predict",
            f"predict {self.model} {self.lines} --kind embed --out FOLDER/out.jsonl --device cpu --precision fp32",
        )

    @property
    def embed_train(self) -> Command:
        return Command(
            "embed train",
            f"embed train scores {self.model} {self.pairs} --out FOLDER/out --text first --pair second "
            "--label label --steps 6 --eval-every 2 --batch-size 8 --length 32 --device cpu --precision "
            "fp32",
            resumes=True,
        )

    @property
    def caption_train(self) -> Command:
        return Command(
            "caption train",
            f"caption train {self.model} {self.prepared} --out FOLDER/out --steps 4 --eval-every 2 "
            "--batch-size 4 --length 8 --dev-split train --device cpu --precision fp32",
            resumes=True,
        )

    @property
    def encode(self) -> Command:
        return self._encode("npy")

    @property
    def encode_parquet(self) -> Command:
        return self._encode("parquet")

    def _encode(self, ending: str) -> Command:
        return Command(
            f"embed encode {ending}",
            f"embed encode {self.model} {self.lines} --out FOLDER/vectors.{ending} --batch-tokens 1024 "
            "--precision fp32 --device cpu",
        )

    @property
    def prepare(self) -> Command:
        return Command(
            "caption prepare",
            f"caption prepare {self.clips} --out FOLDER/out --backbone conv3d --frames 2 --size 32 "
            "--workers 1 --device cpu",
        )


_TINY = {
    "vocab_size": 900,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
