"""Clips in every layout, videos, prepared clips, captions to score, SwinBERT's checkpoints, captioners."""

import base64
import io
import itertools
import json
import random
import zlib
from pathlib import Path

from hostile import Reader, read_each

COLOURS = ("red", "green", "blue")


def _video(file: Path, codec: str = "mpeg4", frames: int = 12) -> None:
    import av
    import numpy as np

    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=6)
        stream.width = 32
        stream.height = 24
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for number in range(frames):
            pixels = np.full((24, 32, 3), number * 20, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def make_videos(folder: Path) -> None:
    for name, codec in (
        ("a.mp4", "mpeg4"),
        ("b.avi", "mjpeg"),
        ("c.gif", "gif"),
        ("d.mkv", "mpeg4"),
    ):
        try:
            _video(folder / name, codec)
        except ValueError:  # mjpeg wants another kind of pixels
            _video(folder / name)


def see(folder: Path):
    """Frames of every video, of the whole and of a part."""
    from albertkit.captioning.video import FrameSampling, sample_frames

    def frames(file: Path, start: float | None, end: float | None):
        return sample_frames(file, FrameSampling(num_frames=4, size=16), start, end).pixels.shape

    parts = itertools.product(sorted(folder.iterdir()), ((None, None), (0.3, 1.2)))
    return read_each(lambda f=file, part=part: frames(f, *part) for file, part in parts)


def make_manifests(folder: Path) -> None:
    import numpy as np

    _video(folder / "a.mp4")
    (folder / "a.txt").write_text("a thing turns white\nit gets light\n")
    np.save(folder / "f.npy", np.ones((3, 8), np.float32))
    lines = [
        {"video": "a.mp4", "start": 0.1, "end": 1.5, "captions": ["a thing", "it"], "key": "one"},
        {"features": "f.npy", "caption": "numbers"},
        {"video": "a.mp4", "captions": ["whole"]},
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    msrvtt = {
        "videos": [{"video_id": "a", "split": "train", "start time": 0}],
        "sentences": [{"video_id": "a", "caption": "x"}],
    }
    (folder / "msrvtt.json").write_text(json.dumps(msrvtt))
    coco = {
        "images": [{"id": 7, "file_name": "a.mp4"}],
        "annotations": [{"image_id": 7, "caption": "x"}],
    }
    (folder / "coco.json").write_text(json.dumps(coco))
    (folder / "msvd.txt").write_text("# MSVD\n-4wsuPCjDBc_0_1 a thing\n-4wsuPCjDBc_0_1 it\n")
    (folder / "youtube_mapping.txt").write_text("-4wsuPCjDBc_0_1 vid1201\n")
    (folder / "msvd.csv").write_text(
        "VideoID,Start,End,Language,Description\n-4wsuPCjDBc,0,1,English,a thing\n"
    )
    (folder / "jsfusion.csv").write_text("key,vid_key,video_id,sentence\nret0,msr0,a,x\n")
    _video(folder / "-4wsuPCjDBc.mp4")


def read_manifests(folder: Path):
    from albertkit.captioning.sources import read_splits

    names = ("train.jsonl", "msrvtt.json", "coco.json", "msvd.txt", "msvd.csv", "jsfusion.csv", "")
    return read_each(lambda name=name: read_splits(folder / name) for name in names)


def make_swinbert(folder: Path) -> None:
    """A data set whose rows are pictures, one whose rows name a video, and what is beside them."""
    from PIL import Image

    pictures = []
    for colour in COLOURS:
        out = io.BytesIO()
        Image.new("RGB", (20, 16), colour).save(out, "JPEG")
        pictures.append(base64.b64encode(out.getvalue()).decode())
    rows = [f"k{n}\t" + json.dumps({"class": -1}) + "\t" + "\t".join(pictures) for n in range(2)]
    captions = [
        f"k{n}\t" + json.dumps([{"caption": f"a {COLOURS[n]} thing"}, {"caption": "it"}])
        for n in range(2)
    ]
    for name, lines in (("train.img", rows), ("train.caption", captions)):
        (folder / f"{name}.tsv").write_text("".join(line + "\n" for line in lines))
        starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(2)]
        (folder / f"{name}.lineidx").write_text("".join(f"{start}\n" for start in starts))
    (folder / "train.linelist.tsv").write_text("0\t0\n0\t1\n1\t0\n")
    _video(folder / "v.mp4")
    (folder / "names.img.tsv").write_text("v.mp4\tv.mp4\n")
    (folder / "names.caption.tsv").write_text(
        "v.mp4\t" + json.dumps([{"caption": "x", "start": 0.2, "end": 1.0}]) + "\n"
    )
    keys = ("img", "caption", "caption_linelist")
    files = ("train.img.tsv", "train.caption.tsv", "train.linelist.tsv")
    (folder / "train.yaml").write_text(
        "".join(f"{k}: {f}\n" for k, f in zip(keys, files, strict=True))
    )
    (folder / "names.yaml").write_text(
        "img: names.img.tsv\ncaption: names.caption.tsv\ncomposite: false\n"
    )


def read_swinbert_data(folder: Path):
    from albertkit.captioning.prepare import decode_clip_frames
    from albertkit.captioning.sources import read_splits
    from albertkit.captioning.video import FrameSampling

    sampling = FrameSampling(num_frames=3, size=16)

    def read(name):
        [clips] = read_splits(folder / name).values()
        return [decode_clip_frames(clip, sampling).pixels.shape for clip in clips]

    return read_each([lambda: read("train.yaml"), lambda: read("names.yaml")])


def hostile_pictures(rng: random.Random, folder: Path) -> str:
    """A row whose picture is a bomb, or is damaged inside of good base64."""
    import damage

    file = folder / "train.img.tsv"
    rows = file.read_text().split("\n")
    fields = rows[0].split("\t")
    if rng.randrange(2):
        side = rng.choice((20_000, 60_000, 2**31 - 1))
        header = b"\x08\x02\0\0\0"
        chunks = [
            (b"IHDR", side.to_bytes(4, "big") * 2 + header),
            (b"IDAT", zlib.compress(b"\0" * 1_000_000)),
            (b"IEND", b""),
        ]
        picture = b"\x89PNG\r\n\x1a\n"
        for kind, data in chunks:
            picture += (
                len(data).to_bytes(4, "big")
                + kind
                + data
                + zlib.crc32(kind + data).to_bytes(4, "big")
            )
        description = f"a picture of {side} x {side}"
    else:
        picture = damage.raw(rng, base64.b64decode(fields[2]))
        description = "a damaged picture"
    fields[rng.choice((2, 3))] = base64.b64encode(picture).decode()
    rows[0] = "\t".join(fields)
    file.unlink()
    file.write_text("\n".join(rows))
    (folder / "train.img.lineidx").unlink()
    return description


def hostile_yaml(rng: random.Random, folder: Path) -> str:
    """YAML with tags that would run something, with aliases that multiply, and with other paths."""
    text = (folder / "train.yaml").read_text()
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    outside = rng.choice(("../outside", f"{folder.parent}/outside"))
    name = rng.choice(("train.img.tsv", "train.caption.tsv", "train.linelist.tsv"))
    new = rng.choice((
        'img: !!python/object/apply:os.mkdir ["owned"]\n', "img: !!python/name:os.system\n", "img: &x [*x]\n",
        bomb + "img: *a11\n", bomb + text, "img: [" * 3000, "img: 2001-01-01\n", "- img\n", "img: {a: b}\n", "? [img]\n: x\n",
        text.replace(name, f"{outside}/{name}"), text.replace(name, f"{outside}/{name}"), text.replace(name, "[1, 2]"),
        "img: train.img.tsv\ncomposite: true\ncaption: [a, b]\n", "img: names.yaml\ncomposite: true\n",
        text + "img: /dev/zero\n", "%YAML 9.9\n---\nimg: x",
    ))  # fmt: skip
    (folder / "train.yaml").unlink()
    (folder / "train.yaml").write_text(new)
    return f"YAML {new[:80]!r}"


def hostile_set(rng: random.Random, folder: Path) -> str:
    return hostile_pictures(rng, folder) if rng.randrange(2) else hostile_yaml(rng, folder)


def make_prepared(folder: Path) -> None:
    import numpy as np

    from albertkit.captioning.prepare import prepare_clips
    from albertkit.captioning.sources import read_splits

    lines = []
    for number in range(4):
        np.save(folder / f"{number}.npy", np.full((3, 8), number, np.float32))
        lines.append(
            json.dumps({"key": f"c{number}", "features": f"{number}.npy", "captions": ["a thing"]})
        )
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    prepare_clips(read_splits(folder / "train.jsonl"), folder / "prepared", None)
    for file in (*folder.glob("*.npy"), folder / "train.jsonl"):
        file.unlink()


def read_prepared(folder: Path):
    from albertkit.captioning.prepared import PreparedClips

    clips = PreparedClips.open(folder / "prepared")
    shapes = [clips.visual(s, n).shape for s in clips.splits for n in range(len(clips.clips(s)))]
    return shapes, [clips.grid_of(s, 0) for s in clips.splits if clips.clips(s)], clips.width


def make_features(folder: Path) -> None:
    import numpy as np
    import torch
    from safetensors.torch import save_file

    np.save(folder / "a.npy", np.ones((8, 8), np.float32))
    save_file({"x": torch.ones(8, 8)}, folder / "b.safetensors")


def read_feature_files(folder: Path):
    from albertkit.captioning.prepare import read_features

    return read_each(lambda f=f: read_features(f).shape for f in sorted(folder.iterdir()))


def make_captions(folder: Path) -> None:
    (folder / "pred.tsv").write_text(
        "".join(f"k{n}\t{json.dumps([{'caption': 'a dog runs', 'conf': 0.5}])}\n" for n in range(3))
    )
    (folder / "pred.json").write_text(
        json.dumps([{"image_id": f"k{n}", "caption": "a dog"} for n in range(3)])
    )
    truth = {
        "images": [{"id": f"k{n}"} for n in range(3)],
        "annotations": [{"image_id": f"k{n}", "caption": "the dog", "id": n} for n in range(3)],
    }
    (folder / "gold.json").write_text(json.dumps(truth))
    (folder / "pred.jsonl").write_text(
        "".join(json.dumps({"key": f"k{n}", "caption": "dogs"}) + "\n" for n in range(3))
    )


def score_captions(folder: Path):
    from albertkit.captioning.score import score_caption_files

    gold = [folder / "gold.json"]
    kinds = ("tsv", "json", "jsonl")
    return read_each(
        lambda kind=kind: score_caption_files(folder / f"pred.{kind}", gold) for kind in kinds
    )


def make_captioner(folder: Path) -> None:
    import torch
    from read_tokenizers import make_wordpiece

    from albertkit.captioning.backbones import load_backbone
    from albertkit.captioning.captioner import VideoCaptioner
    from albertkit.captioning.layers import CaptionConfig
    from albertkit.captioning.model import AlbertForImageCaptioning
    from albertkit.captioning.video import FrameSampling
    from albertkit.config import AlbertConfig
    from albertkit.tokenizer import AlbertTokenizer

    make_wordpiece(folder)
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    backbone = load_backbone("conv3d", {"width": 64})
    sampling = FrameSampling(num_frames=2, size=32)
    sizes = dict(
        vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=32, intermediate_size=16
    )
    config = AlbertConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=64
    )
    torch.manual_seed(0)
    model = AlbertForImageCaptioning(CaptionConfig(img_feature_dim=64).stored_in(config))
    VideoCaptioner(model, tokenizer, backbone, sampling, backbone.grid(2, 32)).save_pretrained(
        folder
    )


