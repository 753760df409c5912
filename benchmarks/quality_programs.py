"""The two programs of the race of the row `quality`: `python -m benchmarks.quality_programs JOB`.

Theirs trains as transformers' run_mlm.py does: full blocks, so that nothing is padded; masks drawn
for every batch by its own collator; AdamW, warm-up, linear decay, gradients clipped to 1. It writes
the moment of every update to `updates`, and weights to `step-N.safetensors` at the updates asked
for. Both are scored on full blocks of held-out text, masked once as BERT's collator does.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore
from albertkit.model import AlbertForMaskedLM
from albertkit.pretraining.objective import Unigram
from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings
from benchmarks.harness import scratch_folder
from benchmarks.trainer import make_trainer

WARM_UP = 0.06  # of the updates, as BERT's and RoBERTa's
MASKED = 0.15
MOST_BLOCKS = 800  # to score on: 100,000 tokens of length 128, 15,000 masked
AT_ONCE = 32  # blocks


@dataclass(frozen=True)
class PeerSetting:
    """Settings of the Trainer.

    Attributes:
        batch_size: Blocks an update.
        lr: Peak learning rate.
        initializer_range: That its weights are drawn with, which need not be the recipe's.
        bf16: Autocast to bfloat16.
        compile: `torch_compile=True`.
    """

    batch_size: int
    lr: float
    initializer_range: float
    bf16: bool = False
    compile: bool = False

    @property
    def name(self) -> str:
        """Its name as it is shown."""
        compiled = ", torch_compile" if self.compile else ""
        precision = "bf16" if self.bf16 else "fp32"
        return (
            f"transformers Trainer ({precision}{compiled}, batch {self.batch_size}, lr {self.lr:g})"
        )


def theirs(store: TokenStore, out: Path, settings: PretrainSettings, job: dict[str, Any]) -> None:
    """Train with the Trainer on the same documents; the model's shape and the output bias are the recipe's, too."""
    import transformers

    setting = PeerSetting(**job["setting"])
    held_out = store.held_out(settings.held_out, settings.seed)
    text = blocks(store, [~documents for documents in held_out], settings.length)
    config_values = settings.model_config(store.vocab_size).to_dict()
    torch.manual_seed(settings.seed)
    config = transformers.AlbertConfig(
        **{k: v for k, v in config_values.items() if k not in ("model_type", "parameter_sharing")}
    )
    config.initializer_range = setting.initializer_range
    model = transformers.AlbertForMaskedLM(config)
    frequencies = Unigram.of_store(
        store, held_out
    ).log_probabilities  # it learns sooner with this bias
    biases = dict.fromkeys(("predictions.bias", "predictions.decoder.bias"), frequencies)
    model.load_state_dict({**model.state_dict(), **biases})
    arguments: dict[str, Any] = dict(
        output_dir=str(out),
        max_steps=job["steps"],
        per_device_train_batch_size=setting.batch_size,
        learning_rate=setting.lr,
        warmup_steps=round(WARM_UP * job["steps"]),
        lr_scheduler_type="linear",
        weight_decay=0.01,
        bf16=setting.bf16,
        torch_compile=setting.compile,
        seed=settings.seed,
    )
    dataset, recorder = (
        torch.utils.data.TensorDataset(torch.from_numpy(text)),
        _recorder(out, set(job["saves"])),
    )
    make_trainer(model, dataset, _collator(store.tokenizer()), recorder, **arguments).train()


def _collator(tokenizer: Any) -> Any:
    """Return transformers' own masks, on blocks of ids; no attention mask, since nothing is padded: its fastest path."""
    import transformers

    with scratch_folder() as folder:
        tokenizer.save_pretrained(folder)
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    collate = transformers.DataCollatorForLanguageModeling(their_tokenizer, mlm_probability=MASKED)
    special = torch.tensor(tokenizer.special_ids())

    def batch(rows: list[Any]) -> dict[str, Any]:
        ids = torch.stack([row[0] for row in rows])
        inputs, labels = collate.torch_mask_tokens(
            ids, special_tokens_mask=torch.isin(ids, special)
        )
        return {"input_ids": inputs, "labels": labels}

    return batch


