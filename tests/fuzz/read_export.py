"""Folders of ONNX models, one of which names numbers beside it."""

import shutil

from hostile import Reader


def make_onnx(folder):
    from read_checkpoints import make_folder
    from read_tokenizers import make_wordpiece

    from albertkit.export.onnx import export_onnx

    source = folder / "made"
    source.mkdir()
    make_wordpiece(source)
    make_folder(source)
    export_onnx(source, folder / "onnx", force=True)
    shutil.rmtree(source)


def run(folder):
    from albertkit.engines.onnx import load_onnx

    load_onnx(folder / "onnx", num_threads=1)


def numbers_elsewhere(rng, folder):
    """A model whose numbers are said to lie in a file outside."""
    import onnx

    file = folder / "onnx/model.onnx"
    model = onnx.load(file)
    tensor = rng.choice(list(model.graph.initializer))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    bait = "outside/onnx/model.onnx"
    location = rng.choice(
        (f"../{bait}", f"../../{bait}", f"{folder.parent}/{bait}", "/dev/zero", "x")
    )
    offset = rng.choice(("0", "-1", str(2**62)))
    length = rng.choice(("0", "64", str(2**62)))
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key = key
        entry.value = value
    file.unlink()
    file.write_bytes(model.SerializeToString())
    return f"numbers in {location}"


READERS = {
    "ONNX folder": Reader(
        make_onnx, run, ("onnx/*.onnx", "onnx/config.json"), numbers_elsewhere, memory=150 << 20
    )
}
