"""`albertkit.pretrain` in a process of its own: `python -m albertkit.benchmarks.quality_ours STORE OUT SETTINGS.toml THREADS`."""

import sys
from pathlib import Path


def main(store: str, out: str, settings: str, threads: int) -> None:
    """Train; nothing else."""
    import torch

    from albertkit.pretraining.run import pretrain
    from albertkit.pretraining.settings import PretrainSettings

    torch.set_num_threads(threads)
    pretrain(store, out, PretrainSettings(**PretrainSettings.read(Path(settings))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
