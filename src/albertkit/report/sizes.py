"""How large the published ALBERTs and BERTs are, for every way of sharing: the tables of `albertkit inspect`."""

from typing import Any

from albertkit.config import SIZES, AlbertConfig

# Configuration changes by the name of a column. A group's layers share everything, other groups have weights of their own.
SHARINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "2 groups": {"num_hidden_groups": 2},
    "4 groups": {"num_hidden_groups": 4},
    "attention": {"parameter_sharing": "attention"},
    "ffn": {"parameter_sharing": "ffn"},
    "none": {"parameter_sharing": "none"},
}
PAPER = {
    "BERT-base": "108M", "BERT-large": "334M", "base": "12M", "large": "18M", "xlarge": "60M", "xxlarge": "235M",
}  # fmt: skip
BERT_LAYERS_WIDTH_HEADS = {"BERT-base": (12, 768, 12), "BERT-large": (24, 1024, 16)}
BERT_VOCABULARY = 30_522  # of the uncased models
LENGTH = 512  # tokens of the sequences that FLOPs are counted for


def sizes(length: float = LENGTH) -> list[dict[str, Any]]:
    """One row a model, BERTs first.

    Args:
        length: Tokens of the sequences that operations are counted for.

    Returns:
        Rows of `name`, `layers`, `hidden_size`, `embedding_size`, `heads`; `parameters` of encoder and pooler, exactly;
        `with_heads`, the masked-LM and sentence-order heads added (None for BERT); `paper`, what table 1 says, if it
        does; `forward_flops_per_token`, heads left out; and for ALBERTs `sharing`: column of `SHARINGS`
        to parameters of encoder and pooler.
    """
    return [*(_bert(name, length) for name in BERT_LAYERS_WIDTH_HEADS), *(_albert(size, length) for size in SIZES)]


def forward_flops(config: AlbertConfig, length: float) -> float:
    """Floating-point operations of a forward pass per token, heads left out; a multiply-add counts as 2."""
    return config.train_flops_per_token(length, predicted_share=0.0) / 3


def _albert(size: str, length: float) -> dict[str, Any]:
    config = AlbertConfig.from_size(size)
    sharing = {name: AlbertConfig.from_size(size, **changes).num_parameters() for name, changes in SHARINGS.items()}
    return {
        **_row(size, config, config.num_parameters(), forward_flops(config, length)),
        "with_heads": config.num_parameters(heads=True),
        "sharing": sharing,
    }


def _bert(name: str, length: float) -> dict[str, Any]:
    """A BERT is an ALBERT that shares nothing and embeds at full width, less the projection it then does not need."""
    layers, width, heads = BERT_LAYERS_WIDTH_HEADS[name]
    config = AlbertConfig(
        vocab_size=BERT_VOCABULARY, embedding_size=width, hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=layers, num_hidden_groups=layers, num_attention_heads=heads, parameter_sharing="none",
    )  # fmt: skip
    projection = width * width + width
    flops = forward_flops(config, length) - 2 * width * width
    return {**_row(name, config, config.num_parameters() - projection, flops), "with_heads": None, "sharing": None}


def _row(name: str, config: AlbertConfig, parameters: int, flops: float) -> dict[str, Any]:
    return {
        "name": name,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "embedding_size": config.embedding_size,
        "heads": config.num_attention_heads,
        "parameters": parameters,
        "paper": PAPER.get(name),
        "forward_flops_per_token": flops,
    }
