"""transformers' Trainer on masked pieces, in a process of its own: `python -m albertkit.benchmarks.quality_peer JOB.json`.

It trains as transformers' run_mlm.py does: full blocks, so that nothing is padded; masks drawn anew for every batch by its
own collator; AdamW, warm-up, linear decay, gradients clipped to 1. It writes the moment of every update to `updates`, and weights
to `step-N.safetensors` at the updates asked for.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WARM_UP = 0.06  # of the updates, as BERT's and RoBERTa's


@dataclass(frozen=True)
class PeerSetting:
    """How the Trainer is run.

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
        """As it is shown."""
        compiled = ", torch_compile" if self.compile else ""
        precision = "bf16" if self.bf16 else "fp32"
        return f"transformers Trainer ({precision}{compiled}, batch {self.batch_size}, lr {self.lr:g})"


@dataclass(frozen=True)
class PeerJob:
    """What the process is to do.

    Attributes:
        store: Folder of the token store.
        out: Folder for `updates` and the weights.
        config: File of the model's configuration.
        length: Tokens of a block.
        held_out: Share of documents to leave out, drawn with `seed`.
        seed: Also draws weights, order and masks.
        threads: Threads.
        steps: Updates.
        saves: Updates after which weights are saved.
        output_bias: "zeros" or "frequencies", as the recipe's, so that both begin alike.
        setting: How the Trainer is run.
    """

    store: str
    out: str
    config: str
    length: int
    held_out: float
    seed: int
    threads: int
    steps: int
    saves: list[int]
    output_bias: str
    setting: PeerSetting

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "PeerJob":
        """What `write` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "setting": PeerSetting(**values["setting"])})


def main(job: PeerJob) -> None:
    """Train."""
    import torch
    import transformers

    from albertkit.benchmarks.quality_text import blocks
    from albertkit.config import AlbertConfig
    from albertkit.corpus import TokenStore
    from albertkit.pretraining.evaluation import Unigram

    torch.set_num_threads(job.threads)
    store, out = TokenStore.open(job.store), Path(job.out)
    text = blocks(store, [~documents for documents in store.held_out(job.held_out, job.seed)], job.length)
    own = AlbertConfig.from_pretrained(job.config).to_dict()
    torch.manual_seed(job.seed)
    config = transformers.AlbertConfig(**{k: v for k, v in own.items() if k not in ("model_type", "parameter_sharing")})
    config.initializer_range = job.setting.initializer_range
    model = transformers.AlbertForMaskedLM(config)
    if job.output_bias == "frequencies":
        frequencies = Unigram(store, store.held_out(job.held_out, job.seed)).log_probabilities
        model.load_state_dict(
            {**model.state_dict(), "predictions.bias": frequencies, "predictions.decoder.bias": frequencies}
        )
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(out), max_steps=job.steps, per_device_train_batch_size=job.setting.batch_size,
            learning_rate=job.setting.lr, warmup_steps=round(WARM_UP * job.steps), lr_scheduler_type="linear",
            weight_decay=0.01, bf16=job.setting.bf16, torch_compile=job.setting.compile, seed=job.seed, use_cpu=True,
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
            remove_unused_columns=False,
        ),
        train_dataset=torch.utils.data.TensorDataset(torch.from_numpy(text)),
        data_collator=_collator(transformers, store.tokenizer()),
        callbacks=[_recorder(transformers, out, set(job.saves))],
    )  # fmt: skip
    trainer.train()


def _collator(transformers: Any, tokenizer: Any) -> Any:
    """transformers' own masks, on blocks of ids; no attention mask, since nothing is padded: its fastest path."""
    import tempfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    collate = transformers.DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)
    special = torch.tensor(tokenizer.special_ids())

    def batch(rows: list[Any]) -> dict[str, Any]:
        ids = torch.stack([row[0] for row in rows])
        inputs, labels = collate.torch_mask_tokens(ids, special_tokens_mask=torch.isin(ids, special))
        return {"input_ids": inputs, "labels": labels}

    return batch


def _recorder(transformers: Any, out: Path, saves: set[int]) -> Any:
    from safetensors.torch import save_file

    class Recorder(transformers.TrainerCallback):
        """Notes when updates end, and saves weights."""

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            with open(out / "updates", "a", encoding="utf-8") as stream:
                stream.write(f"{time.time()}\n")
            if state.global_step in saves:
                # The decoder's matrix is the embeddings', its bias the head's.
                weights = {k: v for k, v in model.state_dict().items() if ".decoder." not in k}
                unfinished = out / "unfinished"
                save_file({k.removeprefix("_orig_mod."): v for k, v in weights.items()}, unfinished)
                unfinished.rename(out / f"step-{state.global_step:06d}.safetensors")

    return Recorder()


if __name__ == "__main__":
    main(PeerJob.read(Path(sys.argv[1])))
