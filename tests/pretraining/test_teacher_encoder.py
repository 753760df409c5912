"""Teachers of any class and with more tokens than the data, compared with transformers' own states of single sequences."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from record_files import write_json
from safetensors.torch import load_file, save_file
from small_store import differing, weights
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from torch.testing import assert_close

from albertkit.corpus import build_store
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.teacher import (
    TaughtStudent,
    TeacherObjective,
    start_from_teacher,
    student_config,
)
from albertkit.pretraining.teacher_encoder import (
    AlbertTeacher,
    TransformersTeacher,
    open_teacher_encoder,
)
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer
from albertkit.vocabulary import trim_vocabulary

SETTINGS = PretrainSettings(length=32, precision="fp32", pair_task="none")
CPU = torch.device("cpu")
SIZE = 100
LENGTHS = (5, 17, 1, 30)
SHAPE = dict(
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=128,
    initializer_range=0.2,
)
POSITIONS = dict(max_position_embeddings=64)


def make_config(kind, vocab_size):
    config_class = getattr(transformers, f"{kind}Config")
    values = dict(vocab_size=vocab_size, pad_token_id=0, **SHAPE, **POSITIONS)
    match kind:
        case "DistilBert":
            values = dict(
                vocab_size=vocab_size, dim=64, n_layers=4, n_heads=2, hidden_dim=128, **POSITIONS
            )
        case "Electra":
            values["embedding_size"] = 32
        case "FNet":
            del values["num_attention_heads"]
        case "Roberta" | "XLMRoberta":
            values |= dict(max_position_embeddings=65, type_vocab_size=1)
        case "DebertaV2":
            values |= dict(
                relative_attention=True,
                pos_att_type=["p2c", "c2p"],
                position_biased_input=False,
                type_vocab_size=0,
            )
        case "ModernBert":
            values |= dict(
                local_attention=8, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3
            )
    return config_class(**values)


KINDS = (
    "Bert",
    "Roberta",
    "XLMRoberta",
    "DistilBert",
    "Electra",
    "Deberta",
    "DebertaV2",
    "ModernBert",
    "MPNet",
)


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory, store):
    """A tokenizer of 100 tokens, those of them that the small store's text uses, and a store of that text in these."""
    folder = tmp_path_factory.mktemp("trimmed")
    text = store.folder.parent / "corpus.txt"
    draw = random.Random(0)
    words = ["".join(draw.choices("abdegiklmnorstu", k=draw.randint(2, 6))) for _ in range(200)]
    other_text = [" ".join(draw.choices(words, k=9)) for _ in range(400)]
    train_tokenizer([text, *other_text], folder / "whole", vocab_size=SIZE)
    report = trim_vocabulary(folder / "whole", [text], folder / "tokenizer")
    assert report.vocab_size < SIZE
    build_store([text], folder / "store", folder / "tokenizer", workers=0)
    return folder


@pytest.fixture(scope="module")
def teacher_folder(trimmed):
    """Return the folder of a random encoder with the whole tokenizer."""

    def make(kind):
        folder = trimmed / kind
        if not folder.exists():
            torch.manual_seed(0)
            model = transformers.AutoModel.from_config(make_config(kind, SIZE))
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
            model.save_pretrained(folder)
            shutil.copytree(trimmed / "whole", folder, dirs_exist_ok=True)
        return folder

    return make


