"""Looking at pretraining data: real examples as the model gets them, and what they are like on the whole."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from albertkit.command import takes
from albertkit.corpus import TokenStore
from albertkit.output.sections import (
    Bar,
    Bars,
    FactList,
    MarkedSpan,
    Panel,
    Paragraph,
    Result,
    Section,
    Tone,
)
from albertkit.pretraining.batches import Assembled, Assembler
from albertkit.pretraining.examples import (
    KINDS,
    LABELS,
    EpochPlan,
    ExampleSettings,
    format_used_share,
    plan_epoch,
    tokens_used,
)
from albertkit.pretraining.masking import MaskSettings
from albertkit.pretraining.options import InspectStoreOptions

# Tokens that the shares of masks are counted over: standard error 0.1 percentage points
MASKED_TOKENS = 1_000_000
_TONES: dict[str, Tone] = {"mask": "strong", "random": "warning", "kept": "good"}


@dataclass(frozen=True)
class Sample:
    """One example.

    Attributes:
        number: Place in the epoch.
        kind: "in order", "swapped", "random" or "single".
        label: Sentence-order label, or None.
        segments: For A and B: document number in the store, first and last sentence in that
            document, all from 0.
        pieces: What the model sees, as SentencePiece writes it.
        segment_ids: 0 or 1 for each token.
        masked: For each predicted position: position, original token, fate ("mask", "random" or
            "kept").
    """

    number: int
    kind: str
    label: int | None
    segments: list[dict[str, int]]
    pieces: list[str]
    segment_ids: list[int]
    masked: list[dict[str, Any]]

    def section(self) -> Panel:
        """Return the example as readable text."""
        label = "no label" if self.label is None else f"label {self.label}"
        boundary = self.segment_ids.index(1) if 1 in self.segment_ids else len(self.pieces)
        texts = []
        masked = {entry["position"]: entry for entry in self.masked}
        for name, segment, begin, end in zip(
            # Without [CLS] and the two [SEP]
            "AB",
            self.segments,
            (1, boundary),
            (boundary - 1, len(self.pieces) - 1),
            strict=False,
        ):
            first = segment["first_sentence"]
            last = segment["last_sentence"]
            sentences = f"sentence {first}" if first == last else f"sentences {first}–{last}"
            spans = []
            for position in range(begin, end):
                piece = self.pieces[position]
                entry = masked.get(position)
                original = entry["original"] if entry else piece
                spans.append(
                    MarkedSpan(" " if original.startswith("▁") and position > begin else "")
                )
                if entry is None:
                    spans.append(MarkedSpan(piece.removeprefix("▁")))
                    continue
                # A predicted token is followed by its ‹original›.
                mark = "=" if entry["fate"] == "kept" else original.removeprefix("▁") or "▁"
                spans += [
                    MarkedSpan(piece.removeprefix("▁") or "▁", _TONES[entry["fate"]]),
                    MarkedSpan(f"‹{mark}›", "muted"),
                ]
            texts.append(
                Paragraph(spans, f"{name} · document {segment['document']:,}, {sentences}")
            )
        size = f"{len(self.pieces)} tokens, {len(self.masked)} predicted"
        return Panel(texts, f"example {self.number} · {self.kind}, {label} · {size}")


@dataclass(frozen=True)
class StoreInspection(Result):
    """Examples and counts of a store; shares are of 1.

    Attributes:
        documents, sentences, tokens: Counts of the store.
        one_sentence_documents: Documents of a single sentence.
        skipped_documents: Those of them that the pair task cannot use.
        examples: Examples in an epoch.
        used_share: Share of the store's tokens that the examples of an epoch show.
        kinds: Share of the examples of each kind.
        length: Mean length in tokens, and the share of examples in each tenth of the longest.
        masked_share: Predicted share of all tokens.
        fates: Shares of the predicted tokens shown as [MASK], as a random token, as they were.
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

    def sections(self) -> list[Section]:
        """Return the samples as readable text, then what the whole is like; nothing depends on colours."""
        originals = {"[MASK]": "original", "random token": "original", "kept": "="}
        legend = [MarkedSpan("predicted: ")]
        for (fate, mark), tone in zip(originals.items(), _TONES.values(), strict=True):
            legend += [
                MarkedSpan(fate, tone),
                MarkedSpan(f"‹{mark}›", "muted"),
                MarkedSpan(" · " if fate != "kept" else ""),
            ]
        skipped = (
            f" ({self.skipped_documents:,} skipped: nothing to put in order)"
            if self.skipped_documents
            else ""
        )
        fates = ", ".join(
            f"{share:.1%} {'[MASK]' if name == 'mask' else name}"
            for name, share in self.fates.items()
        )
        facts = {
            "store": f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens",
            "of one sentence": f"{self.one_sentence_documents:,}{skipped}",
            "examples an epoch": f"{self.examples:,}, {self.length['mean']:.1f} tokens on average",
            "tokens used an epoch": format_used_share(self.used_share),
            "pairs": ", ".join(f"{name} {share:.1%}" for name, share in self.kinds.items()),
            "predicted": f"{self.masked_share:.2%} of all tokens: {fates}",
        }
        lengths = [
            Bar(name.replace("-", "–"), share) for name, share in self.length["shares"].items()
        ]
        spans = [Bar(name, share) for name, share in self.ngrams.items()]
        return [
            Paragraph(legend),
            *(sample.section() for sample in self.samples),
            FactList(facts),
            Bars(lengths, "length in tokens"),
            Bars(spans, "words masked together"),
        ]


