"""`bench quality`: what both are scored on, who runs when, and a tiny race of the two."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.quality import Curve, quality_rows
from albertkit.benchmarks.quality_text import Judge, blocks, masked_batches
from albertkit.benchmarks.slices import Runner, take_turns
from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore, build_store, builtin_documents
from albertkit.errors import AlbertKitError, MachineError
from albertkit.model import AlbertForPreTraining

TINY = dict(
    vocab_size=500, embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=64,
)  # fmt: skip
CONFIG = AlbertConfig.from_size("base", **TINY)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    from albertkit.tokenizer import train_tokenizer

    documents = [document for _, document in zip(range(40), builtin_documents(), strict=False)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([line for document in documents for line in document], folder, vocab_size=500)
    return Inputs(documents, "built-in text", folder)


@pytest.fixture(scope="module")
def store(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("store")
    inputs.write_text(folder / "text.txt")
    build_store([str(folder / "text.txt")], folder / "store", inputs.tokenizer_folder, workers=0)
    return TokenStore.open(folder / "store")


def test_blocks_are_the_documents_one_after_the_other(store: TokenStore) -> None:
    included = [np.arange(len(offsets) - 1) % 3 == 1 for offsets in store.document_offsets]
    expected = []
    for number in np.flatnonzero(np.concatenate(included)):
        expected += [
            store.tokenizer().cls_id,
            *(t for sentence in store.document(number) for t in sentence),
            store.tokenizer().sep_id,
        ]
    found = blocks(store, included, 32)
    assert found.ravel().tolist() == expected[: found.size]
    assert len(expected) - found.size < 32


def test_masks_are_the_collators(store: TokenStore) -> None:
    tokenizer = store.tokenizer()
    text = np.concatenate([blocks(store, [np.ones(len(o) - 1, bool) for o in store.document_offsets], 32)] * 20)
    batches = masked_batches(text, tokenizer)
    shown = torch.cat([batch.input_ids for batch in batches])
    places = torch.cat([batch.masked_positions + 32 * 32 * n for n, batch in enumerate(batches)])
    labels = torch.cat([batch.masked_labels for batch in batches])
    original = torch.from_numpy(text.ravel())
    assert torch.equal(labels, original[places])
    others = torch.ones(len(original), dtype=torch.bool)
    others[places] = False
    assert torch.equal(shown[others], original[others])
    special = torch.isin(original, torch.tensor(tokenizer.special_ids()))
    assert not special[places].any()
    share, error = len(places) / int((~special).sum()), 4 / len(places) ** 0.5  # four standard deviations at most
    assert share == pytest.approx(0.15, rel=error)
    fates = shown[places]
    assert (fates == tokenizer.mask_id).double().mean() == pytest.approx(0.8, abs=0.5 * error)
    assert (fates == labels).double().mean() == pytest.approx(0.1, abs=0.5 * error)


def test_the_judge_scores_as_transformers(store: TokenStore) -> None:
    transformers = pytest.importorskip("transformers")
    held_out = store.held_out(0.3, 0)
    judge = Judge(store, held_out, CONFIG, 32)
    torch.manual_seed(0)
    weights = AlbertForPreTraining(CONFIG.replace(initializer_range=0.3)).state_dict()
    theirs = transformers.AlbertForMaskedLM(
        transformers.AlbertConfig(
            **{k: v for k, v in CONFIG.to_dict().items() if k not in ("model_type", "parameter_sharing")}
        )
    )
    theirs.load_state_dict({k: v for k, v in weights.items() if "pooler" not in k and "sop" not in k}, strict=False)
    theirs.tie_weights()
    total = count = 0.0
    for batch in masked_batches(blocks(store, held_out, 32), store.tokenizer()):
        labels = torch.full_like(batch.input_ids, -100)
        labels[batch.masked_positions] = batch.masked_labels
        with torch.no_grad():
            mean = theirs.eval()(input_ids=batch.input_ids.view(-1, 32), labels=labels.view(-1, 32)).loss
        total, count = total + float(mean) * len(batch.masked_labels), count + len(batch.masked_labels)
    assert count == judge.predictions
    assert judge.loss(weights) == pytest.approx(total / count, abs=1e-5)
    assert (
        judge.loss({**weights, "predictions.bias": weights["predictions.bias"] + torch.arange(500.0)})
        > total / count + 1e-3
    )
    with pytest.raises(RuntimeError, match=r"predictions\.bias"):
        judge.loss({k: v for k, v in weights.items() if k != "predictions.bias"})


def test_a_loss_is_reached_at_a_saved_moment() -> None:
    curve = Curve([1.0, 2.0, 3.0], [5.0, 4.0, 3.0])
    assert [curve.reached(loss) for loss in (5.0, 4.5, 3.0, 2.9)] == [1.0, 2.0, 3.0, None]


WRITES = """
import sys, time
for n in range(int(sys.argv[2])):
    open(sys.argv[1], "a").write(f"{time.time()}\\n")
    time.sleep(0.002)
