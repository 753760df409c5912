"""Models whose special ids are not ALBERT's: renumbered with their rows, they compute what they did."""

import io
import json

import pytest
import sentencepiece
import torch
from record_files import write_json
from safetensors.torch import load_file, save_file

from albertkit.errors import AlbertKitError
from albertkit.model import AlbertForPreTraining
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.vocabulary import repair_vocabulary


def trained(sentences, folder, **settings):
    """SentencePiece's own defaults, from a file, whose path it writes into the model."""
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text("\n".join(sentences[:300]), encoding="utf-8")
    model = io.BytesIO()
    fixed = dict(vocab_size=200, minloglevel=3, hard_vocab_limit=False, num_threads=1)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_writer=model, **fixed, **settings
    )
    text.unlink()
    assert b"text.txt" in model.getvalue()
    (folder / "spiece.model").write_bytes(model.getvalue())
    return model.getvalue()


def with_weights(folder, config, pad_token_id=0):
    torch.manual_seed(0)
    model = AlbertForPreTraining(config)
    with torch.no_grad():
        model.predictions.bias.normal_()
    config = model.config.replace(
        pad_token_id=pad_token_id, foreign={"architectures": ["AlbertForPreTraining"]}
    )
    config.save_pretrained(folder)
    save_file(
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        folder / "model.safetensors",
    )


@pytest.fixture
def korean_layout(korean, config_of, tmp_path):
    """`<unk>` 0 `<s>` 1 `</s>` 2 [PAD] 3 [UNK] 4 [CLS] 5 [SEP] 6 [MASK] 7, as the best-known Korean notebook makes it."""
    symbols = "[PAD] [UNK] [CLS] [SEP] [MASK] [BOS] [EOS]".split()
    model = trained(korean, tmp_path / "old", user_defined_symbols=symbols)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert [processor.id_to_piece(i) for i in range(8)] == ["<unk>", "<s>", "</s>", *symbols[:5]]
    write_json(
        tmp_path / "old/tokenizer_config.json",
        {
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "keep_accents": True,
            "do_lower_case": False,
        },
    )
    with_weights(tmp_path / "old", config_of(processor.get_piece_size() + 3))
    return tmp_path / "old", processor


def test_the_korean_layout(korean_layout, tmp_path, korean):
    import transformers

    old, processor = korean_layout
    with pytest.raises(
        AlbertKitError, match=r"(?s)\[wrong-tokenizer\].*albertkit tokenizer repair"
    ):
        AlbertTokenizer.from_pretrained(old)
    report = repair_vocabulary(old, tmp_path / "new")
    assert report.moved == {
        "[PAD]": (3, 0),
        "<unk>": (0, 1),
        "[CLS]": (5, 2),
        "[SEP]": (6, 3),
        "[MASK]": (7, 4),
    }
    assert report.model_class == "AlbertForPreTraining"
    assert report.compared > 40
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "new")
    assert tokenizer.vocab_size == processor.get_piece_size()
    assert b"text.txt" not in (tmp_path / "new/spiece.model").read_bytes()
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert [config[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")] == [0, 2, 3]
    assert config["vocab_size"] == processor.get_piece_size() + 3
    # The model of each side in transformers, on the ids of each side's tokenizer: the same but for
    # the order of the pieces.
    before, after = (
        transformers.AlbertForPreTraining.from_pretrained(f).eval() for f in (old, tmp_path / "new")
    )
    order = [processor.piece_to_id(tokenizer.id_to_piece(i)) for i in range(tokenizer.vocab_size)]
    for text in (*korean[:5], "서울 xyz 뷁 학교"):
        old_output = processor.encode(text)
        new_output = tokenizer.encode(text)
        assert [order[i] for i in new_output] == old_output
        with torch.no_grad():
            theirs = before(torch.tensor([[5, *old_output, 6]]))
            ours = after(torch.tensor([[2, *new_output, 3]]))
        size = tokenizer.vocab_size
        assert torch.allclose(
            ours.prediction_logits[..., :size], theirs.prediction_logits[..., order], atol=1e-6
        )
        assert torch.equal(ours.sop_logits, theirs.sop_logits)
    assert tokenizer.unk_id in tokenizer.encode("뷁")
    assert processor.encode("[MASK]").count(7) == 1  # what was a mask in every text is one no more
    assert tokenizer.mask_id not in tokenizer.encode("a [MASK] b [UNK]")
    assert tokenizer.encode("서울 [MASK]", mask_literal=True).count(4) == 1


def test_padding_behind_the_vocabulary(korean, config_of, tmp_path):
    model = trained(korean, tmp_path / "old", user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"])
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    (tmp_path / "old/tokenizer_config.json").write_text(
        '{"keep_accents": true, "do_lower_case": false}'
    )
    write_json(tmp_path / "old/added_tokens.json", {"<pad>": size})
    with_weights(tmp_path / "old", config_of(size + 1), pad_token_id=size)
    facts = read_facts(model)
    report = repair_vocabulary(tmp_path / "old", tmp_path / "new")
    assert report.moved["<pad>"] == (size, 0)
    assert report.vocab_size == size + 1
    old, new = (load_file(tmp_path / f / "model.safetensors") for f in ("old", "new"))
    words = "albert.embeddings.word_embeddings.weight"
    for old_output, new_output in (
        (size, 0),
        (0, 1),
        (3, 2),
        (4, 3),
        (5, 4),
        (1, 5),
        (2, 6),
        (6, 7),
        (size - 1, size),
    ):
        assert torch.equal(new[words][new_output], old[words][old_output])
        assert new["predictions.bias"][new_output] == old["predictions.bias"][old_output]
    assert AlbertForPreTraining.from_pretrained(tmp_path / "new").config.pad_token_id == 0
    assert len(facts.pieces) == size  # a process keeps the facts of a model for all who read it


def test_a_tokenizer_alone_and_the_command(korean_layout, tmp_path, run_command):
    old, _ = korean_layout
    (old / "config.json").unlink()
    assert (
        run_command("tokenizer", "repair", old, "--out", tmp_path / "new", "--json").json[
            "model_class"
        ]
        is None
    )
    assert AlbertTokenizer.from_pretrained(tmp_path / "new").id_to_piece(0) == "[PAD]"
    assert "[MASK]" in run_command("tokenizer", "repair", old, "--out", tmp_path / "shown").out


def test_what_cannot_be_repaired(english_model, korean, tmp_path, slug_of):
    def slug(folder):
        error_info = slug_of(repair_vocabulary, folder, tmp_path / "new")
        assert not (tmp_path / "new").exists()
        return error_info

    assert slug(english_model) == "bad-value"
    trained(korean, tmp_path / "bare")
    assert slug(tmp_path / "bare") == "wrong-tokenizer"
    write_json(
        tmp_path / "bare/tokenizer_config.json",
        {"pad_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "</s>"},
    )
    assert slug(tmp_path / "bare") == "wrong-tokenizer"
    write_json(tmp_path / "bare/added_tokens.json", {"문서": 10**6})
    assert slug(tmp_path / "bare") == "wrong-tokenizer"
    (tmp_path / "empty").mkdir()
    assert slug(tmp_path / "empty") == "no-tokenizer"
