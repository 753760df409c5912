"""The code in CONTRIBUTING.md runs as it stands there, and what it adds works."""

import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import pytest
import successors
import torch
from cyclopts import App

import albertkit
from albertkit.captioning import backbones
from albertkit.captioning.backbones import load_backbone
from albertkit.command import Command, takes
from albertkit.errors import ConfigError
from albertkit.files import sha256_file
from albertkit.job import Job
from albertkit.output.sections import Result
from albertkit.tasks import registry as tasks
from albertkit.tasks.models import load_task_model
from albertkit.training.settings import EpochSettings

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
OURS, OWN = PAGE.read_text(encoding="utf-8").split("\n## Adding things of your own\n")
TURKISH = [
    "Diyarbakır'da IŞIK var",
    "İstanbul'da ılık bir gün",
    "KIRMIZI BALIK göl içinde",
    "istanbul ışıkları",
]


@pytest.fixture(scope="module")
def added():
    """Everything the page's code defines; what it registers is forgotten afterwards."""
    registries = [
        tasks._REGISTERED,
        tasks._KINDS,
        backbones._REGISTERED,
    ]
    before = [dict(registry) for registry in registries]
    blocks = re.findall(r"^```python\n(.+?)^```$", OWN, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace = {"__name__": __name__}
    for block in blocks:
        code = [
            line
            for line in block.splitlines()
            if line.strip() and not line.startswith(("import ", "from "))
        ]
        assert len(code) < 20
        exec(compile(block, str(PAGE), "exec"), namespace)
    yield namespace
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


# --- what is added to albertkit: a command, an option, a job, a training --------------------------


@pytest.fixture(scope="module")
def frames():
    """The four pieces of code of the page, by heading."""
    examples = re.findall(
        r"^### An? (.+?)\n.*?^```(?:python|diff)\n(.+?)^```$", OURS, re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in examples] == ["command", "option", "resumable job", "training"]
    for name, code in examples:
        lines = [line for line in code.splitlines() if line.strip()]
        assert len([line for line in lines if line[0] in "+-"] if name == "option" else lines) <= 22
    return dict(examples)


def counting(code, monkeypatch):
    """Run the code of the command as a module, and its command in an app."""
    module = types.ModuleType("counting")
    names = dict(vars(dataclasses), Path=Path, Result=Result, takes=takes, Command=Command)
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "counting", module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    app = App(result_action="return_value")
    app.command(module.COMMAND.make_cli_function(), name="count")
    return module, app


def test_a_command_and_an_option_for_it(frames, monkeypatch, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("one\n\nthree\n", encoding="utf-8")
    module, app = counting(frames["command"], monkeypatch)
    assert module.count_lines(tmp_path / "text.txt").lines == 3
    assert app(["count", str(tmp_path / "text.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lines": 3}
    code = frames["command"]
    for change in frames["option"].split("@@\n"):  # as `patch` applies it
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert before in code
        code = code.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))
    module, app = counting(code, monkeypatch)
    assert module.count_lines(tmp_path / "text.txt", at_least=4).lines == 1
    assert app(["count", str(tmp_path / "text.txt"), "--at-least", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lines": 2}
    app(["count", "--help"])
    assert "Shortest line that counts" in " ".join(capsys.readouterr().out.split())


def test_a_resumable_job(frames, tmp_path):
    names = {"Job": Job, "Path": Path, "sha256_file": sha256_file}
    exec(compile(frames["resumable job"], str(PAGE), "exec"), names)
    texts = [tmp_path / f"{number}.txt" for number in range(3)]
    for text in texts:
        text.write_text(f"text {text.name}", encoding="utf-8")
    names["shout"](texts, tmp_path / "whole")
    stopped = iter([sha256_file(texts[0]), sha256_file(texts[1]), sha256_file(texts[2])])
    broken = Path(tmp_path / "1.txt")
    content = broken.read_bytes()
    # The key is known, and then the second text is gone
    names["sha256_file"] = lambda path: next(stopped)
    broken.unlink()
    with pytest.raises(FileNotFoundError):
        names["shout"](texts, tmp_path / "halves")
    assert (tmp_path / "halves/.work/0.txt").exists()
    broken.write_bytes(content)
    names["sha256_file"] = sha256_file
    names["shout"](texts, tmp_path / "halves")
    contents = {
        folder: {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}
        for folder in ("whole", "halves")
    }
    assert (
        contents["halves"]
        == contents["whole"]
        == {text.name: text.read_bytes().upper() for text in texts}
    )


def test_a_training(frames, tmp_path):
    names = dict(vars(successors))
    exec(compile(frames["training"], str(PAGE), "exec"), names)
    settings = EpochSettings(steps=40, lr=0.1, batch_size=1)
    result = names["learn_successors"](tmp_path / "run", settings)
    assert result.value == successors.learn_successors(tmp_path / "again", settings).value > 0.5
    assert (tmp_path / "run/best/model.safetensors").exists()


# --- things of one's own --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def turkish(tmp_path_factory):
    out = tmp_path_factory.mktemp("turkish") / "tokenizer"
    albertkit.train_tokenizer(
        TURKISH * 30, out, 40, text_rules="multilingual", user_defined_symbols=()
    )
    return out


def test_a_registered_task_is_trained_scored_and_read_again(added, turkish, tmp_path):
    config = albertkit.AlbertConfig(
        vocab_size=40,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    albertkit.AlbertForPreTraining(config).save_pretrained(
        tmp_path / "start", albertkit.AlbertTokenizer.from_pretrained(turkish)
    )
    rows = "letter,kind\n" + "IŞIK var,spam\nılık bir gün,letter\n" * 20
    (tmp_path / "mails.csv").write_text(rows, encoding="utf-8")
    settings = albertkit.FinetuneSettings(
        steps=30, lr=3e-3, batch_size=8, length=16, precision="fp32"
    )
    result = albertkit.finetune(
        "spam", tmp_path / "start", tmp_path / "mails.csv", tmp_path / "run", settings
    )
    assert result.metric == "f_half"
    # It has learned, and the score is the class's own
    assert result.value == result.scores["f_half"] == 1
    assert type(load_task_model(tmp_path / "run").task) is added["Spam"]
    assert albertkit.load_pipeline(tmp_path / "run")("IŞIK var")["label"] == "spam"
    with pytest.raises(ConfigError, match="there is a task `spam` already"):
        albertkit.register_task(albertkit.find_task("spam").with_changes(length=7))


def test_a_registered_backbone_is_made_from_its_name_and_from_what_was_saved(added):
    backbone = load_backbone("patches")
    frames = torch.randint(0, 255, (2, 3, 64, 64, 3), dtype=torch.uint8)
    tokens = backbone(frames)
    assert tokens.shape == (2, backbone.grid(3, 64).num_tokens, backbone.out_dim)
    # Of the grid's place: frame 2, row 1, column 2
    patch = frames[1, 2, 8:16, 16:24].permute(2, 0, 1) / 255
    by_hand = (backbone.layer.weight[:, :, 0] * patch).sum((1, 2, 3)) + backbone.layer.bias
    torch.testing.assert_close(tokens[1, 2 * 64 + 8 + 2], by_hand)
    reloaded = load_backbone("patches", backbone.settings(), backbone.state_dict())
    assert torch.equal(reloaded(frames), tokens)
    assert reloaded.fingerprint() == backbone.fingerprint() != load_backbone("conv3d").fingerprint()
    with pytest.raises(ConfigError, match="bad-value"):
        load_backbone("patches", {"width": 3})
