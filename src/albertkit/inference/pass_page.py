"""A model's passes on some texts, measured and drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albertkit.checkpoints.classes import load_model
from albertkit.checkpoints.own_tokenizer import own_tokenizer
from albertkit.config import AlbertConfig
from albertkit.files import check_page_file
from albertkit.inference.passes import SAMPLE_LENGTH, sample_texts, trace_passes
from albertkit.model_folder import local_folder
from albertkit.report.passes_page import write_passes_page


def draw_passes(
    model: str | Path, out: str | Path, texts: Sequence[str] = (), length: int | None = None
) -> dict[str, Any]:
    """Run texts through a model and write a page of what each pass did.

    Args:
        model: Checkpoint folder, run, or `org/name` of the hub.
        out: HTML file.
        texts: What to read. Default: a sample of the built-in English text.
        length: Tokens of a text at most. Default: 128.

    Returns:
        `model`, `page` and `passes` (as `Passes.to_dict`): plain values.

    Raises:
        What `load_model`, `AlbertTokenizer.from_pretrained` and `trace_passes` raise.
    """
    check_page_file(out)
    folder = local_folder(model)
    loaded = load_model(folder)
    tokenizer = own_tokenizer(folder, loaded.config)
    read = list(texts) or sample_texts()
    passes = trace_passes(loaded, tokenizer, read, SAMPLE_LENGTH if length is None else length).to_dict()
    source = "" if texts else "built-in English text"
    name = Path(model).resolve().name
    write_passes_page(out, name, passes, layer=layers(loaded.config), texts=read, source=source)
    return {"model": str(folder), "page": str(out), "passes": passes}


def layers(config: AlbertConfig) -> str:
    """What is run how often, in words."""
    blocks, passes = (
        config.num_hidden_groups * config.inner_group_num,
        config.num_hidden_layers * config.inner_group_num,
    )
    shared = {"attention": ", which share their attention", "ffn": ", which share their feed-forward"}
    what = "one layer" if blocks == 1 else f"{blocks} layers{shared.get(config.parameter_sharing, '')}"
    return f"{what}, {passes} passes"
