"""Folders of ONNX models, one of which names numbers beside it."""

import random
from pathlib import Path

import pytest
from hostile import Reader


def make_onnx(folder: Path) -> None:
    from test_checkpoints import make_folder
    from test_tokenizers import make_wordpiece

    from albertkit.export import export_onnx

    source = folder / "made"
    source.mkdir()
    make_wordpiece(source)
    make_folder(source)
    export_onnx(source, folder / "onnx", force=True)
    for file in source.iterdir():
        file.unlink()
    source.rmdir()


def run(folder: Path):
    from albertkit.engines.onnx_model import load_onnx

    load_onnx(folder / "onnx", num_threads=1)


def numbers_elsewhere(rng: random.Random, folder: Path) -> str:
    """A model whose numbers are said to lie in a file outside."""
    import onnx

    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file)
    tensor = rng.choice(list(model.graph.initializer))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    where = rng.choice(
        (
            "../outside/onnx/model.onnx",
            "../../outside/onnx/model.onnx",
            f"{folder.parent}/outside/onnx/model.onnx",
            "/dev/zero",
            "x",
        )
    )
    for key, value in (
        ("location", where),
        ("offset", rng.choice(("0", "-1", str(2**62)))),
        ("length", rng.choice(("0", "64", str(2**62)))),
    ):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    file.unlink()
    file.write_bytes(model.SerializeToString())
    return f"numbers in {where}"


READERS = {
    "ONNX folder": Reader(make_onnx, run, ("onnx/*.onnx", "onnx/config.json"), numbers_elsewhere, memory=150 << 20)
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name, fuzzing):
    fuzzing.damage(name, READERS[name])


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file(name, fuzzing):
    fuzzing.places(name, READERS[name])
