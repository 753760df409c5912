"""`get_albert_model`: the call of the migration guide of 2024, SwinBERT's arguments, and what becomes of pretrained weights."""

import sys
from argparse import Namespace

import pytest
import torch
from record_files import write_json, write_lines

from albertkit.captioning.metrics import score_captions
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.files import read_json
from albertkit.model.classes import AlbertForPreTraining, AlbertModel
from albertkit.swinbert.classes import SwinBertTokenizer
from albertkit.swinbert.migrate import migrate_checkout
from albertkit.swinbert.scripts import get_albert_model

SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
WORDS = [*SPECIAL, "a", "man", "dog", "runs", "##ning", ".", "the"]


def write_vocabulary(folder, words, **config):
    """What the guide of 2024 puts into a model's folder: a configuration and a WordPiece vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    values = dict(
        architectures=["BertForMaskedLM"],
        model_type="albert",
        embedding_size=16,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=64,
        vocab_size=len(words),
        hidden_act="gelu_new",
    )
    write_json(folder / "config.json", values | config)
    write_lines(folder / "vocab.txt", words)
    return folder


@pytest.fixture
def pretrained(tmp_path):
    """A pretrained ALBERT with a masked-LM head and its vocabulary."""
    folder = write_vocabulary(tmp_path / "albert", WORDS)
    torch.manual_seed(1)
    model = AlbertForPreTraining(AlbertConfig.from_pretrained(folder))
    with torch.no_grad():
        model.predictions.bias.normal_()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def migrated(checkout, monkeypatch):
    """A migrated checkout that can be imported from, as its scripts are run: from its folder."""
    migrate_checkout(checkout, apply=True, portable=True)
    monkeypatch.chdir(checkout)
    monkeypatch.syspath_prepend(str(checkout))
    yield checkout
    for name in [name for name in sys.modules if name == "src" or name.startswith("src.")]:
        del sys.modules[name]


def test_the_call_of_the_migration_guide(migrated, capsys):
    words = [*SPECIAL, *(f"word{number}" for number in range(30_522 - len(SPECIAL)))]
    write_vocabulary(
        migrated / "models/captioning/albert-base-v2",
        words,
        embedding_size=128,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        gradient_checkpointing=False,
    )
    script = """
from src.modeling.load_albert import get_albert_model
from argparse import Namespace

args = Namespace(
    model_name_or_path='models/captioning/albert-base-v2/',
    config_name='',
    tokenizer_name='',
    do_lower_case=True,
    drop_out=0.1,
    tie_weights=True,
    freeze_embedding=False,
    label_smoothing=0.0,
    drop_worst_ratio=0.0,
    drop_worst_after=0,
    img_feature_dim=512,
    num_hidden_layers=-1,
    hidden_size=-1,
    num_attention_heads=-1,
    intermediate_size=-1,
    load_partial_weights=False
)

