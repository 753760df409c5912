"""Published settings of fine-tuning, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Settings of one task."""

    lr: float  # peak learning rate of AdamW, with linear warm-up and linear decay to 0
    batch_size: int  # examples an update
    dropout: float  # in the encoder ("ALBERT DR"); the classifier's is 0.1 in all
    steps: int  # updates, with as many training examples as the task has
    warmup_steps: int  # of them
    length: int  # longest sequence
    examples: int  # training examples of the official task; with another number, steps and warm-up are in proportion


# Lan et al. 2020, table 14; stsb, rte and mrpc there start from a checkpoint that was fine-tuned on MNLI. run_glue.sh of
# google-research/albert has the same (its dropout is the checkpoint's own).
PAPER = {
    "cola": Preset(1e-5, 16, 0.0, 5336, 320, 512, 8_551),
    "stsb": Preset(2e-5, 16, 0.0, 3598, 214, 512, 5_749),
    "sst2": Preset(1e-5, 32, 0.0, 20935, 1256, 512, 67_349),
    "mnli": Preset(3e-5, 128, 0.0, 10000, 1000, 512, 392_702),
    "qnli": Preset(1e-5, 32, 0.0, 33112, 1986, 512, 104_743),
    "qqp": Preset(5e-5, 128, 0.1, 14000, 1000, 512, 363_849),
    "rte": Preset(3e-5, 32, 0.1, 800, 200, 512, 2_490),
    "mrpc": Preset(2e-5, 32, 0.0, 800, 200, 512, 3_668),
    "wnli": Preset(2e-5, 16, 0.1, 2000, 250, 512, 635),
    "squad1": Preset(5e-5, 48, 0.0, 3649, 365, 384, 87_599),
    "squad2": Preset(3e-5, 48, 0.0, 8144, 814, 512, 130_319),
    "race": Preset(2e-5, 32, 0.1, 12000, 1000, 512, 87_866),
}

# Everything else: three epochs at the middle of the table's rates, a tenth of warm-up.
OTHER_LR, OTHER_BATCH_SIZE, OTHER_EPOCHS, OTHER_WARMUP = 2e-5, 32, 3.0, 0.1

# google-research/albert issues 197 and 86: xlarge and xxlarge v2 do not learn at the table's higher rates; 5e-6 to 1e-5 work.
LARGE_HIDDEN_SIZE, LARGE_LR = 2048, 1e-5


def default_rate(lr: float, source: str, hidden_size: int) -> tuple[float, str]:
    """Return a learning rate that a model of a hidden size learns with, and its reason."""
    if hidden_size >= LARGE_HIDDEN_SIZE and lr > LARGE_LR:
        return LARGE_LR, f"{LARGE_LR:g} in place of {lr:g}: models this wide diverge at more"
    return lr, f"{lr:g} ({source})"


# Hu et al. 2021, LoRA, table 9: 4e-4 to 5e-4 for RoBERTa-base on GLUE. A head on fixed features: that of linear probes.
LORA_LR, HEAD_LR = 4e-4, 1e-3
