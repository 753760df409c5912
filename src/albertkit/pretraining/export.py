"""Write a token store as Google's pretraining records: the examples and masks that training would draw.

Epoch d of a training on the store is duplicate d of the export. As in create_pretraining_data.py of
google-research/albert, example number i of the whole goes into file i mod N and everything is
padded with zeros. That script shuffles all duplicates together; here they follow one another, each
in its own order, so that a reader with a small shuffle buffer (the original's holds 100 records)
does not meet the same text twice in a short time, and one duplicate at a time is in memory.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.batches.packed import PackedBatch
from albertkit.command import takes
from albertkit.conversion.tensorflow.records import encode_example, frame_record
from albertkit.corpus import TokenStore
from albertkit.files import check_folder_name, check_other_files, json_bytes, read_typed
from albertkit.job import Job, check_made_from
from albertkit.output.sections import Result
from albertkit.pretraining.batches import Assembler
from albertkit.pretraining.examples import EpochPlan, plan_epoch
from albertkit.pretraining.options import ExportOptions, ExportSettings
from albertkit.pretraining.records import UNFINISHED
from albertkit.pretraining.sources import example_settings, mask_settings

REPORT = "export.json"

_CHUNK = 256  # examples assembled at a time


@dataclass(frozen=True)
class RecordsReport(Result):
    """Report of an export.

    Attributes:
        instances: Records.
        files: Files they are in.
        bytes: Of all files.
        max_seq_length: To give to the original's run_pretraining.py.
        max_predictions_per_seq: The same.
        skipped_documents: Documents of one sentence, which pure sentence-order prediction cannot
            use.
        seconds: Time taken.
    """

    instances: int
    files: int
    bytes: int
    max_seq_length: int
    max_predictions_per_seq: int
    skipped_documents: int
    seconds: float


@dataclass
class _ExportPosition:
    """The next example to write; examples and records before it."""

    epoch: int = 0
    example: int = 0
    instances: int = 0


@takes(ExportOptions)
def export_records(options: ExportOptions) -> RecordsReport:
    """Write the examples of a store as TFRecords that the original's run_pretraining.py trains on.

    The folder comes to hold `records-00000-of-00004.tfrecord` and so on, `tokenizer/`,
    `SHA256SUMS`, and `export.json` with settings and report. The same store, settings and number of
    files give the same bytes. Arguments as `ExportOptions`; `store` may also be a `TokenStore`.
    """
    began = time.monotonic()
    folder = check_folder_name(options.out)
    settings = options.settings
    store = (
        options.store if isinstance(options.store, TokenStore) else TokenStore.open(options.store)
    )
    sources = _ExportSources(store.fingerprint, store.tokenizer_fingerprint, asdict(settings))
    examples = _ExportedExamples(store, settings)
    with Job(
        folder / UNFINISHED,
        sources.key,
        into=folder,
        overwrite=options.overwrite,
        title="exporting",
        total=examples.count,
        unit="records",
        progress=options.progress,
    ) as job:
        if (
            not job.resumed
            and not options.overwrite
            and any(file.name != UNFINISHED for file in folder.iterdir())
        ):
            if not (folder / REPORT).exists():
                check_other_files(folder, [UNFINISHED], "exported records")
            check_made_from(folder, read_typed(folder / REPORT, _ExportSources).key, job.key)
            return read_typed(folder / REPORT, _Report).report
        if not job.finished:
            names = [
                f"records-{k:05d}-of-{settings.files:05d}.tfrecord" for k in range(settings.files)
            ]
            examples.write(job, names)
            examples.tokenizer.save_pretrained(job.folder / "tokenizer")
            job.add(
                *(f"tokenizer/{file.name}" for file in sorted((job.folder / "tokenizer").iterdir()))
            )
            report = RecordsReport(
                instances=job.state(_ExportPosition).instances,
                files=len(names),
                bytes=sum(job.files[name].bytes for name in names),
                max_seq_length=settings.length,
                max_predictions_per_seq=examples.predictions,
                skipped_documents=examples.skipped,
                seconds=round(time.monotonic() - began, 3),
            )
            with job.part(REPORT) as stream:
                stream.write(json_bytes({**asdict(sources), "report": report.to_dict()}))
            job.add_checksums()
        job.publish(REPORT, ["records-*.tfrecord", "tokenizer/*"])
    return read_typed(folder / REPORT, _Report).report


@dataclass(frozen=True)
class _ExportSources:
    """Sources of an export, as `export.json` has them: two fingerprints and the settings."""

    store: str
    tokenizer: str
    settings: dict[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """Return what decides the bytes, by names that a user knows."""
        return {**self.settings, "store": self.store, "tokenizer": self.tokenizer}


@dataclass(frozen=True)
class _Report:
    """The report in `export.json`."""

    report: RecordsReport


class _ExportedExamples:
    """All examples of an export, in their order."""

    def __init__(self, store: TokenStore, settings: ExportSettings) -> None:
        self._store = store
        self._settings = settings
        self._how = example_settings(settings)
        masks = mask_settings(settings)
        self._assembler = Assembler(store, masks, settings.seed)
        self._included = [
            ~documents for documents in store.held_out(settings.held_out, settings.seed)
        ]
        first = self._plan(0)  # says at once if no example can be made
        self.skipped = first.skipped_documents  # about
        self.count = len(first.examples) * settings.dupe_factor
        self.predictions = settings.max_predictions or int(
            masks.num_predictions_of(np.array([settings.length]))[0]
        )
        self.tokenizer = store.tokenizer()
        self._layout = RecordLayout(settings.length, self.predictions, self.tokenizer)

    def _plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(self._store, self._included, self._how, self._settings.seed, epoch)

    def write(self, job: Job, names: Sequence[str]) -> None:
        """Write all records that are left, in turn to the files of these names."""
        position = job.state(_ExportPosition)
        job.progress.resume(position.instances)
        while position.epoch < self._settings.dupe_factor:
            plan = self._plan(position.epoch)
            while position.example < len(plan.examples):
                indices = np.arange(
                    position.example,
                    min(position.example + _CHUNK, len(plan.examples)),
                )
                for features in self._layout.examples(
                    self._assembler.batch(plan, indices, position.epoch)
                ):
                    job.write(
                        names[position.instances % len(names)],
                        frame_record(encode_example(features)),
                    )
                    position.instances += 1
                position.example += len(indices)
                if job.is_due:
                    job.commit(**asdict(position))
                job.progress.update(position.instances)
            position.epoch, position.example = position.epoch + 1, 0
        for name in names:
            job.write(name, b"")  # of fewer examples than files
        job.commit(**asdict(position))


class RecordLayout:
    """Lays packed examples out as the original's features.

    A padded sequence has `length` tokens and `predictions` predictions.
    """

    def __init__(self, length: int, predictions: int, tokenizer: Any) -> None:
        self._length = length
        self._predictions = predictions
        starts = np.array(tokenizer.word_starts(), np.int64)
        starts[[tokenizer.cls_id, tokenizer.sep_id]] = 1  # as in the original
        self._boundaries = torch.from_numpy(starts)

    def examples(self, batch: PackedBatch) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the features of each sequence of a batch that has targets and pairs."""
        assert batch.masked_positions is not None
        assert batch.masked_labels is not None
        assert batch.sentence_order_labels is not None
        # Of each token
        sequence = torch.arange(batch.num_sequences).repeat_interleave(torch.tensor(batch.lengths))
        token_cells = sequence, batch.position_ids
        original = batch.input_ids.clone()
        original[batch.masked_positions] = batch.masked_labels
        rows = sequence[batch.masked_positions]  # of each prediction
        target_cells = rows, torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        size = batch.num_sequences
        features = {
            "input_ids": _to_matrix(batch.input_ids, token_cells, size, self._length),
            "input_mask": _to_matrix(torch.ones_like(original), token_cells, size, self._length),
            "segment_ids": _to_matrix(batch.token_type_ids, token_cells, size, self._length),
            "token_boundary": _to_matrix(
                self._boundaries[original], token_cells, size, self._length
            ),
            "masked_lm_positions": _to_matrix(
                batch.position_ids[batch.masked_positions], target_cells, size, self._predictions
            ),
            "masked_lm_ids": _to_matrix(batch.masked_labels, target_cells, size, self._predictions),
            "masked_lm_weights": _to_matrix(
                torch.ones(len(rows)), target_cells, size, self._predictions
            ),
            "next_sentence_labels": batch.sentence_order_labels[:, None].numpy(),
        }
        for n in range(size):
            yield {name: values[n] for name, values in features.items()}


def _to_matrix(
    values: torch.Tensor,
    cells: tuple[torch.Tensor, torch.Tensor],
    rows: int,
    width: int,
) -> NDArray[Any]:
    """Put values [T] at their rows and columns of a matrix [rows, width] of zeros."""
    return values.new_zeros(rows, width).index_put(cells, values).numpy()
