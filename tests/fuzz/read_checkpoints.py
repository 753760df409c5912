"""Checkpoint folders: configuration, weights in every format, origin, task."""

import json

from hostile import Reader


def make_folder(folder):
    folder.mkdir(exist_ok=True)
    model = _model()
    model.save_pretrained(folder)


def _model(**changes):
    import torch

    from albertkit.config import AlbertConfig
    from albertkit.model import AlbertForPreTraining

    torch.manual_seed(0)
    sizes = dict(
        vocab_size=40, embedding_size=8, hidden_size=32, intermediate_size=16, num_hidden_layers=2
    )
    config = AlbertConfig.from_dict(
        {**sizes, "num_attention_heads": 1, "max_position_embeddings": 16, **changes}
    )
    return AlbertForPreTraining(config)


def read_folder(folder):
    from albertkit.conversion.classes import load_model

    return type(load_model(folder)).__name__


def make_sharded(folder):
    """Weights in two files and an index, as transformers splits large models."""
    from safetensors.torch import load_file, save_file

    make_folder(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for part, chosen in parts.items():
        save_file(
            {name: tensors[name] for name in chosen}, folder / part, metadata={"format": "pt"}
        )
    weight_map = {name: part for part, chosen in parts.items() for name in chosen}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def make_torch(folder):
    """Weights as torch pickles them."""
    import torch

    make_folder(folder)
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


class _Mkdir:
    def __reduce__(self):
        import os

        return os.mkdir, ("owned",)


def malicious_pickle(rng, folder):
    """A pickle that would make a folder, in the layouts of torch's old and new files."""
    import io
    import pickle
    import warnings
    import zipfile

    warnings.simplefilter("ignore")  # two members of one name

    protocol = rng.choice((0, 2, 4))
    attack = pickle.dumps(rng.choice((_Mkdir(), {"x": _Mkdir()}, [_Mkdir()])), protocol)
    file = folder / "pytorch_model.bin"
    old = file.read_bytes()
    file.unlink()
    how = rng.choice(("bare", "legacy", "zip"))
    if how == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(old)) as source, zipfile.ZipFile(out, "w") as target:
            for member in source.infolist():
                name = member.filename
                if rng.randrange(6) == 0:
                    name = rng.choice(
                        ("../outside/x", "/tmp/owned", name.replace("/", "\\"), name * 40)
                    )
                target.writestr(
                    name, attack if name.endswith("data.pkl") else source.read(member.filename)
                )
        file.write_bytes(out.getvalue())
    else:
        file.write_bytes(
            attack
            if how == "bare"
            else pickle.dumps(0x1950A86A20F9469CFC6C) + pickle.dumps(1001) + attack
        )
    return f"malicious pickle ({how}, protocol {protocol})"


READERS = {
    "checkpoint folder": Reader(
        make_folder, read_folder, ("config.json", "model.safetensors"), examples=15
    ),
    "sharded weights": Reader(make_sharded, read_folder, ("*.safetensors", "*.index.json")),
    "torch weights": Reader(
        make_torch, read_folder, ("*.bin",), twist=malicious_pickle, examples=15
    ),
}
