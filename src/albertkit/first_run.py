"""The whole life of an ALBERT in minutes: text, tokenizer, store, pretraining, evaluation, a report."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.corpus import (
    BuildSettings,
    TokenStore,
    build_store,
    read_documents,
    write_builtin_corpus,
)
from albertkit.corpus.build import choose_build_settings
from albertkit.errors import CheckpointError, DataError
from albertkit.files import (
    check_folder_name,
    check_other_files,
    read_json,
    remove_leftovers,
    write_json,
)
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.output.render import package_versions, settings_sections, write_page
from albertkit.output.sections import Commands, FactList, Result, Section
from albertkit.pretraining.card import list_measures, table_of_measures
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.report.options import QuickstartOptions
from albertkit.report.run_page import MEASURED, curve_sections, filled_masks, pretraining_highlights
from albertkit.tables.files import find_inputs
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer
from albertkit.training.checkpoints import checkpoint_step, list_checkpoints
from albertkit.training.launch import exit_status
from albertkit.training.monitor import read_metrics

# Text the tokenizer is trained on, at most: SentencePiece holds it in memory
SAMPLE_CHARACTERS = 20_000_000

# Chosen on the built-in text; docs/log.md has what was tried. Text is short, so more of it is
# masked. One layer run twice has a loss of 5.63 (H 128, 1.5 M tokens), run four times 5.60 at twice
# the cost. From random weights the loss is 5.75 after 300 updates, from text 4.50.
SHAPE: dict[str, Any] = dict(
    embedding_size=128,
    hidden_size=192,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=768,
    initializer_range=0.04,
)
SETTINGS = PretrainSettings(
    length=64,
    # 1,024 looked better in the first million tokens; so both cores are busy (25,000 tokens/s, not
    # 17,000), and the run ends 0.3 nats lower.
    batch_tokens=2048,
    # Masking 30 to 40 % pays where text is scarce.
    masked_lm_prob=0.4,
    held_out=0.05,
    initial_weights="text",
    optimizer="adamw",
    # Without it steps are 3 to 6 times too long for several hundred updates: at 1e-3 the loss was
    # 6.24, with it 5.70.
    bias_correction=True,
    lr=2e-3,
    warmup_steps=200,
    log_every=50,
    keep=1,
)


MASK = "[MASK]"
# Of the characters of a sentence that a mask is shown in; in prose 0.97, in lines of code 0.8
_LETTERS = 0.95


@dataclass(frozen=True)
class FilledMask:
    """A sentence with one word hidden, and what a model would put there.

    Attributes:
        text: The sentence with `[MASK]` in it.
        answer: The hidden word; empty if unknown.
        predictions: Pairs of token and probability, best first.
    """

    text: str
    answer: str
    predictions: list[tuple[str, float]]


@dataclass(frozen=True)
class QuickstartResult(Result):
    """Result of the quickstart.

    Attributes:
        model: Folder of the model; albertkit and transformers load it.
        report: The HTML page.
        numbers: The evaluation on held-out documents.
        pretraining: How the pretraining went: its updates, its seconds, and how many updates were
            planned.
        examples: Masks filled in held-out sentences.
        seconds: Wall-clock time of this call.
        earlier_updates: Updates that earlier calls had made.
        next: Commands to try, and what each does.
    """

    model: Path
    report: Path
    numbers: dict[str, Any]
    pretraining: dict[str, Any]
    examples: list[FilledMask]
    seconds: float
    next: list[tuple[str, str]]
    earlier_updates: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return flat plain values for JSON."""
        return {
            **self.numbers,
            "seconds": round(self.seconds, 1),
            "pretraining": self.pretraining,
            "model": str(self.model),
            "report": str(self.report),
            "examples": [asdict(example) for example in self.examples],
        }

    def sections(self) -> list[Section]:
        """Return what was learned compared with guessing, the filled masks, and what to try next."""
        measured = self.numbers
        pretraining = self.pretraining
        min_updates, max_updates = pretraining["planned"]
        seconds = f"{60 * pretraining['minutes_used']:.0f}"
        updates = f"{pretraining['steps']:,} updates"
        duration = f"{self.seconds:.0f} seconds, {seconds} of them for {updates}"
        if self.earlier_updates:
            duration = (
                f"{self.seconds:.0f} seconds in this call; {seconds} seconds in all for {updates}, "
                f"{self.earlier_updates:,} of them made before it"
            )
        duration += f" (estimates on the way: {min_updates:,} to {max_updates:,})"
        return [
            pretraining_highlights(measured, measured),
            *filled_masks([asdict(example) for example in self.examples]),
            FactList({"model": self.model, "report": self.report, "took": duration}),
            Commands(self.next),
        ]


