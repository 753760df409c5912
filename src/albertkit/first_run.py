"""The whole life of an ALBERT in minutes: text, tokenizer, store, pretraining, evaluation, a report."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from albertkit.config import AlbertConfig
from albertkit.corpus import BuildSettings, TokenStore, build_store, read_documents, write_builtin_corpus
from albertkit.corpus.inputs import find_inputs
from albertkit.corpus.layout import settings_for
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json, remove_leftovers, write_json
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.fill import FilledMask, fill_mask, masked_sentences
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.report import write_page
from albertkit.report.versions import versions
from albertkit.tokenizer import train_tokenizer
from albertkit.training.stopping import exit_status

SAMPLE_CHARACTERS = 20_000_000  # text the tokenizer is trained on, at most: SentencePiece holds it in memory

# Chosen on the built-in text; docs/log.md has what was tried. Text is short, so more of it is masked. One layer run twice
# reached the loss of one run four times after as many tokens, in half the time.
SHAPE: dict[str, Any] = dict(
    embedding_size=128, hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=768,
    initializer_range=0.04,
)  # fmt: skip
SETTINGS = PretrainSettings(
    length=64, batch_tokens=2048, masked_lm_prob=0.4, held_out=0.05, optimizer="adamw", bias_correction=True, lr=2e-3,
    warmup_steps=200, log_every=50, keep=1,
)  # fmt: skip


@dataclass(frozen=True)
class QuickstartResult:
    """What the quickstart made.

    Attributes:
        model: Folder of the model; albertkit and transformers load it.
        report: The HTML page.
        numbers: The evaluation on held-out documents.
        pretraining: How the pretraining went: its updates, its seconds, and how many updates were planned.
        examples: Masks filled in held-out sentences.
        seconds: Wall-clock time of everything.
    """

    model: Path
    report: Path
    numbers: dict[str, Any]
    pretraining: dict[str, Any]
    examples: list[FilledMask]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Flat plain values for JSON."""
        examples = [example.to_dict() for example in self.examples]
        paths = {"model": str(self.model), "report": str(self.report)}
        own = {"seconds": round(self.seconds, 1), "pretraining": self.pretraining}
        return {**self.numbers, **own, **paths, "examples": examples}


def quickstart(
    out: str | Path,
    corpus: Sequence[str] = (),
    *,
    vocab_size: int = 4000,
    text_rules: str = "google",
    minutes: float = 3.75,
    seed: int = 0,
) -> QuickstartResult:
    """Make a tokenizer, a store and a tiny ALBERT from text, and show what it learned.

    A killed quickstart, called again with the same arguments, goes on where it was.

    Args:
        out: Folder for everything; `corpus.txt`, `tokenizer/`, `store/`, `run/`, `report.html`.
        corpus: Files, globs or folders of text. Default: the Python documentation that every Python carries.
        vocab_size: Pieces of the tokenizer.
        text_rules: "google" for English; "multilingual" keeps accents and case.
        minutes: Time for the pretraining, its evaluations and checkpoints. As many updates are made as fit, on a busy machine
            fewer: how many is planned again and again, and the learning rate follows the plan.
        seed: Start of everything random.

    Raises:
        CheckpointError: other-quickstart if `out` was made with other arguments; folder-not-empty if it holds other files.
        DataError: as `build_store`. ConfigError: vocab-too-large, or bad-value for impossible minutes.
    """
    started = time.monotonic()
    if not 0 < minutes < math.inf:
        raise ConfigError("bad-value", f"minutes is {minutes}", "use a number above 0, for example 4")
    out = Path(out)
    say = Console(stderr=True, highlight=False).print
    arguments = dict(corpus=list(corpus), vocab_size=vocab_size, text_rules=text_rules, minutes=minutes, seed=seed)
    _claim(out, arguments)

    say("[bold]1 of 5[/] text")
    inputs = list(corpus)
    if not inputs:
        text = out / "corpus.txt"
        if not text.exists():  # a build that was interrupted goes on only with the file it began with
            write_builtin_corpus(text)
        say(f"  the documentation that came with this Python: {text.stat().st_size / 1e6:.1f} MB")
        inputs = [str(text)]

    say("[bold]2 of 5[/] tokenizer")
    tokenizer_folder = out / "tokenizer"
    if not (tokenizer_folder / "tokenizer_config.json").exists():
        train_tokenizer(
            _sample(inputs), tokenizer_folder, vocab_size=vocab_size, text_rules=text_rules, seed=seed, overwrite=True
        )
    say(f"  {vocab_size:,} pieces")

    say("[bold]3 of 5[/] token store")
    layout = settings_for(find_inputs(inputs))
    if layout != BuildSettings():
        say(f"  its lines are paragraphs: read with --{'format paragraphs' if layout.format else 'sentences split'}")
    built = build_store(inputs, out / "store", tokenizer_folder, layout)
    store = TokenStore.open(out / "store")
    say(f"  {store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens")
    for warning in built.warnings:
        say(f"  {warning}")

    say("[bold]4 of 5[/] pretraining")
    AlbertConfig(vocab_size=store.vocab_size, **SHAPE).save_pretrained(out)
    settings = replace(SETTINGS, seed=seed, config=out / "config.json", minutes=minutes)
    result = pretrain(store, out / "run", settings, resume=(out / "run" / "run.toml").exists(), title="pretraining")
    if result.model is None:
        raise KeyboardInterrupt if exit_status() == 130 else SystemExit(exit_status())

    say("[bold]5 of 5[/] evaluation on held-out documents")
    numbers = evaluate(result.model, store).to_dict()
    examples = _examples(result.model, store, settings)
    report = _write_report(out, store, settings, numbers, examples)
    return QuickstartResult(result.model, report, numbers, result.extent(), examples, time.monotonic() - started)


