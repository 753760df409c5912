"""From a token store to Google's pretraining records: the examples and masks that training would draw, written out.

Epoch d of a training on the store is duplicate d of the export. As in create_pretraining_data.py of google-research/albert,
example number i of the whole goes into file i mod N and everything is padded with zeros. That script shuffles all
duplicates together; here they follow one another, each in its own order, so that a reader with a small shuffle buffer (the
original's holds 100 records) does not meet the same text twice in a short time, and one duplicate at a time is in memory.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.corpus import TokenStore
from albertkit.errors import DataError
from albertkit.files import atomic_file, remove_leftovers, sync_folder, write_json
from albertkit.model.packing import PackedBatch
from albertkit.pretraining.assembly import Assembler
from albertkit.pretraining.examples import plan_epoch
from albertkit.pretraining.export_settings import ExportSettings
from albertkit.pretraining.records import UNFINISHED
from albertkit.pretraining.sources import example_settings, mask_settings
from albertkit.tensorflow_files.records import example, frame

REPORT = "export.json"

_CHUNK = 256  # examples assembled at a time
_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        instances: Records.
        files: Files they are in.
        bytes: Of all files.
        max_seq_length: To give to the original's run_pretraining.py.
        max_predictions_per_seq: The same.
        skipped_documents: Documents of one sentence, which pure sentence-order prediction cannot use.
        seconds: Time taken.
    """

    instances: int
    files: int
    bytes: int
    max_seq_length: int
    max_predictions_per_seq: int
    skipped_documents: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def export_records(
    store: TokenStore, out: str | Path, settings: ExportSettings | None = None, *, progress: bool = True
) -> ExportReport:
    """Write the examples of a store as TFRecords that the original's run_pretraining.py trains on.

    The folder comes to hold `records-00000-of-00004.tfrecord` and so on, `tokenizer/`, and `export.json` with settings and
    report. The same store, settings and number of files give the same bytes.

    Args:
        store: The token store.
        out: Folder to make. One that a killed export left is cleared and filled anew; any other must be empty.
        settings: See `ExportSettings`.
        progress: Say every ten seconds on stderr how far it is.

    Raises:
        DataError: folder-not-empty; no-examples.
        ConfigError: bad-value.
    """
    began = time.monotonic()
    settings, folder = settings or ExportSettings(), Path(out)
    examples = example_settings(settings)
    masks = mask_settings(settings)
    assembler = Assembler(store, masks, settings.seed)
    included = [~documents for documents in store.held_out(settings.held_out, settings.seed)]
    plan = plan_epoch(store, included, examples, settings.seed, epoch=0)  # says at once if no example can be made
    skipped = plan.skipped_documents
    predictions = settings.max_predictions or int(masks.budgets(np.array([settings.length]))[0])
    tokenizer = store.tokenizer()
    layout = RecordLayout(settings.length, predictions, tokenizer)
    names = [f"records-{k:05d}-of-{settings.files:05d}.tfrecord" for k in range(settings.files)]

    _prepare(folder)
    tokenizer.save_pretrained(folder / "tokenizer")
    instances, last = 0, began
    with ExitStack() as stack:  # all files take their names together, at the end
        files = [stack.enter_context(atomic_file(folder / name)) for name in names]
        for epoch in range(settings.dupe_factor):
            if epoch:
                plan = plan_epoch(store, included, examples, settings.seed, epoch)
            for first in range(0, len(plan.examples), _CHUNK):
                indices = np.arange(first, min(first + _CHUNK, len(plan.examples)))
                for features in layout.examples(assembler.batch(plan, indices, epoch)):
                    files[instances % len(files)].write(frame(example(features)))
                    instances += 1
                if progress and (now := time.monotonic()) - last >= _LINE_SECONDS:
                    last = now
                    share = (epoch + indices[-1] / len(plan.examples)) / settings.dupe_factor
                    print(
                        f"{share:.0%} {instances:,} records, {instances / (now - began):,.0f}/s",
                        file=sys.stderr,
                        flush=True,
                    )
    report = ExportReport(
        instances=instances, files=len(names), bytes=sum((folder / name).stat().st_size for name in names),
        max_seq_length=settings.length, max_predictions_per_seq=predictions, skipped_documents=skipped,
        seconds=round(time.monotonic() - began, 3),
    )  # fmt: skip
    facts = {"store": store.fingerprint, "tokenizer": store.tokenizer_fingerprint}
    write_json(folder / REPORT, {**facts, "settings": asdict(settings), "report": report.to_dict()})
    (folder / UNFINISHED).unlink()
    sync_folder(folder)
    return report


def _prepare(folder: Path) -> None:
    """Make the folder, or clear what a killed export left in it, and mark it as unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / UNFINISHED).exists():
        remove_leftovers(folder)
        for file in folder.glob("records-*-of-*.tfrecord"):
            file.unlink()
    elif any(folder.iterdir()):
        raise DataError(
            "folder-not-empty", f"`{folder}` holds other files", "choose another --out, or empty the folder first"
        )
    (folder / UNFINISHED).touch()
    sync_folder(folder)


class RecordLayout:
    """Lays packed examples out as the original's features.

    Args:
        length: S, tokens of a padded sequence.
        predictions: P, predictions of one.
        tokenizer: An `AlbertTokenizer`.
    """

    def __init__(self, length: int, predictions: int, tokenizer: Any) -> None:
        self._length, self._predictions = length, predictions
        starts = np.array(tokenizer.word_starts(), np.int64)
        starts[[tokenizer.cls_id, tokenizer.sep_id]] = 1  # as in the original
        self._boundaries = torch.from_numpy(starts)

    def examples(self, batch: PackedBatch) -> Iterator[dict[str, NDArray[Any]]]:
        """The features of each sequence of a batch that has targets and pairs."""
        assert batch.masked_positions is not None
        assert batch.masked_labels is not None
        assert batch.sentence_order_labels is not None
        sequence = torch.arange(batch.num_sequences).repeat_interleave(torch.tensor(batch.lengths))  # of each token
        places = sequence, batch.position_ids
        original = batch.input_ids.clone()
        original[batch.masked_positions] = batch.masked_labels
        rows = sequence[batch.masked_positions]  # of each prediction
        targets = rows, torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        size = batch.num_sequences
        features = {
            "input_ids": _laid_out(batch.input_ids, places, size, self._length),
            "input_mask": _laid_out(torch.ones_like(original), places, size, self._length),
            "segment_ids": _laid_out(batch.token_type_ids, places, size, self._length),
            "token_boundary": _laid_out(self._boundaries[original], places, size, self._length),
            "masked_lm_positions": _laid_out(
                batch.position_ids[batch.masked_positions], targets, size, self._predictions
            ),
            "masked_lm_ids": _laid_out(batch.masked_labels, targets, size, self._predictions),
            "masked_lm_weights": _laid_out(torch.ones(len(rows)), targets, size, self._predictions),
            "next_sentence_labels": batch.sentence_order_labels[:, None].numpy(),
        }
        for n in range(size):
            yield {name: values[n] for name, values in features.items()}


def _laid_out(values: torch.Tensor, places: tuple[torch.Tensor, torch.Tensor], rows: int, width: int) -> NDArray[Any]:
    """Values [T] at their rows and columns of a matrix [rows, width] of zeros."""
    return values.new_zeros(rows, width).index_put(places, values).numpy()