def read_captioner(folder: Path):
    from albertkit.captioning.captioner import VideoCaptioner

    return VideoCaptioner.from_pretrained(folder).grid


def make_swinbert_checkpoint(folder: Path) -> None:
    """A training's folder: weights as torch pickles them, vocabulary, arguments."""
    import torch

    hidden = 32
    inner = 16
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs"]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (folder / "log").mkdir()
    (folder / "log" / "args.json").write_text(
        json.dumps({"max_num_frames": 4, "img_res": 32, "num_attention_heads": 1})
    )
    state = {
        "fc.weight": torch.ones(8, 12),
        "fc.bias": torch.ones(8),
        "learn_vid_att.weight": torch.zeros(9, 1),
    }

    def layer_of(name: str, *shape: int) -> None:
        """A linear layer of shape (out, in), or a normalisation of one dimension."""
        state[f"trans_encoder.{name}.weight"] = torch.ones(shape)
        state[f"trans_encoder.{name}.bias"] = torch.ones(shape[0])

    for table, rows in (("word", len(pieces)), ("position", 16), ("token_type", 2)):
        state[f"trans_encoder.bert.embeddings.{table}_embeddings.weight"] = torch.ones(rows, hidden)
    layer = "bert.encoder.layer.0"
    for layer_name in ("self.query", "self.key", "self.value", "output.dense"):
        layer_of(f"{layer}.attention.{layer_name}", hidden, hidden)
    layer_of(f"{layer}.intermediate.dense", inner, hidden)
    layer_of(f"{layer}.output.dense", hidden, inner)
    for layer_name in ("bert.pooler.dense", "cls.predictions.transform.dense"):
        layer_of(layer_name, hidden, hidden)
    layer_of("bert.img_embedding", hidden, 8)
    for layer_name in (
        "bert.embeddings",
        f"{layer}.attention.output",
        f"{layer}.output",
        "cls.predictions.transform",
    ):
        layer_of(f"{layer_name}.LayerNorm", hidden)
    state["trans_encoder.cls.predictions.bias"] = torch.ones(len(pieces))
    (folder / "checkpoint-1-2").mkdir()
    torch.save(state, folder / "checkpoint-1-2" / "pytorch_model.bin")


