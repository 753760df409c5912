"""Looking at pretraining data: real examples as the model gets them, and what they are like on the whole."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from albertkit.pretraining.assembly import Assembled, Assembler
from albertkit.pretraining.examples import KINDS, LABELS, EpochPlan, ExampleSettings, Store, plan_epoch
from albertkit.pretraining.masking import MaskSettings
from albertkit.pretraining.usage import tokens_used, used_text

MASKED_TOKENS = 1_000_000  # tokens that the shares of masks are counted over: standard error 0.1 percentage points
_STYLES = {"mask": "bold yellow", "random": "bold magenta", "kept": "bold green"}
_FATES = {"mask": "[MASK]", "random": "random", "kept": "kept"}
_BAR = 32  # characters of the longest bar


@dataclass(frozen=True)
class Sample:
    """One example.

    Attributes:
        number: Place in the epoch.
        kind: "in order", "swapped", "random" or "single".
        label: Sentence-order label, or None.
        segments: For A and B: document number in the store, first and last sentence in that document, all from 0.
        pieces: What the model sees.
        segment_ids: 0 or 1 for each piece.
        masked: For each predicted position: position, original piece, fate ("mask", "random" or "kept").
    """

    number: int
    kind: str
    label: int | None
    segments: list[dict[str, int]]
    pieces: list[str]
    segment_ids: list[int]
    masked: list[dict[str, Any]]


@dataclass(frozen=True)
class Inspection:
    """What `inspect_store` found; shares are of 1.

    Attributes:
        documents, sentences, tokens: Counts of the store.
        one_sentence_documents: Documents of a single sentence.
        skipped_documents: Those of them that the pair task cannot use.
        examples: Examples in an epoch.
        used_share: Share of the store's tokens that the examples of an epoch show.
        kinds: Share of the examples of each kind.
        length: Mean length in tokens, and the share of examples in each tenth of the longest.
        masked_share: Predicted share of all tokens.
        fates: Shares of the predicted tokens shown as [MASK], as a random piece, as they were.
        ngrams: Share of the masked n-grams of each n, in words.
        samples: Some examples.
    """

    documents: int
    sentences: int
    tokens: int
    one_sentence_documents: int
    skipped_documents: int
    examples: int
    used_share: float
    kinds: dict[str, float]
    length: dict[str, Any]
    masked_share: float
    fates: dict[str, float]
    ngrams: dict[str, float]
    samples: list[Sample] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def inspect_store(
    store: Store,
    number: int = 3,
    seed: int = 0,
    examples: ExampleSettings | None = None,
    masks: MaskSettings | None = None,
) -> Inspection:
    """Draw the first epoch and look at it.

    Args:
        store: The token store.
        number: Examples to show.
        seed: Any whole number.
        examples: How documents become examples.
        masks: What is masked.

    Raises:
        DataError: no-examples, if no document can be used.
    """
    examples, masks = examples or ExampleSettings(max_length=128), masks or MaskSettings()
    sentences = [np.diff(np.asarray(offsets)) for offsets in store.document_offsets]
    included = [np.ones(len(counts), bool) for counts in sentences]
    plan = plan_epoch(store, included, examples, seed, epoch=0)
    assembler = Assembler(store, masks, seed)
    kinds = np.bincount(plan.examples["kind"], minlength=len(KINDS)) / len(plan.examples)
    lengths = plan.lengths()
    number = min(number, len(lengths))
    made = assembler.study(plan, np.arange(max(number, 1, int((lengths.cumsum() <= MASKED_TOKENS).sum()))), epoch=0)
    tenths = np.bincount(np.minimum(10 * (lengths - 1) // examples.max_length, 9), minlength=10) / len(lengths)
    edges = [examples.max_length * k // 10 for k in range(11)]
    tokenizer = store.tokenizer()
    fates = _fates(made, tokenizer.mask_id)
    accepted = made.ngrams[made.ngrams[:, 2] > 0, 2]
    return Inspection(
        documents=sum(map(len, sentences)),
        sentences=int(sum(counts.sum() for counts in sentences)),
        tokens=sum(len(tokens) for tokens in store.tokens),
        one_sentence_documents=int(sum((counts == 1).sum() for counts in sentences)),
        skipped_documents=plan.skipped_documents,
        examples=len(plan.examples),
        used_share=tokens_used(store, plan, included),
        kinds={KINDS[k]: float(share) for k, share in enumerate(kinds) if share > 0},
        length={
            "mean": float(lengths.mean()),
            "shares": {f"{edges[k] + 1}-{edges[k + 1]}": float(tenths[k]) for k in range(10)},
        },
        masked_share=len(fates) / made.batch.num_tokens,
        fates={name: _share(fates == name) for name in _STYLES},
        ngrams={str(n): _share(accepted == n) for n in range(1, masks.max_ngram + 1)},
        samples=[_sample(store, tokenizer, plan, made, fates, n) for n in range(number)],
    )


def _share(found: np.ndarray) -> float:
    """Share of True; 0 of nothing, as where no word fits in the few tokens that may be masked."""
    return float(found.mean()) if len(found) else 0.0


def _fates(made: Assembled, mask_id: int) -> np.ndarray:
    """The fate of each predicted token: str [P]."""
    positions = made.batch.masked_positions
    assert positions is not None
    shown, original = made.batch.input_ids[positions].numpy(), made.original_ids[positions.numpy()]
    return np.where(shown == original, "kept", np.where(shown == mask_id, "mask", "random"))


def _sample(store: Store, tokenizer: Any, plan: EpochPlan, made: Assembled, fates: np.ndarray, number: int) -> Sample:
    example, batch = plan.examples[number], made.batch
    first, end = (int(offset) for offset in batch.offsets[number : number + 2])
    assert batch.masked_positions is not None
    positions = batch.masked_positions.numpy()
    label = int(LABELS[example["kind"]])
    return Sample(
        number=number,
        kind=KINDS[example["kind"]],
        label=None if label < 0 else label,
        segments=[_where(store, example, name) for name in ("ab" if example["b_length"] else "a")],
        pieces=[tokenizer.id_to_piece(i) for i in batch.input_ids[first:end].tolist()],
        segment_ids=batch.token_type_ids[first:end].tolist(),
        masked=[
            {
                "position": int(positions[k]) - first,
                "original": tokenizer.id_to_piece(int(made.original_ids[positions[k]])),
                "fate": str(fates[k]),
            }
            for k in range(*np.searchsorted(positions, [first, end]))
        ],
    )


def _where(store: Store, example: Any, segment: str) -> dict[str, int]:
    """Document and sentences that a segment comes from."""
    shard, start = int(example[f"{segment}_shard"]), int(example[f"{segment}_start"])
    sentences, documents = store.sentence_offsets[shard], store.document_offsets[shard]
    first, last = np.searchsorted(sentences, [start, start + int(example[f"{segment}_length"]) - 1], side="right") - 1
    local = int(np.searchsorted(documents, first, side="right")) - 1
    earlier = sum(len(store.document_offsets[k]) - 1 for k in range(shard))
    begin = int(documents[local])
    return {"document": earlier + local, "first_sentence": int(first) - begin, "last_sentence": int(last) - begin}


# --- for people -------------------------------------------------------------------------------------------------------


def show(found: Inspection, console: Console | None = None) -> None:
    """Print an inspection: the samples as readable text, then what the whole is like.

    Without colour everything is still there: a predicted piece is followed by its ‹original›.
    """
    console = console or Console(highlight=False)
    console.print(
        Text.assemble(
            "predicted: ", ("[MASK]", _STYLES["mask"]), ("‹original›", "dim"), " · ",
            ("random piece", _STYLES["random"]), ("‹original›", "dim"), " · ", ("kept", _STYLES["kept"]), ("‹=›", "dim"),
        )
    )  # fmt: skip
    for sample in found.samples:
        console.print()
        _show_sample(sample, console)
    _show_statistics(found, console)


def _show_sample(sample: Sample, console: Console) -> None:
    label = "no label" if sample.label is None else f"label {sample.label}"
    console.print(
        Text.assemble(
            (f"example {sample.number}", "bold"),
            f" · {sample.kind}, {label} · {len(sample.pieces)} tokens, {len(sample.masked)} predicted",
        )
    )
    boundary = sample.segment_ids.index(1) if 1 in sample.segment_ids else len(sample.pieces)
    for name, where, begin, end in zip(
        "AB", sample.segments, (1, boundary), (boundary - 1, len(sample.pieces) - 1), strict=False
    ):
        first, last = where["first_sentence"], where["last_sentence"]
        sentences = f"sentence {first}" if first == last else f"sentences {first}–{last}"
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=1, style="bold cyan")
        grid.add_column(ratio=1)
        grid.add_row(name, Text(f"document {where['document']:,}, {sentences}", style="dim"))
        grid.add_row("", _text(sample, begin, end))
        console.print(grid)


def _text(sample: Sample, begin: int, end: int) -> Text:
    """A segment as running text, with the predicted pieces marked."""
    masked = {entry["position"]: entry for entry in sample.masked}
    text = Text()
    for position in range(begin, end):
        shown = sample.pieces[position]
        entry = masked.get(position)
        original = entry["original"] if entry else shown
        text.append(" " if original.startswith("▁") and position > begin else "")
        if entry is None:
            text.append(shown.removeprefix("▁"))
            continue
        text.append(shown.removeprefix("▁") or "▁", _STYLES[entry["fate"]])
        was = "=" if entry["fate"] == "kept" else original.removeprefix("▁") or "▁"
        text.append(f"‹{was}›", "dim")
    return text


def _show_statistics(found: Inspection, console: Console) -> None:
    skipped = f" ({found.skipped_documents:,} skipped: nothing to put in order)" if found.skipped_documents else ""
    facts = {
        "store": f"{found.documents:,} documents, {found.sentences:,} sentences, {found.tokens:,} tokens",
        "of one sentence": f"{found.one_sentence_documents:,}{skipped}",
        "examples an epoch": f"{found.examples:,}, {found.length['mean']:.1f} tokens on average",
        "tokens used an epoch": used_text(found.used_share),
        "pairs": ", ".join(f"{name} {share:.1%}" for name, share in found.kinds.items()),
        "predicted": f"{found.masked_share:.2%} of all tokens: "
        + ", ".join(f"{share:.1%} {_FATES[name]}" for name, share in found.fates.items()),
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in facts.items():
        grid.add_row(name, value)
    console.rule(style="dim")
    console.print(grid)
    console.print()
    console.print(_bars("length in tokens", found.length["shares"], "cyan"))
    console.print()
    console.print(_bars("words masked together", found.ngrams, "yellow"))


def _bars(title: str, shares: dict[str, float], style: str) -> Table:
    """A histogram, one row a class."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", min_width=9, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.title, grid.title_justify, grid.title_style = title, "left", "bold"
    longest = max(shares.values()) or 1.0
    for name, share in shares.items():
        grid.add_row(name.replace("-", "–"), f"{share:.1%}", Text("█" * round(_BAR * share / longest), style))
    return grid