"""


def runner(name: str, folder: Path, turn: float, code: str, *arguments: object) -> Runner:
    log = folder / f"{name}.log"
    with open(log, "wb") as stream:
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=stream, stderr=stream)
    return Runner(name, process, log, turn)


def test_only_one_runs_at_a_time(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    runners = []
    try:
        for file in files:
            runners.append(runner(file.name, tmp_path, 0.2, WRITES, file, 200))
            runners[-1].set_up(file)
        take_turns(runners)
    finally:
        for one in runners:
            one.end()
    moments = [[float(line) for line in file.read_text().split()] for file in files]
    assert [len(some) for some in moments] == [200, 200]
    for one, some in zip(runners, moments, strict=True):
        assert len(one.slices) > 2
        assert all(
            any(begin <= moment <= end + 0.05 for begin, end in one.slices) for moment in some
        )  # stopping takes a moment
        turns = sum(end - begin for begin, end in one.slices)
        assert one.active(0.0, time.time()) == pytest.approx(turns)
        assert one.active(some[0], some[-1]) < min(turns, some[-1] - some[0])
    between = [(a[1], b[0]) for a, b in zip(runners[0].slices, runners[0].slices[1:], strict=False)]
    assert all(any(begin <= s and e <= end for begin, end in between) for s, e in runners[1].slices[:-1])


def test_a_program_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    failing = runner("theirs", tmp_path, 60.0, "import sys; print('no such weights', file=sys.stderr); sys.exit(3)")
    with pytest.raises(MachineError, match="theirs ended with status 3: no such weights") as caught:
        take_turns([failing])
    assert caught.value.slug == "peer-failed"


def write_recipe(folder: Path) -> Path:
    (folder / "tiny.json").write_text(json.dumps(TINY))
    recipe = folder / "tiny.toml"
    recipe.write_text(
        f'config = "{folder / "tiny.json"}"\nlength = 32\nbatch_tokens = 512\nsteps = 100\nheld_out = 0.2\npair_task = "none"\n'
        'optimizer = "adamw"\nbias_correction = true\nlr = 2e-3\nwarmup_steps = 10\noutput_bias = "frequencies"\n'
    )
    return recipe


def test_what_cannot_be_run_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    for slug, arguments in {
        "bad-minutes": {"minutes": 0}, "not-empty": {"out": tmp_path}, "not-found": {"recipe": tmp_path / "no.toml"},
    }.items():  # fmt: skip
        with pytest.raises(AlbertKitError) as caught:
            next(quality_rows(inputs, **{"recipe": recipe, **arguments}))
        assert caught.value.slug == slug


@pytest.mark.slow
def test_a_race(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("shutil.which", lambda name: None)  # compiling takes a minute
    [row] = quality_rows(inputs, write_recipe(tmp_path), minutes=0.1, threads=1, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["ratio"].keys() == row.peers.keys()
    details = row.details
    assert len(details["curve_of_ours"]) == len(details["curve_of_theirs"]) == 16
    for side in ("ours", "theirs"):
        seconds = [s for s, _ in details[f"curve_of_{side}"]]
        assert seconds == sorted(seconds)
    assert details["loss_of_theirs"] < details["curve_of_theirs"][0][1]
    assert (tmp_path / "out" / "quality.png").stat().st_size > 10_000
