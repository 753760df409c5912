"""SwinBERT's files, written as its prepro and its training write them: what our readers are tested with.

After prepro/tsv_preproc_msrvtt.py and src/utils/tsv_file_ops.py of microsoft/SwinBERT.
"""

import base64
import io
import json
from collections import defaultdict

import numpy as np
import yaml
from PIL import Image

from albertkit.captioning.clips import clip_key
from albertkit.captioning.prepare import decode_clip_frames
from albertkit.captioning.video_swin import PREFIX, relative_position_index


def write_tsv(path, rows):
    """A TSV with both forms of its index."""
    lines = []
    for row in rows:
        columns = [column.encode() if isinstance(column, str) else column for column in row]
        lines.append(b"\t".join(columns) + b"\n")
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
    path.with_suffix(".lineidx").write_text("".join(f"{start}\n" for start in starts))
    path.with_suffix(".lineidx.8b").write_bytes(starts.astype("<u8").tobytes())


def write_swinbert(clips, folder, split, sampling=None):
    """All files of a split: a row for each video, named by its path, or with `sampling` for each clip.

    Only train has a linelist: in evaluation SwinBERT decodes a clip once for each line, and its
    scorer stops at repeated keys.
    """
    rows = defaultdict(list)
    for clip in clips:
        rows[clip.key if sampling else str(clip.source)].append(clip)
    images = []
    captions = []
    linelist = []
    for number, (name, members) in enumerate(rows.items()):
        images.append(
            [name, name] if sampling is None else [name, "{}", *jpegs(members[0], sampling)]
        )
        records = []
        for clip in members:
            is_named = clip.key == (
                name if len(members) == 1 else clip_key(name, clip.start, clip.end)
            )
            fields = {"start": clip.start, "end": clip.end, "key": None if is_named else clip.key}
            present_fields = {name: value for name, value in fields.items() if value is not None}
            records += [{"caption": text, **present_fields} for text in clip.captions]
        captions.append([name, json.dumps(records)])
        linelist += [f"{number}\t{caption}" for caption in range(len(records))]
    write_tsv(folder / f"{split}.img.tsv", images)
    texts = [
        (name, record["caption"]) for name, records in captions for record in json.loads(records)
    ]
    coco = {
        "annotations": [
            {"image_id": name, "caption": text, "id": index}
            for index, (name, text) in enumerate(texts)
        ],
        "images": [{"id": name, "file_name": name} for name, _ in captions],
        "type": "captions",
        "info": "dummy",
        "licenses": "dummy",
    }
    (folder / f"{split}.caption_coco_format.json").write_text(json.dumps(coco))
    names = {"img": "img.tsv", "caption_coco_format": "caption_coco_format.json"}
    for kind in ("caption", "label"):
        names[kind] = f"{kind}.tsv"
        write_tsv(folder / f"{split}.{kind}.tsv", captions)
    if split == "train":
        names["caption_linelist"] = "caption.linelist.tsv"
        (folder / f"{split}.caption.linelist.tsv").write_text("\n".join(linelist))
    file = folder / f"{split}.yaml"
    file.write_text(yaml.dump({name: f"{split}.{ending}" for name, ending in names.items()}))
    return file


def jpegs(clip, sampling):
    """Frames of a clip in base64, in the quality of OpenCV."""
    pictures = []
    for pixels in decode_clip_frames(clip, sampling).pixels:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=95)
        pictures.append(base64.b64encode(stream.getvalue()))
    return pictures


def published_state(backbone, prefix=PREFIX):
    """Parameters of a Video Swin and its index tables, under their published names."""
    state = {}
    table = ".attn.relative_position_bias_table"
    for name, tensor in backbone.state_dict().items():
        state[prefix + name] = tensor.detach().contiguous()
        if name.endswith(table):
            index_name = name.removesuffix(table) + ".attn.relative_position_index"
            state[prefix + index_name] = relative_position_index(backbone.window).clone()
    return state
