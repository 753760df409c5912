"""The captions of clips as rows: a row is one clip and one of its captions, as in SwinBERT."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.training.batch import CaptionBatch, stack_visual
from albertkit.captioning.training.masking import mask_caption
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.errors import DataError
from albertkit.files import sha256_bytes
from albertkit.tokenizer import AlbertTokenizer


class CaptionRows:
    """R rows and how a batch is made of some of them.

    Args:
        captions: Of each clip.
        visual: Features or frames of the clip of a number.
        grid_of: Of the features of the clip of a number; None for frames.
        tokenizer: Makes the pieces.
        settings: Objective, masks, length.

    Raises:
        DataError: no-examples if there is no caption.
    """

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
            raise DataError("no-examples", "no clip has a caption", "add captions to the manifest")
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
        """Sha256 of the captions as they are read."""
        known = np.concatenate([np.array(ids, np.int32) for ids in self.ids]).tobytes() + self.clips.tobytes()
        return sha256_bytes(known)

    def batch(self, rows: np.ndarray, epoch: int, update: int) -> CaptionBatch:
        """Of some rows; masks and shifts depend on (seed, epoch, row) alone.

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
            visual, mask, grids, torch.from_numpy(input_ids),
            torch.from_numpy(np.concatenate([where + row * longest for row, where in enumerate(places)])),
            torch.from_numpy(np.concatenate(labels)), sum(map(len, [*items, *read])), update,
        )  # fmt: skip


def shifted(frames: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Frames uint8 [T, S, S, 3] moved by up to `most` pixels along both sides, all alike; edges are repeated."""
    down, right = generator.integers(0, 2 * most + 1, 2)
    size = frames.shape[1]
    padded = np.pad(frames, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    return padded[:, down : down + size, right : right + size]