def draw_batch(tokenizer):
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randint(5, tokenizer.vocab_size, (length,), generator=generator).tolist()
        for length in LENGTHS
    ]
    return PackedBatch.from_sequences(
        [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in sequences]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_transformers(kind, teacher_folder, trimmed):
    folder = teacher_folder(kind)
    tokenizer, teacher_tokenizer = (
        AlbertTokenizer.from_pretrained(trimmed / name) for name in ("tokenizer", "whole")
    )
    teacher = open_teacher_encoder(folder, tokenizer, SETTINGS, CPU)
    batch = draw_batch(tokenizer)
    order = torch.tensor(
        [
            teacher_tokenizer.get_vocab()[tokenizer.id_to_piece(n)]
            for n in range(tokenizer.vocab_size)
        ]
    )
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = [
            model(order[ids][None], output_hidden_states=True).hidden_states
            for ids in batch.input_ids.split(batch.lengths)
        ]
    expected = [torch.cat([states[0] for states in layer]) for layer in zip(*outputs, strict=True)]
    for states, expected_states in zip(teacher.states(batch), expected, strict=True):
        assert_close(states, expected_states, atol=3e-5, rtol=1e-5)


def test_a_store_in_a_part_of_the_teachers_tokens(tmp_path, teacher_folder, trimmed, store, taught):
    """The teacher and its trimmed copy, whose tokenizer is that of the store, teach the same to the last bit."""
    bert = teacher_folder("Bert")
    trim_vocabulary(bert, [store.folder.parent / "corpus.txt"], tmp_path / "smaller")
    results = [
        pretrain(trimmed / "store", tmp_path / name, replace(taught, steps=3, teacher=folder))
        for name, folder in (("whole", bert), ("part", tmp_path / "smaller"))
    ]
    assert not differing(*(weights(result.model) for result in results))


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_has_what_fits(kind, teacher_folder, trimmed, slug_of):
    """Encoders of BERT's arithmetic give the mean of their layers, and relations; all of them their words."""
    tokenizer = AlbertTokenizer.from_pretrained(trimmed / "tokenizer")
    teacher = open_teacher_encoder(teacher_folder(kind), tokenizer, SETTINGS, CPU)
    student = AlbertForPreTraining(student_config(teacher.config, 32)).eval()
    notes = start_from_teacher(
        student, teacher, torch.ones(tokenizer.vocab_size), draw_batch(tokenizer)
    )
    assert "keep 100.0%" in notes[0]
    assert "explain" in notes[1]
    has_mean = kind in ("Bert", "Roberta", "XLMRoberta", "DistilBert", "Electra")
    assert ("mean" in notes[2]) == has_mean
    sample = [draw_batch(tokenizer)]
    if not has_mean:
        assert slug_of(TaughtStudent, student, teacher, sample, 1.0) == "bad-value"
    else:
        taught = TaughtStudent(student, teacher, sample, 1.0)
        assert TeacherObjective(taught).losses(sample[0])["teacher_relations"].total > 0
        name = (
            "transformer.layer.{}.ffn.lin1.weight"
            if kind == "DistilBert"
            else "encoder.layer.{}.intermediate.dense.weight"
        )
        stored = weights(teacher_folder(kind))
        mean = torch.stack([stored[name.format(layer)] for layer in range(4)]).mean(0)
        assert_close(
            student.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.weight, mean
        )


def test_a_roberta_teaches_and_a_run_with_it_is_resumed(
    tmp_path, teacher_folder, trimmed, slug_of, taught
):
    """Its checkpoint has no pooler, which transformers then draws: it is no part of what a resumed run compares."""
    folder = tmp_path / "roberta"
    shutil.copytree(teacher_folder("Roberta"), folder)
    model = transformers.RobertaModel.from_pretrained(folder, add_pooling_layer=False)
    model.save_pretrained(folder)
    alone = replace(taught, steps=4, save_every=2, teacher=folder)
    result = pretrain(trimmed / "store", tmp_path / "run", alone)
    before = weights(result.model)
    for name in ("checkpoints/step-000004", "final"):
        shutil.rmtree(tmp_path / "run" / name)
    resumed = pretrain(trimmed / "store", tmp_path / "run", alone, resume=True)
    assert not differing(weights(resumed.model), before)
    assert resumed.scores["unexplained"] > 0
    assert (
        slug_of(pretrain, trimmed / "store", tmp_path / "pairs", replace(alone, pair_task="sop"))
        == "bad-value"
    )
    assert (
        slug_of(pretrain, trimmed / "store", tmp_path / "long", replace(alone, length=65))
        == "bad-value"
    )


def test_a_class_that_fails_in_bf16_computes_in_fp32(teacher_folder, trimmed):
    tokenizer = AlbertTokenizer.from_pretrained(trimmed / "tokenizer")
    settings = replace(SETTINGS, precision="bf16")
    for kind, dtype in (("DebertaV2", torch.bfloat16), ("Deberta", torch.float32)):
        teacher = open_teacher_encoder(teacher_folder(kind), tokenizer, settings, CPU)
        assert teacher.compute_dtype == dtype


def test_what_is_no_teacher(tmp_path, teacher_folder, trimmed, store, error_of):
    tokenizer = AlbertTokenizer.from_pretrained(trimmed / "tokenizer")
    folder = tmp_path / "teacher"
    shutil.copytree(teacher_folder("Electra"), folder)

    def slug(source=folder, data=tokenizer):
        return error_of(open_teacher_encoder, source, data, SETTINGS, CPU).slug

    assert slug(data=store.tokenizer()) == "wrong-tokenizer"
    config = transformers.GPT2Config(vocab_size=SIZE, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2Model(config).save_pretrained(tmp_path / "gpt2")
    assert slug(tmp_path / "gpt2") == "wrong-model"
    assert slug(teacher_folder("ConvBert")) == "wrong-model"
    for kind in ("FNet", "Perceiver"):
        assert slug(teacher_folder(kind)) == "unsupported"
    (folder / "model.safetensors").rename(folder / "kept")
    assert slug() == "wrong-kind"
    stored = load_file(folder / "kept")
    save_file(
        {name: tensor for name, tensor in stored.items() if "layer.1.output" not in name},
        folder / "model.safetensors",
    )
    assert slug() == "weights-mismatch"
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"num_hidden_layers": 1})
    (folder / "kept").rename(folder / "model.safetensors")
    assert slug() == "weights-mismatch"
    values = {"model_type": "unheard-of"}
    write_json(folder / "config.json", values)
    assert slug() == "wrong-kind"
    values["auto_map"] = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}
    write_json(folder / "config.json", values)
    assert slug() == "unsupported"
    (folder / "config.json").unlink()
    assert slug() == "not-found"