model, config, tokenizer = get_albert_model(args)
print(f"Model loaded successfully! Total parameters: {sum(p.numel() for p in model.parameters())}")
"""
    names = {}
    exec(script, names)
    printed = capsys.readouterr()
    assert (
        printed.out
        == f"Model loaded successfully! Total parameters: {names['model'].num_parameters()}\n"
    )
    assert f"{names['model'].num_parameters():,} parameters" in printed.err
    assert "warning: initialised_from: scratch" in printed.err
    assert names["args"].initialised_from == "scratch"
    config = names["config"]
    assert config.vocab_size == 30_522
    assert config.embedding_size == 128
    assert config.hidden_dropout_prob == 0.1
    config.num_visual_tokens = 784  # as the script does when it takes over another mask
    assert names["tokenizer"].vocab_size == 30_522
    # The guide's other import
    from src.layers.albert import AlbertConfig, AlbertForImageCaptioning, AlbertTokenizer

    assert isinstance(names["model"], AlbertForImageCaptioning)
    assert AlbertConfig is type(config)
    assert AlbertTokenizer is type(names["tokenizer"])


def test_pretrained_weights_are_kept_whatever_the_visual_width(pretrained, capsys):
    original = AlbertForPreTraining.from_pretrained(pretrained).state_dict()
    for width in (512, 7):
        args = Namespace(model_name_or_path=str(pretrained), img_feature_dim=width, drop_out=0.2)
        model, config, _ = get_albert_model(args)
        state = model.state_dict()
        shared = state.keys() & original.keys()
        assert len(shared) == len(original) - 2  # all but the sentence-order head
        assert all(torch.equal(state[name], original[name]) for name in shared)
        assert torch.equal(
            state["predictions.decoder.weight"],
            original["albert.embeddings.word_embeddings.weight"],
        )
        assert (
            model.caption.img_feature_dim
            == state["albert.img_embedding.projection.weight"].shape[1]
            == width
        )
        assert args.initialised_from == str(pretrained)
        assert config.hidden_dropout_prob == 0.2
    messages = capsys.readouterr().err
    assert "sop_classifier.classifier.weight" in messages
    assert "initialised afresh: albert.img_embedding" in messages
    assert f"{model.num_parameters():,} parameters" in messages
    scratch, _, _ = get_albert_model({"model_name_or_path": str(pretrained), "init": "scratch"})
    assert not torch.equal(
        scratch.state_dict()["predictions.dense.weight"], original["predictions.dense.weight"]
    )


def test_an_encoder_alone_and_a_captioner(pretrained, tmp_path, capsys):
    AlbertModel.from_pretrained(pretrained).save_pretrained(tmp_path / "encoder")
    encoder = write_vocabulary(tmp_path / "vocabulary", WORDS)
    args = dict(
        model_name_or_path=str(tmp_path / "encoder"), tokenizer_name=str(encoder), tie_weights=True
    )
    model, _, _ = get_albert_model(args)
    assert "predictions.dense.weight" in capsys.readouterr().err
    assert args["initialised_from"] == str(tmp_path / "encoder")
    model.save_pretrained(tmp_path / "captioner")
    reloaded, _, _ = get_albert_model({**args, "model_name_or_path": str(tmp_path / "captioner")})
    assert all(
        torch.equal(tensor, reloaded.state_dict()[name])
        for name, tensor in model.state_dict().items()
    )
    assert "initialised afresh: nothing" in capsys.readouterr().err
    narrow, _, _ = get_albert_model(
        {**args, "model_name_or_path": str(tmp_path / "captioner"), "img_feature_dim": 9}
    )
    assert narrow.albert.img_embedding.projection.in_features == 9


def test_the_number_of_layers_is_free_and_widths_are_not(pretrained):
    args = {"model_name_or_path": str(pretrained), "num_hidden_layers": 7}
    _, config, _ = get_albert_model(args)
    assert config.num_hidden_layers == 7
    for name, value in (("hidden_size", 32), ("num_attention_heads", 4), ("intermediate_size", 64)):
        with pytest.raises(ConfigError, match="weights-mismatch") as raised:
            get_albert_model({**args, name: value})
        assert f"{name} {value}" in raised.value.message
        _, config, _ = get_albert_model({**args, name: value, "init": "scratch"})
        assert getattr(config, name) == value


def test_arguments_of_the_loss_reach_the_model(pretrained):
    args = Namespace(
        model_name_or_path=str(pretrained),
        tie_weights=True,
        freeze_embedding=True,
        label_smoothing=0.1,
        drop_worst_ratio=0.2,
        drop_worst_after=5,
        num_hidden_layers=-1,
        learn_mask_enabled=True,
    )
    model, _, _ = get_albert_model(args)
    caption = model.caption
    assert caption.tie_weights is True
    assert caption.freeze_embedding is True
    assert caption.label_smoothing == 0.1
    assert caption.drop_worst_ratio == 0.2
    assert caption.drop_worst_after == 5
    assert caption.video_attention == "full"
    assert not model.albert.embeddings.word_embeddings.weight.requires_grad
    assert "predictions.decoder.weight" not in model.state_dict()


def test_what_cannot_be_loaded(pretrained, tmp_path, slug_of):
    bert = write_vocabulary(tmp_path / "bert", WORDS, model_type="bert")
    for values, slug in (
        ({"model_name_or_path": ""}, "bad-value"),
        ({"num_hidden_layers": "two"}, "bad-value"),
        ({"init": "maybe"}, "bad-value"),
        ({"model_name_or_path": str(tmp_path / "nowhere")}, "not-found"),
        ({"model_name_or_path": str(bert)}, "wrong-model"),
        (
            {
                "model_name_or_path": str(write_vocabulary(tmp_path / "new", WORDS)),
                "init": "pretrained",
            },
            "missing-file",
        ),
        (
            {"tokenizer_name": str(write_vocabulary(tmp_path / "more", [*WORDS, "beyond"]))},
            "wrong-tokenizer",
        ),
    ):
        assert slug_of(get_albert_model, {"model_name_or_path": str(pretrained), **values}) == slug


def test_the_text_model_in_the_migrated_video_transformer(migrated, pretrained):
    """Training, gradients and generation through the checkout's own class, on a machine without its four packages."""
    from src.modeling.load_albert import get_albert_model
    from src.modeling.video_captioning_e2e_vid_swin_bert import VideoTransformer

    class Swin(torch.nn.Module):
        width = 6

        def forward(self, images):
            return images

    tokens = 4
    length = 8
    args = Namespace(
        model_name_or_path=str(pretrained),
        use_checkpoint=False,
        max_img_seq_length=tokens,
        img_feature_dim=5,
    )
    model, config, tokenizer = get_albert_model(args)
    video = VideoTransformer(args, config, Swin(), model).train()
    words = [tokenizer.cls_token, *tokenizer.tokenize("a man runs"), tokenizer.sep_token]
    ids = torch.tensor(
        [tokenizer.convert_tokens_to_ids(words + [tokenizer.pad_token] * (length - len(words)))] * 2
    )
    mask = torch.zeros(2, length + tokens, length + tokens, dtype=torch.long)
    mask[:, : len(words), : len(words)] = torch.tril(torch.ones(len(words), len(words)))
    mask[:, : len(words), length:] = mask[:, length:, length:] = 1
    masked_pos = torch.zeros(2, length, dtype=torch.int)
    masked_pos[:, [1, 3]] = 1
    labels = torch.full((2, 5), -1)
    labels[:, :2] = ids[:, [1, 3]]
    inputs = dict(token_type_ids=torch.zeros_like(ids), img_feats=torch.randn(2, tokens, 6))
    loss, logits = video(
        input_ids=ids, attention_mask=mask, masked_pos=masked_pos, masked_ids=labels, **inputs
    )
    assert logits.shape == (4, len(WORDS))
    loss.backward()
    assert video.fc.weight.grad.abs().sum() > 0

    special = (
        tokenizer.cls_token,
        tokenizer.sep_token,
        tokenizer.pad_token,
        tokenizer.mask_token,
        ".",
    )
    cls_id, sep_id, pad_id, mask_id, _ = tokenizer.convert_tokens_to_ids(list(special))
    mask[:, :length] = 0
    mask[:, :length, :length] = torch.tril(torch.ones(length, length))
    mask[:, :length, length:] = 1
    with torch.no_grad():
        captions, scores = video.eval()(
            is_decode=True,
            input_ids=torch.full_like(ids, mask_id),
            attention_mask=mask,
            masked_pos=torch.ones_like(masked_pos),
            do_sample=False,
            bos_token_id=cls_id,
            pad_token_id=pad_id,
            eos_token_ids=[sep_id],
            mask_token_id=mask_id,
            add_od_labels=False,
            od_labels_start_posid=length,
            max_length=length,
            num_beams=2,
            temperature=1,
            top_k=0,
            top_p=1,
            repetition_penalty=1,
            length_penalty=1,
            num_return_sequences=1,
            num_keep_best=1,
            **inputs,
        )
    assert captions.shape == (2, 1, length)
    assert scores.shape == (2, 1)
    assert captions[0, 0, 0] == cls_id
    assert "[" not in tokenizer.decode(captions[0, 0].tolist(), skip_special_tokens=True)
    args.use_checkpoint = True
    with pytest.raises(AlbertKitError, match="not-installed"):
        VideoTransformer(args, config, Swin(), model)