def _recorder(out: Path, saves: set[int]) -> Any:
    import transformers

    class Recorder(transformers.TrainerCallback):
        """Notes when updates end, and saves weights."""

        def on_step_end(
            self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
        ) -> None:
            with open(out / "updates", "a", encoding="utf-8") as stream:
                stream.write(f"{time.time()}\n")
            if state.global_step in saves:
                # The decoder's matrix is the embeddings', its bias the head's.
                weights = {k: v for k, v in model.state_dict().items() if ".decoder." not in k}
                save_file(
                    {k.removeprefix("_orig_mod."): v for k, v in weights.items()},
                    out / "unfinished",
                )
                (out / "unfinished").rename(out / f"step-{state.global_step:06d}.safetensors")

    return Recorder()


# --- what both are scored on ----------------------------------------------------------------------


def blocks(store: TokenStore, included: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Cut documents, each as [CLS] tokens [SEP], one after the other, into full blocks, as transformers' run_mlm.py does.

    Args:
        store: The token store.
        included: Per shard, the documents to use.
        length: Tokens of a block.

    Returns:
        int64 [blocks, length]; what is left over at the end is dropped, as there.
    """
    tokenizer = store.tokenizer()
    parts = []
    for shard in range(store.num_shards):
        starts = store.sentence_offsets[shard][store.document_offsets[shard]]
        for document in np.flatnonzero(included[shard]):
            tokens = store.tokens[shard][starts[document] : starts[document + 1]]
            parts += [[tokenizer.cls_id], tokens, [tokenizer.sep_id]]
    stream = np.concatenate(parts, dtype=np.int64)
    return stream[: len(stream) // length * length].reshape(-1, length)


def masked_batches(text: np.ndarray, tokenizer: Any) -> list[PackedBatch]:
    """Draw 15 % of the ordinary tokens of blocks [B, S] one by one: 80 % become [MASK], 10 % a random token, 10 % stay."""
    draws = np.random.default_rng(0)  # the same masks for all
    chosen = (draws.random(text.shape) < MASKED) & ~np.isin(text, tokenizer.special_ids())
    fate, tokens = draws.random(text.shape), draws.integers(0, tokenizer.vocab_size, text.shape)
    inputs = np.where(
        chosen & (fate < 0.8), tokenizer.mask_id, np.where(chosen & (fate >= 0.9), tokens, text)
    )
    batches = []
    for start in range(0, len(text), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        positions = [np.flatnonzero(row) for row in chosen[part]]
        labels = [
            row[chosen_positions].tolist()
            for row, chosen_positions in zip(text[part], positions, strict=True)
        ]
        batches.append(
            PackedBatch.from_sequences(
                inputs[part].tolist(),
                None,
                [chosen_positions.tolist() for chosen_positions in positions],
                labels,
            )
        )
    return batches


class Judge:
    """Scores saved weights of either side on the documents that neither has seen.

    Attributes:
        unigram_loss: Of the same masked tokens under the frequencies of the training documents, in
            nats.
        predictions: Masked tokens scored.
    """

    def __init__(
        self, store: TokenStore, held_out: list[np.ndarray], config: AlbertConfig, length: int
    ) -> None:
        text = blocks(store, held_out, length)
        # Evenly from all documents
        text = text[np.linspace(0, len(text) - 1, min(len(text), MOST_BLOCKS)).astype(int)]
        self._batches = masked_batches(text, store.tokenizer())
        self._model = AlbertForMaskedLM(config).eval()
        targets = [batch.masked_targets()[1] for batch in self._batches]
        unigram = Unigram.of_store(store, held_out)
        self.predictions = sum(map(len, targets))
        self.unigram_loss = sum(unigram.score(labels)[0] for labels in targets) / self.predictions

    @torch.inference_mode()
    def loss(self, weights: dict[str, torch.Tensor]) -> float:
        """Return the mean cross-entropy in nats, in fp32, all layers; names that a masked-LM model lacks are ignored."""
        names = self._model.state_dict().keys()
        self._model.load_state_dict(
            {name: tensor for name, tensor in weights.items() if name in names}
        )
        return (
            sum(float(self._model.packed_loss(batch).loss_sum) for batch in self._batches)
            / self.predictions
        )

    def losses(self, files: Sequence[Path]) -> list[float]:
        """Return the losses of files of weights."""
        return [self.loss(load_file(file)) for file in files]


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    store, out = TokenStore.open(job["store"]), Path(job["out"])
    settings = PretrainSettings(**PretrainSettings.read(Path(job["settings"])))
    if job["setting"]:
        theirs(store, out, settings, job)
    else:
        pretrain(store, out, settings)