@takes(QuickstartOptions)
def quickstart(options: QuickstartOptions) -> QuickstartResult:
    """Make a tokenizer, a store and a tiny ALBERT from text, and show what it learned; see `QuickstartOptions`.

    Raises:
        CheckpointError: changed if `out` was made with other options; exists if it holds other
            files.
        DataError: as `build_store`. ConfigError: bad-value.
    """
    started = time.monotonic()
    out = check_folder_name(options.out)
    _claim_folder(out, options)

    _print_progress("[bold]1 of 5[/] text")
    inputs = list(options.corpus)
    if not inputs:
        text = out / "corpus.txt"
        # A build that was interrupted goes on only with the file it began with
        if not text.exists():
            write_builtin_corpus(text)
        _print_progress(
            f"  the documentation that came with this Python: {text.stat().st_size / 1e6:.1f} MB"
        )
        inputs = [str(text)]

    _print_progress("[bold]2 of 5[/] tokenizer")
    tokenizer_folder = out / "tokenizer"
    if not (tokenizer_folder / "tokenizer_config.json").exists():
        train_tokenizer(
            _sample_lines(inputs),
            tokenizer_folder,
            vocab_size=options.vocab_size,
            text_rules=options.text_rules,
            seed=options.seed,
            overwrite=True,
        )
    _print_progress(f"  {options.vocab_size:,} tokens")

    _print_progress("[bold]3 of 5[/] token store")
    store = _build_quickstart_store(out, inputs)

    _print_progress("[bold]4 of 5[/] pretraining")
    AlbertConfig(vocab_size=store.vocab_size, **SHAPE).save_pretrained(out)
    settings = replace(
        SETTINGS,
        seed=options.seed,
        config=out / "config.json",
        minutes=options.minutes,
    )
    earlier_checkpoints = list_checkpoints(out / "run")
    result = pretrain(store, out / "run", settings, resume=(out / "run" / "run.toml").exists())
    if result.model is None:
        raise KeyboardInterrupt if exit_status() == 130 else SystemExit(exit_status())

    _print_progress("[bold]5 of 5[/] evaluation on held-out documents")
    numbers = evaluate(result.model, store).to_dict()
    loaded = AlbertForPreTraining.from_pretrained(result.model, strict=True)
    tokenizer = store.tokenizer()
    held_out = store.held_out(settings.held_out, settings.seed)
    sentences = masked_sentences(store, tokenizer, held_out, count=5, seed=settings.seed)
    examples = [fill_mask(loaded, tokenizer, text, answer) for text, answer in sentences]
    report = _write_report(out, store, settings, numbers, examples)
    seconds = time.monotonic() - started
    return QuickstartResult(
        result.model,
        report,
        numbers,
        result.extent(),
        examples,
        seconds,
        next_commands_and_purposes(out),
        max(map(checkpoint_step, earlier_checkpoints), default=0),
    )


def _print_progress(line: str) -> None:
    Console(stderr=True, highlight=False).print(line)


def _build_quickstart_store(out: Path, inputs: list[str]) -> TokenStore:
    layout = choose_build_settings(find_inputs(inputs))
    if layout != BuildSettings():
        _print_progress(
            f"  its lines are paragraphs: read with --{'format paragraphs' if layout.format else 'sentences split'}"
        )
    built = build_store(inputs, out / "store", out / "tokenizer", layout)
    store = TokenStore.open(out / "store")
    _print_progress(
        f"  {store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens"
    )
    for warning in built.warnings:
        _print_progress(f"  {warning}")
    return store


def next_commands_and_purposes(out: Path) -> list[tuple[str, str]]:
    """Return commands to try next, and what each does."""
    model = out / "run" / "final"
    store = out / "store"
    run = out / "run"
    longer = f"albertkit pretrain {store} --out {out / 'longer'} --config-file {run / 'run.toml'} --minutes 30"
    masking = f"--length {SETTINGS.length} --masked-lm-prob {SETTINGS.masked_lm_prob}"
    return [
        (f"albertkit corpus inspect {store} {masking}", "look at masked examples"),
        (f"albertkit evaluate {model} {store}", "the four numbers again"),
        (longer, "train longer"),
        (
            f"albertkit quickstart --corpus YOUR-FILES --out {out.parent / 'mine'}",
            "the same on your own text",
        ),
    ]