def test_a_folder_that_holds_the_encoder_inside_is_told_apart_from_one_without_tokenizer(
    tmp_path, teacher_folder, trimmed, error_of
):
    """The layout of sentence-transformers before 2020, in which a `Dense` has weights, too."""
    tokenizer = AlbertTokenizer.from_pretrained(trimmed / "tokenizer")
    encoder_folder = tmp_path / "0_Transformer"
    shutil.copytree(teacher_folder("Bert"), encoder_folder)
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text('{"in_features": 64}')
    shutil.copy(encoder_folder / "model.safetensors", tmp_path / "2_Dense")
    for error in (
        error_of(open_teacher_encoder, tmp_path, tokenizer, SETTINGS, CPU),
        error_of(AlbertTokenizer.from_pretrained, tmp_path),
    ):
        assert error.hint == f"name a folder inside it: {encoder_folder}"
    for file in (*encoder_folder.glob("*.model"), *encoder_folder.glob("tokenizer*")):
        file.unlink()
    error = error_of(open_teacher_encoder, encoder_folder, tokenizer, SETTINGS, CPU)
    assert error.slug == "no-tokenizer"
    assert "copy" in error.hint


def test_a_teacher_smaller_than_its_student(tmp_path, teacher_folder, trimmed, settings, error_of):
    larger = replace(
        settings, size="tiny", config=None, pair_task="none", teacher=teacher_folder("Roberta")
    )
    error = error_of(pretrain, trimmed / "store", tmp_path / "run", larger)
    assert error.slug == "bad-value"
    assert "smaller" in error.message
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory, store):
    """A RoBERTa with a tokenizer of bytes, which shares no token with the store's."""
    folder = tmp_path_factory.mktemp("bytes")
    trainer = ByteLevelBPETokenizer(add_prefix_space=True)
    names = "<s> <pad> </s> <unk> <mask>".split()
    text = [str(store.folder.parent / "corpus.txt")]
    trainer.train(text, vocab_size=300, min_frequency=1, special_tokens=names, show_progress=False)
    vocabulary = trainer.get_vocab()
    roles = dict(
        cls_token="<s>",
        bos_token="<s>",
        sep_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    backend = trainer._tokenizer
    ends = [("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"])]
    backend.post_processor = RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=True)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token="<mask>", **roles
    )
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=len(vocabulary),
        pad_token_id=vocabulary["<pad>"],
        type_vocab_size=1,
        max_position_embeddings=130,
        **SHAPE,
    )
    transformers.RobertaModel(config).save_pretrained(folder)
    return folder