def next_commands(out: Path) -> list[tuple[str, str]]:
    """Commands to try next, and what each does."""
    model, store, run = out / "run" / "final", out / "store", out / "run"
    return [
        (f"albertkit corpus inspect {store}", "look at masked examples"),
        (f"albertkit evaluate {model} {store}", "the four numbers again"),
        (
            f"albertkit pretrain {store} --out {out / 'longer'} --config-file {run / 'run.toml'} --minutes 30",
            "train longer",
        ),
        (f"albertkit quickstart --corpus YOUR-FILES --out {out.parent / 'mine'}", "the same on your own text"),
    ]


def _claim(out: Path, arguments: dict[str, Any]) -> None:
    """Make sure that the folder is new, or was begun with the same arguments.

    Until there is a tokenizer nothing depends on them, so a mistaken argument can be corrected in the same folder.
    """
    recorded = out / "quickstart.json"
    remove_leftovers(out)
    if recorded.exists() and (out / "tokenizer").exists():
        if read_json(recorded) != arguments:
            raise CheckpointError(
                "other-quickstart",
                f"`{out}` was made with other arguments",
                "choose another --out, or remove the folder",
            )
    elif not recorded.exists() and out.exists() and any(out.iterdir()):
        raise CheckpointError("folder-not-empty", f"`{out}` holds other files", "choose another --out")
    else:
        write_json(recorded, arguments)


def _sample(inputs: list[str]) -> Iterable[str]:
    """Lines of the first documents, up to what the tokenizer's training should hold."""
    taken = 0
    for document in read_documents(inputs):
        for line in document.text.splitlines():
            if line.strip():
                yield line
        taken += len(document.text)
        if taken > SAMPLE_CHARACTERS:
            return


def _examples(model: Path, store: TokenStore, settings: PretrainSettings) -> list[FilledMask]:
    loaded = AlbertForPreTraining.from_pretrained(model, strict=True)
    tokenizer = store.tokenizer()
    held_out = store.held_out(settings.held_out, settings.seed)
    pairs = masked_sentences(store, tokenizer, held_out, count=5, seed=settings.seed)
    return [fill_mask(loaded, tokenizer, text, answer) for text, answer in pairs]


def _write_report(
    out: Path, store: TokenStore, settings: PretrainSettings, numbers: dict[str, Any], examples: list[FilledMask]
) -> Path:
    return write_page(
        out / "report.html",
        out.resolve().name,
        results=numbers,
        baselines=numbers,
        metrics=out / "run",
        examples=[example.to_dict() for example in examples],
        parameters=settings.model_config(store.vocab_size).num_parameters(heads=True),
        corpus={"documents": store.num_documents, "sentences": store.num_sentences, "tokens": store.num_tokens},
        settings=settings.to_dict(),
        versions=versions(),
        next_commands=next_commands(out),
    )
