"""Rows of training: a clip and one of its captions; SwinBERT's masks; an endless stream of batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.data.prepared import stack_visual
from albertkit.captioning.training.objective import CaptionBatch
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.data.stream import EpochOrder
from albertkit.errors import DataError
from albertkit.files import sha256_bytes
from albertkit.tokenizer import AlbertTokenizer

_MASKED, _RANDOM = 0.8, 0.1  # of the predicted tokens; the rest stays as it is


def num_masked(length: int, mask_prob: float, max_masked: int) -> int:
    """Return how many tokens are predicted: round(mask_prob * length), to even at .5, from 1 to `max_masked`, and never [CLS]."""
    return min(max(round(mask_prob * length), 1), max_masked, length - 1)


def mask_caption(
    ids: Sequence[int] | np.ndarray,
    mask_id: int,
    replacements: np.ndarray,
    mask_prob: float,
    max_masked: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Replace tokens of a caption from [CLS] to [SEP]; [SEP] may be predicted, because it ends a caption, [CLS] may not.

    SwinBERT draws replacements from all tokens and one beyond the last.

    Returns:
        int64 [L] with the replacements; int64 [P] rising, the places to predict.
    """
    masked = np.array(ids, np.int64)
    count = num_masked(len(masked), mask_prob, max_masked)
    places = np.sort(1 + generator.permutation(len(masked) - 1)[:count])
    fate = generator.random(count)
    masked[places[fate < _MASKED]] = mask_id
    random = places[(fate >= _MASKED) & (fate < _MASKED + _RANDOM)]
    masked[random] = generator.choice(replacements, len(random))
    return masked, places


class CaptionRows:
    """R rows and how a batch is made of some of them."""

    def __init__(
        self,
        captions: Sequence[Sequence[str]],
        visual: Callable[[int], np.ndarray],
        grid_of: Callable[[int], Grid] | None,
        tokenizer: AlbertTokenizer,
        settings: CaptionSettings,
    ) -> None:
        self.clips = np.repeat(np.arange(len(captions)), [len(of_clip) for of_clip in captions])
        if not len(self.clips):
            raise DataError("too-little-data", "no clip has a caption", "add captions to the manifest")
        texts = [text for of_clip in captions for text in of_clip]
        encoded = tokenizer.encode_batch(texts)
        most = settings.length - 2
        self.ids = [
            [tokenizer.cls_id, *encoded.ids[start : min(end, start + most)].tolist(), tokenizer.sep_id]
            for start, end in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)
        ]
        self.num_cut = int((np.diff(encoded.offsets) > most).sum())
        self.num_unknown = int((encoded.ids == tokenizer.unk_id).sum())
        self.num_tokens = len(encoded.ids)
        self._visual, self._grid_of, self._settings = visual, grid_of, settings
        self._mask_id, self._padding = tokenizer.mask_id, tokenizer.pad_id
        self._replacements = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids())

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """Return Sha256 of the captions as they are read."""
        known = np.concatenate([np.array(ids, np.int32) for ids in self.ids]).tobytes() + self.clips.tobytes()
        return sha256_bytes(known)

    def batch(self, rows: np.ndarray, epoch: int, update: int) -> CaptionBatch:
        """Collate rows int64 [B]; masks and shifts depend on (seed, epoch, row) alone."""
        if not len(rows):
            return CaptionBatch.empty(update)
        settings = self._settings
        draws = [np.random.default_rng([settings.seed, epoch, row]) for row in rows.tolist()]
        read, places, labels = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        for row, draw in zip(rows.tolist(), draws, strict=True):
            ids = np.array(self.ids[row], np.int64)
            if settings.objective == "causal":
                given, where, wanted = ids[:-1], np.arange(len(ids) - 1), ids[1:]
            else:
                masking = (self._mask_id, self._replacements, settings.mask_prob, settings.max_masked)
                given, where = mask_caption(ids, *masking, draw)
                wanted = ids[where]
            read.append(given)
            places.append(where)
            labels.append(wanted)
        input_ids = pad_sequence([torch.from_numpy(ids) for ids in read], True, self._padding)
        clips = self.clips[rows].tolist()
        items = [self._visual(clip) for clip in clips]
        if settings.shift and self._grid_of is None:
            items = [shifted(frames, settings.shift, draw) for frames, draw in zip(items, draws, strict=True)]
        visual, mask = stack_visual(items)
        grids = None if self._grid_of is None else [self._grid_of(clip) for clip in clips]
        return CaptionBatch(
            visual,
            mask,
            grids,
            input_ids,
            torch.from_numpy(np.concatenate([where + row * input_ids.shape[1] for row, where in enumerate(places)])),
            torch.from_numpy(np.concatenate(labels)),
            sum(map(len, [*items, *read])),
            update,
        )


def shifted(frames: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Return frames uint8 [T, S, S, 3] moved by up to `most` pixels along both sides, all alike; edges are repeated."""
    down, right = generator.integers(0, 2 * most + 1, 2)
    size = frames.shape[1]
    padded = np.pad(frames, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    return padded[:, down : down + size, right : right + size]


class CaptionStream:
    """Endless updates of `batch_size` rows, dealt to the processes in micro-batches; a process may get an empty one."""

    def __init__(
        self, rows: CaptionRows, batch_size: int, micro_batch: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._rows, self._micro_batch, self._rank, self._world_size = rows, micro_batch, rank, world_size
        self._order = EpochOrder("captions", len(rows), batch_size, seed, world_size)

    def __next__(self) -> list[CaptionBatch]:
        update = self._order.update
        own = next(self._order)[self._rank :: self._world_size]
        chunks = [own[start : start + self._micro_batch] for start in range(0, len(own), self._micro_batch)]
        return [self._rows.batch(chunk, self._order.epoch, update) for chunk in chunks or [own]]

    def state(self) -> dict[str, Any]:
        """Return where the next update starts, and what must be the same on resume."""
        return self._order.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._order.restore(state)