@pytest.fixture
def trained_run(migrated, pretrained):
    """A run as SwinBERT's training leaves it: a checkpoint, the arguments, the tokenizer."""
    from src.modeling.load_albert import get_albert_model

    args = Namespace(model_name_or_path=str(pretrained), do_train=True, tie_weights=True)
    model, _, tokenizer = get_albert_model(args)
    folder = migrated / "output"
    (folder / "checkpoint-1-2").mkdir(parents=True)
    state = {f"trans_encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(state, folder / "checkpoint-1-2/model.bin")
    tokenizer.save_pretrained(folder / "tokenizer")
    # As main() does with --pretrained_checkpoint
    args.model_name_or_path = "models/pretrained_checkpoint/"
    (folder / "log").mkdir()
    write_json(folder / "log/args.json", vars(args))
    return folder


def evaluation(run, **changes):
    """The arguments of an evaluation, as `update_existing_config_for_inference` of the migrated script makes them."""
    from src.tasks.run_caption_VidSwinBert import update_existing_config_for_inference

    trained = Namespace(**read_json(run / "log/args.json"))
    folder = f"{run}/checkpoint-1-2/"
    args = update_existing_config_for_inference(
        Namespace(of_training=trained, **{"model_name_or_path": None, **changes})
    )
    vars(args).update(
        eval_model_dir=folder,
        resume_checkpoint=folder + "model.bin",
        do_train=False,
        do_eval=True,
        do_test=True,
    )
    return args


def test_evaluation_takes_the_albert_and_the_tokenizer_that_were_trained_with(
    trained_run, pretrained, capsys
):
    """Another ALBERT, of as many tokens, lies where the configurations look for one."""
    from src.modeling.load_albert import get_albert_model

    default = trained_run.parent / "models/captioning/albert-base-v2"
    write_vocabulary(default, [*SPECIAL, *reversed(WORDS[5:])])
    for name in (None, "models/captioning/albert-base-v2/"):  # not named, or by a --config
        args = evaluation(trained_run, model_name_or_path=name)
        assert args.model_name_or_path == str(pretrained)
        _, _, tokenizer = get_albert_model(args)
        assert tokenizer.tokens == WORDS
    assert "is not used: the run was trained with" in capsys.readouterr().err
    # The folder is gone: what is named is used, with the tokenizer of the run.
    pretrained.rename(pretrained.with_name("elsewhere"))
    args = evaluation(trained_run, model_name_or_path=str(default))
    _, _, tokenizer = get_albert_model(args)
    messages = capsys.readouterr().err
    assert tokenizer.tokens == WORDS
    assert "which is gone" in messages
    assert "the run's own, in" in messages
    (trained_run / "tokenizer/vocab.txt").write_text("\n".join([*WORDS, "one more"]))
    with pytest.raises(CheckpointError, match="wrong-tokenizer"):
        get_albert_model(args)


def test_evaluation_refuses_a_checkpoint_that_does_not_fill_the_model(trained_run):
    """SwinBERT loads with strict=False: what is missing would stay as it was initialised."""
    from src.modeling.load_albert import get_albert_model

    args = evaluation(trained_run)
    file = trained_run / "checkpoint-1-2/model.bin"
    state = torch.load(file, weights_only=True)
    del state["trans_encoder.predictions.bias"]
    for names, reason in (
        (list(state), "lacks 1 parameters of the text model, such as predictions.bias"),
        ([name.replace("albert.", "bert.") for name in state], "holds a BERT"),
    ):
        torch.save(dict(zip(names, state.values(), strict=True)), file)
        with pytest.raises(CheckpointError, match=reason):
            get_albert_model(args)
    args.resume_checkpoint = str(file.parent) + "model.bin"  # without the slash
    with pytest.raises(AlbertKitError) as raised:
        get_albert_model(args)
    assert "end --eval_model_dir with a slash" in raised.value.hint


def test_the_package_has_the_modules_of_its_bert_twin(migrated, pretrained):
    """What the guide of 2024 lists, and what `from src.layers.bert` has names for."""
    from src.layers import albert
    from src.layers.albert import (
        file_utils,
        modeling_albert,
        modeling_utils,
        tokenization_albert,
        tokenization_utils,
    )

    assert albert.AlbertModel is modeling_albert.AlbertModel
    model = albert.AlbertModel.from_pretrained(pretrained)
    assert isinstance(model, modeling_utils.PreTrainedModel)
    assert isinstance(model.config, modeling_utils.PretrainedConfig.__mro__[1])
    tokenizer = tokenization_albert.AlbertTokenizer.from_pretrained(
        file_utils.cached_path(str(pretrained))
    )
    assert isinstance(tokenizer, tokenization_utils.PreTrainedTokenizer)
    assert tokenizer.encode("a man runs") == [5, 6, 8]
    assert tokenizer.convert_ids_to_tokens([2, 5, 6, 3]) == ["[CLS]", "a", "man", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens([2, 5, 6, 3], skip_special_tokens=True) == ["a", "man"]
    assert tokenizer.convert_ids_to_tokens(6) == "man"
    assert tokenizer.convert_tokens_to_string(["runs", "##ning", "."]) == "runsning."
    assert tokenization_utils.clean_up_tokenization("a man , he 's old .") == "a man, he's old."
    names = ("pad", "unk", "cls", "sep", "mask")
    assert (
        [getattr(tokenizer, f"{name}_token_id") for name in names]
        == tokenizer.all_special_ids
        == [0, 1, 2, 3, 4]
    )
    assert tokenizer.all_special_tokens == SPECIAL


def test_a_loader_written_for_bert_runs_with_the_names_replaced(migrated, pretrained, capsys):
    """The steps of SwinBERT's load_bert.py, with Bert replaced by Albert: read, set values, build or load."""
    from src.layers.albert import AlbertConfig, AlbertForImageCaptioning, AlbertTokenizer

    config = AlbertConfig.from_pretrained(
        str(pretrained), num_labels=2, finetuning_task="image_captioning"
    )
    AlbertTokenizer.from_pretrained(str(pretrained), do_lower_case=True)
    config.img_feature_type = "frcnn"
    config.loss_type = "classification"
    config.hidden_dropout_prob = 0.2
    config.tie_weights = True
    config.label_smoothing = 0.1
    assert config.num_labels == 2
    assert config.hidden_dropout_prob == 0.2
    assert config.img_feature_dim == 512
    config.img_feature_dim = 7
    model = AlbertForImageCaptioning.from_pretrained(
        str(pretrained), from_tf=bool(".ckpt" in str(pretrained)), config=config
    )
    original = AlbertForPreTraining.from_pretrained(pretrained).state_dict()
    assert all(
        torch.equal(model.state_dict()[name], original[name])
        for name in original
        if "sop_classifier" not in name
    )
    assert model.caption.tie_weights is True
    assert model.caption.label_smoothing == 0.1
    assert model.caption.img_feature_dim == 7
    assert "initialised afresh: albert.img_embedding" in capsys.readouterr().err
    assert AlbertForImageCaptioning(config=config).config.hidden_dropout_prob == 0.2
    with pytest.raises(ConfigError, match="hidden_size 65"):
        config.hidden_size = 65
    assert config.hidden_size == 64
    with pytest.raises(ConfigError, match="from_tf"):
        AlbertForImageCaptioning.from_pretrained(str(pretrained), from_tf=True)
    with pytest.raises(ConfigError, match="output_loading_info"):
        AlbertForImageCaptioning.from_pretrained(str(pretrained), output_loading_info=True)


def test_captions_are_scored_without_the_container(migrated):
    """`evaluate_on_coco_caption`, through the checkout's own function: the scores of the COCO scorer's files."""
    from src.evalcap.utils_caption_evaluate import evaluate_on_coco_caption, reward

    references = {
        "a": ["a man sings a song", "someone is singing"],
        "b": ["a dog runs"],
        "c": ["two cars"],
    }
    candidates = {"b": "a dog runs", "a": "a man is singing"}  # not of every clip
    annotations = [
        {"image_id": key, "caption": text} for key, texts in references.items() for text in texts
    ]
    write_json(migrated / "labels.json", {"annotations": annotations, "images": []})
    results = [{"image_id": key, "caption": text} for key, text in candidates.items()]
    write_json(migrated / "results.json", results)
    scores = evaluate_on_coco_caption(str(migrated / "results.json"), str(migrated / "labels.json"))
    expected = score_captions({key: references[key] for key in candidates}, candidates)
    assert {name: scores[name] for name in expected} == dict(expected)
    assert scores["CIDEr"] > 0
    with pytest.raises(AlbertKitError, match="cider") as raised:
        reward("corpus")
    assert "container" in raised.value.hint


def test_the_device_follows_the_machine(migrated, monkeypatch, capsys):
    from src.configs.config import parser

    from albertkit.swinbert.optional_packages import available_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert parser().parse_args([]).device == "cpu"
    # Of a run that was trained on another machine
    assert available_device("cuda") == torch.device("cpu")
    assert "warning: the arguments ask for the device cuda" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parser().parse_args([]).device == "cuda"
    assert available_device("cuda:1") == torch.device("cuda:1")


def test_the_tokenizer_gives_the_tokens_of_the_original(golden, tmp_path):
    tokenizer = SwinBertTokenizer.from_pretrained(golden / "captioning")
    for row in read_json(golden / "captioning/text_cleaning.json"):
        assert tokenizer.tokenize(row["cleaned"]) == row["tokens"]
    stored = read_json(golden / "captioning/captions.json")
    assert (
        tokenizer.tokenize(stored["captions"][0])
        == stored["tokens"][0]
        != tokenizer.tokenize("a man")
    )
    outputs = read_json(golden / "captioning/untied_seq2seq/generate_outputs.json")
    texts = outputs["greedy"]["captions"]
    assert [
        [tokenizer.decode(ids, skip_special_tokens=True) for ids in row]
        for row in outputs["greedy"]["ids"]
    ] == texts
    assert {tokenizer.get_random_token() for _ in range(2000)} <= set(tokenizer.tokens)
    assert tokenizer.convert_tokens_to_ids("never seen") == tokenizer.tokenizer.unk_id
    tokenizer.save_pretrained(tmp_path)
    assert SwinBertTokenizer.from_pretrained(tmp_path).tokens == tokenizer.tokens


def test_lower_case_is_asked_for_only_where_no_file_says(golden, tmp_path):
    folder = write_vocabulary(tmp_path / "cased", [*WORDS, "Man"])
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=False).tokenize("Man man") == [
        "Man",
        "man",
    ]
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=True).tokenize("Man man") == [
        "man",
        "man",
    ]
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert SwinBertTokenizer.of_run(folder, do_lower_case=False).tokenize("Man man") == [
        "man",
        "man",
    ]
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=False).tokenize("Man man") == [
        "Man",
        "man",
    ]
    import transformers

    theirs = transformers.BertTokenizer.from_pretrained(folder, do_lower_case=False)
    assert theirs.tokenize("Man man") == ["Man", "man"]


def test_other_case_of_a_fixed_tokenizer_is_refused(tiny_tokenizer, tmp_path):
    tiny_tokenizer.save_pretrained(tmp_path)
    cased = SwinBertTokenizer.from_pretrained(tmp_path, do_lower_case=False)
    assert cased.tokenize("The") != SwinBertTokenizer.from_pretrained(tmp_path).tokenize("The")
    for file in tmp_path.glob("spiece.*"):
        file.unlink()
    with pytest.raises(AlbertKitError, match="do_lower_case cannot be changed"):
        SwinBertTokenizer.from_pretrained(tmp_path, do_lower_case=False)