@takes(InspectStoreOptions)
def inspect_examples(options: InspectStoreOptions) -> StoreInspection:
    """Look at the first epoch of a store."""
    how = ExampleSettings(
        max_length=options.length,
        pair_task=options.pair_task,
        sop_pairs=options.sop_pairs,
    )
    masks = MaskSettings(masked_lm_prob=options.masked_lm_prob)
    return inspect_store(TokenStore.open(options.store), options.number, options.seed, how, masks)


def inspect_store(
    store: TokenStore,
    number: int,
    seed: int = 0,
    examples: ExampleSettings | None = None,
    masks: MaskSettings | None = None,
) -> StoreInspection:
    """Plan the first epoch of a store, mask it, and count; `number` examples are kept to be shown."""
    examples = examples or ExampleSettings(max_length=128)
    masks = masks or MaskSettings()
    sentences = [np.diff(np.asarray(offsets)) for offsets in store.document_offsets]
    included = [np.ones(len(counts), bool) for counts in sentences]
    plan = plan_epoch(store, included, examples, seed, epoch=0)
    assembler = Assembler(store, masks, seed)
    kinds = np.bincount(plan.examples["kind"], minlength=len(KINDS)) / len(plan.examples)
    lengths = plan.lengths()
    number = min(number, len(lengths))
    assembled = assembler.batch_with_drawn_masks(
        plan, np.arange(max(number, 1, int((lengths.cumsum() <= MASKED_TOKENS).sum()))), epoch=0
    )
    tenths = np.bincount(
        np.minimum(10 * (lengths - 1) // examples.max_length, 9), minlength=10
    ) / len(lengths)
    edges = [examples.max_length * k // 10 for k in range(11)]
    tokenizer = store.tokenizer()
    positions = assembled.batch.masked_positions
    assert positions is not None
    shown_ids = assembled.batch.input_ids[positions].numpy()
    original = assembled.original_ids[positions.numpy()]
    fates = np.where(
        shown_ids == original,
        "kept",
        np.where(shown_ids == tokenizer.mask_id, "mask", "random"),
    )
    # Others went beyond the budget, or met masked tokens.
    accepted = assembled.ngrams[assembled.ngrams[:, 2] > 0, 2]
    return StoreInspection(
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
        masked_share=len(fates) / assembled.batch.num_tokens,
        fates={name: _share_of_true(fates == name) for name in _TONES},
        ngrams={str(n): _share_of_true(accepted == n) for n in range(1, masks.max_ngram + 1)},
        samples=[_make_sample(store, tokenizer, plan, assembled, fates, n) for n in range(number)],
    )


def _share_of_true(flags: np.ndarray) -> float:
    """Return the share of True; 0 of nothing, as where no word fits in the few tokens that may be masked."""
    return float(flags.mean()) if len(flags) else 0.0


def _make_sample(
    store: TokenStore,
    tokenizer: Any,
    plan: EpochPlan,
    assembled: Assembled,
    fates: np.ndarray,
    number: int,
) -> Sample:
    example = plan.examples[number]
    batch = assembled.batch
    first, end = (int(offset) for offset in batch.offsets[number : number + 2])
    assert batch.masked_positions is not None
    positions = batch.masked_positions.numpy()
    label = int(LABELS[example["kind"]])
    segments = []
    for name in "ab" if example["b_length"] else "a":
        shard = int(example[f"{name}_shard"])
        start = int(example[f"{name}_start"])
        documents = store.document_offsets[shard]
        ends = [start, start + int(example[f"{name}_length"]) - 1]
        first_sentence, last_sentence = (
            np.searchsorted(store.sentence_offsets[shard], ends, side="right") - 1
        )
        local = int(np.searchsorted(documents, first_sentence, side="right")) - 1
        earlier = sum(len(store.document_offsets[k]) - 1 for k in range(shard))
        begin = int(documents[local])
        segments.append(
            {
                "document": earlier + local,
                "first_sentence": int(first_sentence) - begin,
                "last_sentence": int(last_sentence) - begin,
            }
        )
    return Sample(
        number=number,
        kind=KINDS[example["kind"]],
        label=None if label < 0 else label,
        segments=segments,
        pieces=[tokenizer.id_to_piece(i) for i in batch.input_ids[first:end].tolist()],
        segment_ids=batch.token_type_ids[first:end].tolist(),
        masked=[
            {
                "position": int(positions[k]) - first,
                "original": tokenizer.id_to_piece(int(assembled.original_ids[positions[k]])),
                "fate": str(fates[k]),
            }
            for k in range(*np.searchsorted(positions, [first, end]))
        ],
    )
