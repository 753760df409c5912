"""What row `memory` compares with: `python memory.py pretrain|finetune|encode|serve FOLDER`."""

import sys
from pathlib import Path

import torch


def pretrain(folder: Path) -> None:
    """Two updates of 8 sequences of 512 tokens in bf16."""
    import transformers

    config = transformers.AlbertConfig.from_pretrained(folder / "MODEL")
    ids = torch.randint(5, config.vocab_size, (16, 512))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    rows = [
        {"input_ids": row, "labels": label, "sentence_order_label": 0}
        for row, label in zip(ids, labels, strict=True)
    ]
    _train(
        transformers.AlbertForPreTraining(config),
        rows,
        folder,
        per_device_train_batch_size=8,
        bf16=True,
    )


def finetune(folder: Path) -> None:
    """Two updates of 32 texts padded to 128 tokens in fp32, as run_glue makes them."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "MODEL")
    lines = (folder / "lines.txt").read_text(encoding="utf-8").splitlines()[:64]
    encoded = tokenizer(lines, padding="max_length", truncation=True, max_length=128)
    rows = [
        {**{name: encoded[name][n] for name in encoded}, "labels": n % 2} for n in range(len(lines))
    ]
    model = transformers.AlbertForSequenceClassification.from_pretrained(folder / "MODEL")
    _train(model, rows, folder, per_device_train_batch_size=32)


def encode(folder: Path, count: int | None = None) -> None:
    """Vectors of all lines, or of the first."""
    import sentence_transformers

    lines = (folder / "lines.txt").read_text(encoding="utf-8").splitlines()[:count]
    sentence_transformers.SentenceTransformer(str(folder / "ENCODER"), device="cpu").encode(lines)


def serve(folder: Path) -> None:
    """Vectors of 64 lines."""
    encode(folder, 64)


def _train(model, rows, folder, **arguments):
    import transformers

    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    settings = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=2, **quiet, **arguments
    )
    transformers.Trainer(model=model, args=settings, train_dataset=rows).train()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
