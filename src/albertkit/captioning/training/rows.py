"""Rows of training: a clip and one of its captions; SwinBERT's masks; an endless stream of batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.training.objective import CaptionBatch, stack_visual
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.data.stream import check_same_stream
from albertkit.errors import ConfigError, DataError
from albertkit.files import sha256_bytes
from albertkit.tokenizer import AlbertTokenizer

_MASKED, _RANDOM = 0.8, 0.1  # of the predicted tokens; the rest stays as it is


def num_masked(length: int, mask_prob: float, max_masked: int) -> int:
    """Return how many tokens are predicted: round(mask_prob * length), to even at .5, from 1 to `max_masked`, and never [CLS].

    Args:
        length: Of the caption, [CLS] and [SEP] included.
        mask_prob: Share.
        max_masked: Most.
    """
    return min(max(round(mask_prob * length), 1), max_masked, length - 1)


def mask_caption(
    ids: Sequence[int] | np.ndarray,
    mask_id: int,
    replacements: np.ndarray,
    mask_prob: float,
    max_masked: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Replace tokens and say which are predicted. [SEP] may be one of them, because it ends a caption; [CLS] may not.

    Args:
        ids: From [CLS] to [SEP], at least 2.
        mask_id: [MASK].
        replacements: int64, the tokens that a random one is drawn from. SwinBERT draws from all, and one beyond the last.
        mask_prob: As `num_masked`.
        max_masked: As `num_masked`.
        generator: Draws.

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
        self.num_pieces = len(encoded.ids)
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
        """Collate some rows; masks and shifts depend on (seed, epoch, row) alone.

        Args:
            rows: int64 [B].
            epoch: In which they are read.
            update: For `CaptionBatch.update`.
        """
        if not len(rows):
            return CaptionBatch.empty(update)
        draws = [np.random.default_rng([self._settings.seed, epoch, row]) for row in rows.tolist()]
        read: list[np.ndarray] = []
        places: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        causal = self._settings.objective == "causal"
        for row, draw in zip(rows.tolist(), draws, strict=True):
            ids = np.array(self.ids[row], np.int64)
            if causal:
                read.append(ids[:-1])
                places.append(np.arange(len(ids) - 1))
                labels.append(ids[1:])
            else:
                masked, where = mask_caption(
                    ids,
                    self._mask_id,
                    self._replacements,
                    self._settings.mask_prob,
                    self._settings.max_masked,
                    draw,
                )
                read.append(masked)
                places.append(where)
                labels.append(ids[where])
        longest = max(map(len, read))
        input_ids = np.full((len(rows), longest), self._padding, np.int64)
        for row, ids in enumerate(read):
            input_ids[row, : len(ids)] = ids
        clips = self.clips[rows].tolist()
        items = [self._visual(clip) for clip in clips]
        if self._settings.shift and self._grid_of is None:
            items = [shifted(frames, self._settings.shift, draw) for frames, draw in zip(items, draws, strict=True)]
        visual, mask = stack_visual(items)
        grids = None if self._grid_of is None else [self._grid_of(clip) for clip in clips]
        return CaptionBatch(
            visual,
            mask,
            grids,
            torch.from_numpy(input_ids),
            torch.from_numpy(np.concatenate([where + row * longest for row, where in enumerate(places)])),
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
    """Rows in an order drawn again for each epoch; an update is `batch_size` rows, the last of an epoch what is left.

    If that is less than there are processes, some get an empty batch.
    """

    def __init__(
        self, rows: CaptionRows, batch_size: int, micro_batch: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if min(batch_size, len(rows)) < world_size:
            raise ConfigError(
                "bad-value",
                f"{min(batch_size, len(rows))} captions an update cannot be shared by {world_size} processes",
                f"use --batch-size {world_size} or more, and as many captions",
            )
        self._rows, self._batch_size, self._micro_batch, self._seed = rows, batch_size, micro_batch, seed
        self._rank, self._world_size = rank, world_size
        self._epoch = self._cursor = self._update = 0
        self._order: tuple[int, np.ndarray] | None = None

    def __next__(self) -> list[CaptionBatch]:
        if self._cursor >= len(self._rows):
            self._epoch, self._cursor = self._epoch + 1, 0
        if self._order is None or self._order[0] != self._epoch:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._rows))
            self._order = self._epoch, order
        taken = self._order[1][self._cursor : self._cursor + self._batch_size]
        self._cursor += len(taken)
        own = taken[self._rank :: self._world_size]
        pieces = [own[start : start + self._micro_batch] for start in range(0, len(own), self._micro_batch)]
        batches = [self._rows.batch(piece, self._epoch, self._update) for piece in pieces or [own]]
        self._update += 1
        return batches

    def state(self) -> dict[str, Any]:
        """Return where the next update starts, and what must be the same again."""
        place = {"epoch": self._epoch, "cursor": self._cursor, "update": self._update}
        return {**place, "seed": self._seed, "captions": len(self._rows)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken."""
        check_same_stream(state, {"seed": self._seed, "captions": len(self._rows)})
        self._epoch, self._cursor, self._update = (int(state[name]) for name in ("epoch", "cursor", "update"))