def test_states_are_aligned_by_characters(byte_level, store):
    """Every token of a sentence has the mean of transformers' states of the tokens whose characters it shares."""
    tokenizer = store.tokenizer()
    teacher = open_teacher_encoder(
        byte_level, tokenizer, replace(SETTINGS, masked_lm_prob=0.0), CPU
    )
    texts = ["the quick brown fox.", "seven wizards", "a lazy dog jumps over."]
    batch = PackedBatch.from_sequences(
        [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    )
    states = teacher.states(batch)[-1].split(batch.lengths)
    reader = transformers.AutoTokenizer.from_pretrained(byte_level)
    model = transformers.RobertaModel.from_pretrained(byte_level).eval()
    for text, text_states in zip(texts, states, strict=True):
        encoded = reader(f" {text}", return_offsets_mapping=True)
        offsets = [set(range(start - 1, end - 1)) for start, end in encoded.offset_mapping[1:-1]]
        with torch.no_grad():
            expected = model(torch.tensor([encoded.input_ids])).last_hidden_state[0]
        assert_close(text_states[[0, -1]], expected[[0, -1]], atol=2e-5, rtol=0)
        _, spans = tokenizer.encode_with_offsets(text)
        for (start, end), state in zip(spans, text_states[1:-1], strict=True):
            letters = {position for position in range(start, end) if text[position] != " "}
            shared = [
                number + 1 for number, characters in enumerate(offsets) if characters & letters
            ]
            if shared:
                assert_close(state, expected[shared].mean(0), atol=2e-5, rtol=0)


def test_a_text_that_is_too_long_for_the_teacher_is_read_in_parts(tmp_path, byte_level, store):
    """Of 22 tokens at a time, with the special ones; each token has the state that its part has alone."""
    shutil.copytree(byte_level, tmp_path, dirs_exist_ok=True)
    config = transformers.RobertaConfig.from_pretrained(tmp_path)
    config.max_position_embeddings = 24  # two before the first
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    tokenizer = store.tokenizer()
    settings = replace(SETTINGS, masked_lm_prob=0.0, length=22)
    teacher = open_teacher_encoder(tmp_path, tokenizer, settings, CPU)
    text = "the quick brown fox jumps over a lazy dog and seven wizards"
    ids = tokenizer.encode(text)
    batch = PackedBatch.from_sequences([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
    states = teacher.states(batch)[-1]
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    letters = reader(f" {text}", return_offsets_mapping=True, add_special_tokens=False)
    model = transformers.RobertaModel.from_pretrained(tmp_path).eval()
    parts = []
    for start in range(0, len(letters.input_ids), 20):
        part = letters.input_ids[start : start + 20]
        with torch.no_grad():
            sequence = [reader.cls_token_id, *part, reader.sep_token_id]
            parts.append(model(torch.tensor([sequence])).last_hidden_state[0])
    assert len(parts) > 1
    assert_close(states[0], parts[0][0], atol=2e-5, rtol=0)
    assert_close(states[-1], parts[-1][-1], atol=2e-5, rtol=0)
    expected = torch.cat([part[1:-1] for part in parts])
    _, spans = tokenizer.encode_with_offsets(text)
    compared = 0
    for (start, end), state in zip(spans, states[1:-1], strict=True):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        shared = [
            number
            for number, (first, last) in enumerate(letters.offset_mapping)
            if first - 1 < end and last - 1 > start
        ]
        if shared and shared[0] // 20 == shared[-1] // 20:
            assert_close(state, expected[shared].mean(0), atol=2e-5, rtol=0)
            compared += shared[0] >= 20
    assert compared > 5


def test_characters_of_several_bytes_are_aligned(tmp_path, byte_level, store):
    """A character that the data's tokenizer writes as three bytes has one state, that of the teacher's tokens of it."""
    train_tokenizer(
        [store.folder.parent / "corpus.txt"], tmp_path, vocab_size=300, byte_fallback=True
    )
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    teacher = open_teacher_encoder(
        byte_level, tokenizer, replace(SETTINGS, masked_lm_prob=0.0), CPU
    )
    ids = tokenizer.encode("fox 뷁 fox")
    position = next(
        number
        for number, token_id in enumerate(ids)
        if tokenizer.id_to_piece(token_id).startswith("<0x")
    )
    states = teacher.states(
        PackedBatch.from_sequences([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
    )[-1]
    encoded = transformers.AutoTokenizer.from_pretrained(byte_level)(
        " fox 뷁 fox", return_offsets_mapping=True
    )
    shared = [
        number for number, (start, end) in enumerate(encoded.offset_mapping) if start <= 5 < end
    ]
    with torch.no_grad():
        model = transformers.RobertaModel.from_pretrained(byte_level).eval()
        expected = model(torch.tensor([encoded.input_ids])).last_hidden_state[0, shared].mean(0)
    assert len(shared) > 1
    for number in range(position, position + 3):
        assert_close(states[number + 1], expected, atol=2e-5, rtol=0)


def test_a_run_with_another_tokenizer(tmp_path, byte_level, store, error_of, taught):
    alone = replace(taught, steps=2, teacher=byte_level)
    result = pretrain(store, tmp_path / "run", alone)
    assert result.scores["unexplained"] > 0
    error = error_of(pretrain, store, tmp_path / "masked", replace(alone, masked_lm_prob=0.15))
    assert error.slug == "wrong-tokenizer"
    teacher = open_teacher_encoder(byte_level, store.tokenizer(), alone, CPU)
    unknown = PackedBatch.from_sequences([[2, 1, 3]])
    assert error_of(teacher.states, unknown).slug == "wrong-tokenizer"
    assert (
        error_of(teacher.refuse_unreadable_tokens, np.ones(store.vocab_size)).slug
        == "wrong-tokenizer"
    )


def test_a_bert_whose_tokenizer_is_not_read_here(tmp_path, teacher_folder, trimmed):
    """A pair with two separators between its texts, as XLM-R's tokenizers have it."""
    tokenizer = AlbertTokenizer.from_pretrained(trimmed / "tokenizer")
    shutil.copytree(teacher_folder("Bert"), tmp_path / "bert")
    (tmp_path / "bert/spiece.model").unlink()
    file = tmp_path / "bert/tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["pair"].insert(3, {"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    write_json(file, content)
    batch = draw_batch(tokenizer)
    ours, theirs = (
        open_teacher_encoder(folder, tokenizer, SETTINGS, CPU)
        for folder in (teacher_folder("Bert"), tmp_path / "bert")
    )
    assert type(ours) is AlbertTeacher
    assert type(theirs) is TransformersTeacher
    for states, expected in zip(theirs.states(batch), ours.states(batch), strict=True):
        assert_close(states, expected, atol=3e-5, rtol=1e-5)
