"""Folders of sentence encoders, laid out as sentence-transformers lays them out."""

from pathlib import Path

from albertkit.checkpoints import load_checkpoint, save_checkpoint, write_tensors
from albertkit.checkpoints.folder import read_tensors
from albertkit.checkpoints.hub import local_folder
from albertkit.embeddings.encoder import Projection, SentenceEncoder
from albertkit.embeddings.pooling import Pooling
from albertkit.files import read_json, write_json
from albertkit.model import AlbertModel
from albertkit.tokenizer import AlbertTokenizer

_TYPES = "sentence_transformers.models"
_ACTIVATIONS = {"torch.nn.modules.activation.Tanh": "tanh", "torch.nn.modules.linear.Identity": "identity"}


def load_encoder(folder: str | Path, pooling: Pooling | None = None) -> SentenceEncoder:
    """Read a sentence-transformers folder, or a plain checkpoint; see `SentenceEncoder.from_pretrained`."""
    path = local_folder(folder, None)
    albert = load_checkpoint(path, AlbertModel, allow_missing=("pooler",))
    tokenizer = AlbertTokenizer.from_pretrained(path)
    if not (path / "modules.json").exists():
        return SentenceEncoder(albert, tokenizer, pooling or "mean").eval()
    encoder = SentenceEncoder(albert, tokenizer)
    encoder.max_length = read_json(path / "sentence_bert_config.json")["max_seq_length"]
    for module in read_json(path / "modules.json"):
        kind = module["type"].rpartition(".")[2]
        own = path / module["path"]
        if kind == "Pooling":
            encoder.pooling = read_json(own / "config.json")["pooling_mode"]
        elif kind == "Dense":
            config = read_json(own / "config.json")
            activation = _ACTIVATIONS[config["activation_function"]]
            encoder.projection = Projection(config["in_features"], config["out_features"], activation, config["bias"])
            encoder.projection.load_state_dict(read_tensors(own))
        elif kind == "Normalize":
            encoder.normalize = True
    return encoder.eval()


def save_encoder(folder: str | Path, encoder: SentenceEncoder) -> None:
    """Write a checkpoint folder with sentence-transformers' files beside it."""
    path = Path(folder)
    save_checkpoint(path, encoder.albert, encoder.tokenizer)
    kinds = ["Transformer", "Pooling"]
    pooling = {
        "embedding_dimension": encoder.config.hidden_size,
        "pooling_mode": encoder.pooling,
        "include_prompt": True,
    }
    write_json(path / "1_Pooling" / "config.json", pooling)
    if encoder.projection is not None:
        linear, name = encoder.projection.linear, encoder.projection.activation_name
        own = path / f"{len(kinds)}_Dense"
        config = {
            "in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None,
            "activation_function": next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == name),
        }  # fmt: skip
        write_json(own / "config.json", config)
        write_tensors(own / "model.safetensors", encoder.projection.state_dict())
        kinds.append("Dense")
    if encoder.normalize:
        (path / f"{len(kinds)}_Normalize").mkdir(exist_ok=True)
        kinds.append("Normalize")
    write_json(path / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    write_json(path / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"{_TYPES}.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    write_json(path / "modules.json", modules)