def _claim_folder(out: Path, options: QuickstartOptions) -> None:
    """Make sure that the folder is new, or was begun with the same options."""
    chosen = {name: value for name, value in asdict(options).items() if name != "out"} | {
        "corpus": list(options.corpus)
    }
    recorded = out / "quickstart.json"
    remove_leftovers(out)
    # Until there is a tokenizer nothing depends on them, so a mistaken option can be corrected in
    # the same folder.
    if recorded.exists() and (out / "tokenizer").exists():
        if read_json(recorded) != chosen:
            raise CheckpointError(
                "changed",
                f"`{out}` was made with other arguments",
                "choose another --out, or remove the folder",
            )
    else:
        if not recorded.exists():
            check_other_files(out, [], "a quickstart")
        write_json(recorded, chosen)


def _sample_lines(inputs: list[str]) -> Iterable[str]:
    """Yield lines of the first documents, up to what the tokenizer's training should hold."""
    num_characters = 0
    for document in read_documents(inputs):
        for line in document.text.splitlines():
            if line.strip():
                yield line
        num_characters += len(document.text)
        if num_characters > SAMPLE_CHARACTERS:
            return


def _write_report(
    out: Path,
    store: TokenStore,
    settings: PretrainSettings,
    evaluation_numbers: dict[str, Any],
    examples: list[FilledMask],
) -> Path:
    run = read_metrics(out / "run")
    config = settings.model_config(store.vocab_size)
    counts = {
        "documents": store.num_documents,
        "sentences": store.num_sentences,
        "tokens": store.num_tokens,
    }
    sections = [
        pretraining_highlights(evaluation_numbers, evaluation_numbers),
        *curve_sections(run, evaluation_numbers),
        *filled_masks([asdict(example) for example in examples]),
        table_of_measures(list_measures(evaluation_numbers, evaluation_numbers), "All numbers"),
        FactList(counts, "Corpus"),
        *settings_sections(settings.to_dict(), package_versions()),
        Commands(next_commands_and_purposes(out), "What to try next"),
    ]
    subtitle = f"{config.num_parameters(heads=True):,} parameters · {run.extent}"
    return write_page(out / "report.html", out.resolve().name, sections, subtitle, footer=MEASURED)


@torch.inference_mode()
def fill_mask(
    model: AlbertForPreTraining,
    tokenizer: AlbertTokenizer,
    text: str,
    answer: str = "",
) -> FilledMask:
    """Return the five likeliest tokens for the first `[MASK]` in a text."""
    ids = tokenizer.encode(text, special_tokens=True, mask_literal=True)
    if tokenizer.mask_id not in ids:
        raise DataError(
            "bad-input",
            f"there is no {MASK} in {text!r}",
            f"put {MASK} where a word is to be guessed",
        )
    model.eval()
    batch = PackedBatch.from_sequences([ids]).to(model.predictions.bias.device)
    hidden = model.albert.encode(batch).hidden
    logits = model.predictions(hidden[ids.index(tokenizer.mask_id)]).float()
    best = logits.softmax(-1).topk(5)
    tokens = [tokenizer.id_to_piece(i) for i in best.indices.tolist()]
    return FilledMask(text, answer, list(zip(tokens, best.values.tolist(), strict=True)))


def masked_sentences(
    store: TokenStore,
    tokenizer: AlbertTokenizer,
    held_out_masks: list[np.ndarray],
    count: int,
    seed: int,
) -> list[tuple[str, str]]:
    """Return pairs of text and hidden word: sentences of held-out documents, chosen evenly, not for the model to shine.

    Only sentences of 8 to 30 tokens, most characters of which are letters, and words of one token
    and at least three letters are taken: what stands between the signs of a formula or of code is
    no word to guess.
    """
    starts = tokenizer.word_starts()
    rng = np.random.default_rng(seed)
    documents = np.flatnonzero(np.concatenate(held_out_masks))
    pairs = []
    for number in rng.permutation(documents):
        sentences = []
        for sentence in store.document(int(number)):
            if not 8 <= len(sentence) <= 30:
                continue
            text = tokenizer.decode(sentence.tolist())
            letters = sum(character.isalpha() or character.isspace() for character in text)
            if letters >= _LETTERS * len(text):
                sentences.append(sentence)
        if not sentences:
            continue
        sentence = sentences[rng.integers(len(sentences))]
        alone = starts[sentence] & np.append(starts[sentence[1:]], True)
        tokens = [tokenizer.decode([token]).strip() for token in sentence.tolist()]
        words = [p for p in np.flatnonzero(alone) if len(tokens[p]) >= 3 and tokens[p].isalpha()]
        if not words:
            continue
        masked_position = words[rng.integers(len(words))]
        ids = sentence.tolist()
        before = tokenizer.decode(ids[:masked_position])
        after = tokenizer.decode(ids[masked_position + 1 :])
        pairs.append(
            (f"{before} {MASK} {after}".strip(), tokenizer.decode([ids[masked_position]]).strip())
        )
        if len(pairs) == count:
            break
    return pairs