def read_swinbert_checkpoint(folder: Path):
    from albertkit.swinbert.checkpoints import load_swinbert

    return load_swinbert(folder / "checkpoint-1-2")[1].gate_tokens


def pickled_command(rng: random.Random, folder: Path) -> str:
    """As `read_checkpoints.malicious_pickle`, where SwinBERT's weights lie."""
    from read_checkpoints import malicious_pickle

    return malicious_pickle(rng, folder / "checkpoint-1-2")


READERS = {
    "videos": Reader(make_videos, see, memory=200 << 20),
    "manifests of clips": Reader(
        make_manifests, read_manifests, ("*.jsonl", "*.json", "*.txt", "*.csv")
    ),
    "SwinBERT's data": Reader(
        make_swinbert, read_swinbert_data, twist=hostile_set, examples=15, memory=300 << 20
    ),
    "prepared clips": Reader(
        make_prepared, read_prepared, ("prepared/*.jsonl", "prepared/items/**/*.npy")
    ),
    "features of clips": Reader(make_features, read_feature_files),
    "captions to score": Reader(make_captions, score_captions),
    "SwinBERT's weights": Reader(
        make_swinbert_checkpoint, read_swinbert_checkpoint, twist=pickled_command, examples=15
    ),
    "captioner": Reader(
        make_captioner, read_captioner, ("captioner.json", "config.json", "*.safetensors")
    ),
}
