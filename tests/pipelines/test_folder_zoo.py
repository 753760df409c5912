"""Folders as they lie on hubs, of every era: read as their own library reads them, or refused by one named error."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from record_files import write_json, write_lines
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from albertkit.config import FOREIGN_KEYS, AlbertConfig
from albertkit.conversion.convert import convert
from albertkit.conversion.options import ConvertOptions
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import AlbertKitError
from albertkit.export.onnx import export_onnx
from albertkit.files import read_json
from albertkit.model import AlbertForMaskedLM, AlbertModel
from albertkit.pipelines.load import load_pipeline, load_pipelines
from albertkit.report.inspect import inspect_folder
from albertkit.tokenizer import AlbertTokenizer

CHINESE = list("我爱北京天安门今天气很好的小語言臺灣")
JAPANESE = list("日本語のテキストですカタカナひらがな")
KOREAN = ["대한민국", "##의", "##은", "서울", "##이다", "수도"]
LATIN = "the quick brown fox jumps over lazy dog cafe naive covid ##s ##ing a b c e s".split()
CAPITALS = ["The", "Fox", "A", "É", "é", "Caf", "##é"]
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused1] [unused2] [ ] unused ##1 , .".split()
VOCABULARY += list(dict.fromkeys([*LATIN, *CAPITALS, *CHINESE, *JAPANESE, *KOREAN]))
TEXTS = [
    "the quick brown fox jumps over a lazy dog.",
    "The [unused1] Fox [unused2]the<e1>the, newwords and <e1> covid19",
    "Café naïve É é THE",
    "我爱北京the天安门，今天天气很好。臺灣",
    "日本語のテキストです。ガ カタカナ",
    "대한민국의 수도는 서울이다.",
    "",
    "a  b\tc\n",
]
SHAPE = dict(
    vocab_size=120,
    embedding_size=16,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=64,
    initializer_range=0.2,
)


def change(file, **values):
    """Set keys of a JSON file; None takes a key away."""
    content = read_json(file) if file.exists() else {}
    write_json(
        file, {key: value for key, value in {**content, **values}.items() if value is not None}
    )


@pytest.fixture(scope="module")
def bases(tmp_path_factory, tiny_tokenizer):
    """A folder of a WordPiece vocabulary and one that albertkit wrote."""
    folder = tmp_path_factory.mktemp("bases")
    for name in ("words", "ours"):
        (folder / name).mkdir()
        write_json(folder / name / "config.json", {"model_type": "albert", **SHAPE})
    write_lines(folder / "words/vocab.txt", VOCABULARY)
    (folder / "words/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tiny_tokenizer.save_pretrained(folder / "ours")
    return {path.name: path for path in folder.iterdir()}


CLASSIFIER = "AlbertForSequenceClassification"
MASKED_LM = "AlbertForMaskedLM"


def in_file(name, **values):
    """Set keys of a file of the folder."""
    return lambda folder: change(folder / name, **values)


settings = partial(in_file, "tokenizer_config.json")
keys = partial(in_file, "config.json")


def added(**values):
    """Add tokens as users of transformers 5 do, and save."""

    def add(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for token, special in values["tokens"]:
            tokenizer.add_tokens([token], special_tokens=special)
        tokenizer.save_pretrained(folder)

    return add


def era_4(tokens, **flags):
    """List added tokens as transformers 4 does: by number, with their flags; no tokenizer.json."""

    def add(folder):
        (folder / "tokenizer.json").unlink(missing_ok=True)
        decoder = {}
        number = len(VOCABULARY)
        for token, special in tokens:
            is_known = token in VOCABULARY
            usual = dict(lstrip=False, normalized=not special, rstrip=False, single_word=False)
            decoder[str(VOCABULARY.index(token) if is_known else number)] = {
                "content": token,
                "special": special,
                **usual,
                **flags,
            }
            number += not is_known
        names = [token for token, special in tokens if special]
        change(
            folder / "tokenizer_config.json",
            added_tokens_decoder=decoder,
            additional_special_tokens=names,
        )

    return add


def era_3(folder):
    """List added tokens as transformers 2 and 3 do."""
    change(
        folder / "added_tokens.json", **{"<e1>": len(VOCABULARY), "newword": len(VOCABULARY) + 1}
    )
    change(folder / "special_tokens_map.json", additional_special_tokens=["<e1>", "[unused1]"])


def own_json(folder):
    """Put another tokenizer's tokenizer.json beside the leftover files."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: n for n, token in enumerate([*VOCABULARY[:5], *reversed(VOCABULARY[5:])])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), VOCABULARY[:5], strict=True))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": name for role, name in names.items()}
    )
    (folder / "tokenizer_config.json").unlink()
    theirs.save_pretrained(folder)


def class_in_config(folder):
    """Name the tokenizer's class in config.json alone, as transformers 3.4 to 4.0 do."""
    settings(tokenizer_class=None)(folder)
    change(folder / "config.json", tokenizer_class="BertTokenizer")


def without_template(folder):
    """Leave a tokenizer.json alone that puts nothing around a text."""
    (folder / "spiece.model").unlink()
    content = read_json(folder / "tokenizer.json")
    write_json(folder / "tokenizer.json", {**content, "post_processor": None})


def around(processor):
    """Leave BERT's tokenizer.json alone, with something else around a text."""

    def alter(folder):
        json_alone()(folder)
        content = read_json(folder / "tokenizer.json")
        write_json(folder / "tokenizer.json", {**content, "post_processor": processor})
        settings(tokenizer_class="PreTrainedTokenizerFast")(folder)

    return alter


ENDS = dict(sep=["[SEP]", 3], cls=["[CLS]", 2])


def blanks(folder):
    """Put blanks around the tokens, as editors and spreadsheets leave them."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (folder / "vocab.txt").write_text("".join(f"{line} \t\n" for line in lines), encoding="utf-8")


def json_alone(**flags):
    """Save the fast class of transformers, and take away what its tokenizer_config.json says of a text."""

    def save(folder):
        transformers.BertTokenizerFast.from_pretrained(folder, **flags).save_pretrained(folder)
        (folder / "vocab.txt").unlink(missing_ok=True)
        settings(do_lower_case=None, strip_accents=None, tokenize_chinese_chars=None)(folder)

    return save


def cased_by_its_class(*leftovers):
    """Add tokens as users of transformers 5 do, then set the class's flag: its tokenizer.json lowers the case."""

    def alter(folder):
        added(tokens=[E1, WORD])(folder)
        settings(do_lower_case=False)(folder)
        for name in leftovers:
            (folder / name).unlink()

    return alter


E1 = ("<e1>", True)
WORD = ("newword", False)
UNUSED = ("[unused1]", True)
# How copies of the WordPiece vocabulary, and of what albertkit wrote, are changed.
READ = {
    "no tokenizer_config": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "cased": settings(do_lower_case=False),
    "cased, accents stripped": settings(do_lower_case=False, strip_accents=True),
    "accents kept": settings(strip_accents=False),
    "no Chinese characters alone": settings(tokenize_chinese_chars=False),
    "fast class of transformers 3": settings(tokenizer_class="BertTokenizerFast"),
    "max_len of transformers 2": settings(tokenizer_class=None, do_lower_case=True, max_len=512),
    "class in config.json": class_in_config,
    "saved by transformers 5": added(tokens=[]),
    "added by transformers 5": added(tokens=[E1, WORD]),
    "added, cased by the class's flag": cased_by_its_class(),
    "added, cased by the class's flag, no vocab.txt": cased_by_its_class("vocab.txt"),
    "vocabulary's token made special by transformers 5": added(tokens=[UNUSED]),
    "added by transformers 4": era_4([E1, WORD]),
    "vocabulary's token made special by transformers 4": era_4([UNUSED, E1]),
    "added, whole words alone": era_4([E1, WORD], single_word=True),
    "added, spaces taken along": era_4([E1, WORD], lstrip=True, rstrip=True),
    "added, before the text is normalised": era_4([("NewWord", False)], normalized=False),
    "added by transformers 3": era_3,
    "own tokenizer.json, vocab.txt left over": own_json,
    "tokenizer.json alone": json_alone(),
    "cased tokenizer.json of a class that is not": json_alone(do_lower_case=False),
    "a special token of its own role": settings(image_token="<e1>", add_bos_token=True),
    "special tokens of their own roles": settings(
        model_specific_special_tokens={"e_token": "<e1>"}
    ),
    "all flags off": settings(
        do_lower_case=False, strip_accents=False, tokenize_chinese_chars=False
    ),
    "BERT's ends of a text": around({"type": "BertProcessing", **ENDS}),
}
OURS = {
    "ours": lambda folder: None,
    "ours, added by transformers 5": added(tokens=[E1, WORD]),
    "own tokenizer.json, spiece.model left over": own_json,
}


@pytest.fixture
def copy(bases, tmp_path):
    """`copy(base, alter)`: a changed copy of a base."""

    def make(base, alter=lambda folder: None):
        folder = shutil.copytree(bases[base], tmp_path / "folder")
        alter(folder)
        return folder

    return make


@pytest.fixture
def with_model(copy):
    """`with_model(kind, base, **config)`: a copy of a base with a random model of transformers."""
    return lambda kind="AlbertModel", base="words", **config: add_model(copy(base), kind, **config)


@pytest.fixture
def classifier(with_model):
    return with_model(CLASSIFIER, num_labels=3)


def check_refused(slug, words, load, *arguments):
    with pytest.raises(AlbertKitError) as raised:
        load(*arguments)
    assert raised.value.slug == slug
    assert words in str(raised.value)


@pytest.mark.parametrize("name", [*READ, *OURS])
def test_ids_are_those_of_transformers(copy, name):
    folder = copy("ours", OURS[name]) if name in OURS else copy("words", READ[name])
    ours = AlbertTokenizer.from_pretrained(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    # As the cards of such models on the hub say
    if name in ("no tokenizer_config", "max_len of transformers 2"):
        theirs = transformers.BertTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text, special_tokens=True) == theirs(text)["input_ids"], text
    assert [row.tolist() for row in ours.encode_batch(TEXTS).texts()] == [
        theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS
    ]


def replaced(**roles):
    """Put new special tokens in the place of old ones with transformers 5, and save."""

    def replace(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.add_special_tokens(roles)
        tokenizer.save_pretrained(folder)

    return replace


MASK = transformers.AddedToken("<mask>", lstrip=True, rstrip=True, special=True)
NEW_ROLES = {
    "mask": ("words", dict(mask_token=MASK)),
    "mask behind an added token": (
        "words",
        dict(additional_special_tokens=["<e1>"], mask_token=MASK),
    ),
    "all but the unknown token": (
        "words",
        dict(cls_token="<c>", sep_token="<s>", pad_token="<p>", mask_token=MASK),
    ),
    "ours, mask and padding": ("ours", dict(pad_token="<p>", mask_token=MASK)),
}


@pytest.mark.parametrize("era", ["tokenizer.json", "added_tokens_decoder"])
@pytest.mark.parametrize("name", NEW_ROLES)
def test_special_tokens_that_were_replaced_are_those_of_transformers(copy, name, era):
    base, roles = NEW_ROLES[name]
    folder = copy(base, replaced(**roles))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if era == "added_tokens_decoder" and base == "words":
        tokens = {
            str(number): token.__getstate__()
            for number, token in theirs.added_tokens_decoder.items()
        }
        settings(added_tokens_decoder=tokens)(folder)
        (folder / "tokenizer.json").unlink()
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = AlbertTokenizer.from_pretrained(folder)
    for text in [*TEXTS, "the [MASK] fox", "the <mask> fox<mask> a [MASK]"]:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert ours("a", "the fox")["input_ids"] == theirs("a", "the fox")["input_ids"]
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id")


def test_blanks_in_a_vocabulary_are_no_part_of_its_tokens(bases, copy):
    folder = copy("words", blanks)
    plain = AlbertTokenizer.from_pretrained(bases["words"])
    assert AlbertTokenizer.from_pretrained(folder).encode(TEXTS[0]) == plain.encode(TEXTS[0])


REFUSED = {
    "Japanese words": (
        "words",
        settings(tokenizer_class="BertJapaneseTokenizer", word_tokenizer_type="mecab"),
        "BertJapaneseTokenizer",
    ),
    "Japanese words without a class": (
        "words",
        settings(tokenizer_class=None, word_tokenizer_type="mecab"),
        "word_tokenizer_type",
    ),
    "Japanese characters, named in config.json": (
        "words",
        lambda folder: (
            settings(tokenizer_class=None, subword_tokenizer_type="character")(folder),
            change(folder / "config.json", tokenizer_class="BertJapaneseTokenizer"),
        ),
        "BertJapaneseTokenizer",
    ),
    "another library's pieces": (
        "ours",
        settings(tokenizer_class="XLNetTokenizer"),
        "XLNetTokenizer",
    ),
    "a class of its own": (
        "words",
        settings(
            tokenizer_class="MyTokenizer", auto_map={"AutoTokenizer": ["t.MyTokenizer", None]}
        ),
        "MyTokenizer",
    ),
    "code of its own under a known name": (
        "ours",
        settings(auto_map={"AutoTokenizer": ["t.Mine", None]}),
        "t.Mine",
    ),
    "words that are not divided": ("words", settings(do_basic_tokenize=False), "do_basic_tokenize"),
    "a flag in quotes": ("words", settings(do_lower_case="false"), "do_lower_case"),
    "no space before a text": ("ours", settings(add_prefix_space=False), "add_prefix_space"),
    "no [CLS] around a text": ("ours", without_template, "not as [CLS] a [SEP] b [SEP]"),
    "two [SEP] between texts": (
        "words",
        around(
            {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **ENDS}
        ),
        "not as [CLS] a [SEP] b [SEP]",
    ),
    "an added line break": ("ours", era_4([("\n", False)]), "token '\\n'"),
    "an added token at another's id": (
        "words",
        in_file("added_tokens.json", **{"<e1>": 999}),
        "<e1>",
    ),
}
OTHER_SLUGS = {"a flag in quotes": "bad-file", "an added token at another's id": "wrong-tokenizer"}


@pytest.mark.parametrize("name", REFUSED)
def test_other_tokenizers_are_refused_by_name(copy, name):
    base, alter, words = REFUSED[name]
    slug = OTHER_SLUGS.get(name, "unsupported")
    check_refused(slug, words, AlbertTokenizer.from_pretrained, copy(base, alter))


def test_fixed_tokenizers_keep_the_case_they_were_loaded_with(bases, tmp_path):
    from albertkit import fix_tokenizer

    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(bases["ours"] / "spiece.model", folder)
    shutil.copy(bases["ours"] / "config.json", folder)
    text = "The Fox"
    for flag in (True, False):
        theirs = transformers.AlbertTokenizer.from_pretrained(folder, do_lower_case=flag)
        expected = AlbertTokenizer.from_pretrained(folder, do_lower_case=flag).encode(
            text, special_tokens=True
        )
        assert fix_tokenizer(theirs)(text)["input_ids"] == expected


def test_files_that_read_differently_are_reported(copy, caplog):
    folder = copy("words", added(tokens=[]))
    with caplog.at_level("WARNING", "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert not caplog.records
    content = read_json(folder / "tokenizer.json")
    content["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", content)
    write_lines(folder / "vocab.txt", VOCABULARY)
    settings(tokenizer_class="BertTokenizer")(folder)
    with caplog.at_level("WARNING", "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert "reads a text otherwise" in caplog.text
    assert str(folder / "tokenizer.json") in caplog.text


def test_normalizers_that_their_class_replaces_are_reported(copy, caplog):
    folder = copy("words", added(tokens=[]))
    content = read_json(folder / "tokenizer.json")
    steps = [{"type": "NFKC"}, content["normalizer"]]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    write_json(folder / "tokenizer.json", content)
    (folder / "vocab.txt").unlink()
    with caplog.at_level("WARNING", "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert caplog.text.count("has a normalizer of its own") == 1


@pytest.mark.parametrize("flag", [None, "do_lower_case", "keep_accents"])
def test_flags_that_the_class_of_albert_reads_are_reported(copy, caplog, flag):
    from tokenizers import normalizers

    folder = copy("ours")
    (folder / "spiece.model").unlink()
    content = read_json(folder / "tokenizer.json")
    theirs = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    content["normalizer"] = json.loads(normalizers.Sequence(theirs).__getstate__())
    write_json(folder / "tokenizer.json", content)
    flags = {"do_lower_case": True, "keep_accents": False}
    if flag is not None:
        flags[flag] = not flags[flag]
    settings(tokenizer_class="AlbertTokenizer", text_rules=None, **flags)(folder)
    with caplog.at_level("WARNING", "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert ("has a normalizer of its own" in caplog.text) == (flag is not None)


def test_tokenizers_without_segments_are_reported(copy, caplog):
    names = ["input_ids", "attention_mask"]
    with caplog.at_level("WARNING", "albertkit"):
        AlbertTokenizer.from_pretrained(copy("words", settings(model_input_names=names)))
    assert "gives no token_type_ids" in caplog.text


# --- models ---------------------------------------------------------------------------------------


def add_model(folder, kind, seed=1, **config):
    """Save a model of transformers with weights that all count, beside the tokenizer of the folder."""
    tokens = len(AlbertTokenizer.from_pretrained(folder))
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(
        transformers.AlbertConfig(**{**SHAPE, "vocab_size": tokens, **config})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.eval().save_pretrained(folder)
    return folder


def logits_of(folder, kind, *texts):
    """Return the logits of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, kind).from_pretrained(folder).float().eval()
    with torch.inference_mode():
        return model(**tokenizer(*texts, return_tensors="pt")).logits[0]


def shares_of(folder, labels=("LABEL_0", "LABEL_1", "LABEL_2")):
    """Return the probabilities of transformers."""
    shares = logits_of(folder, CLASSIFIER, TEXTS[0]).softmax(-1).tolist()
    return pytest.approx(dict(zip(labels, shares, strict=True)), abs=1e-5)


def probabilities_of(folder):
    return load_pipeline(folder, precision="fp32")(TEXTS[0])["probabilities"]


PAIR = ("the quick brown fox", "a lazy dog")
PAIRS = [
    PAIR,
    ("a fox", ""),
    ("a fox", "the quick brown fox jumps over a lazy dog " * 9),
    ("the quick brown fox jumps over a lazy dog " * 9, "the fox and a dog " * 20),
    ("a fox [SEP]", "the [MASK] dog"),
]
SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"
ERAS = {
    "2.x, nothing": {},
    "2.x, a short name": {
        "config.json": {"sbert_ce_default_activation_function": "torch.nn.Identity"}
    },
    "2.x": {"config.json": {"sbert_ce_default_activation_function": IDENTITY}},
    "2.x, sigmoid": {"config.json": {"sbert_ce_default_activation_function": SIGMOID}},
    "4.x": {
        "config.json": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}}
    },
    "4.x, sigmoid": {"config.json": {"sentence_transformers": {"activation_fn": SIGMOID}}},
    "5.x, nothing but a version": {"config.json": {"sentence_transformers": {"version": "5.0.0"}}},
    "6.x, cut": {"tokenizer_config.json": {"model_max_length": 9}},
    "6.x": {"config_sentence_transformers.json": {"activation_fn": IDENTITY}},
    "6.x, sigmoid": {"config_sentence_transformers.json": {}},
    "6.x, trained from 4.x": {
        "config_sentence_transformers.json": {"activation_fn": IDENTITY},
        "config.json": {"sentence_transformers": {"activation_fn": SIGMOID}},
    },
    "4.x, a leftover of 6.x": {
        "config_sentence_transformers.json": {"activation_fn": IDENTITY},
        "config.json": {"sentence_transformers": {"activation_fn": SIGMOID}},
    },
    "6.x, length, lower case": {
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": True},
    },
}


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("era", ERAS)
def test_cross_encoders_of_every_era_score_as_their_library(with_model, era, labels):
    from sentence_transformers import CrossEncoder

    folder = with_model(CLASSIFIER, num_labels=labels)
    if era.startswith("6"):
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))
    for file, values in ERAS[era].items():
        change(folder / file, **values)
    # A classifier of nobody's reads [SEP] as text
    pairs = PAIRS if labels == 1 or ERAS[era] else PAIRS[:1]
    (kind, pipeline), *_ = load_pipelines(folder, precision="fp32").items()
    scores = torch.from_numpy(CrossEncoder(str(folder), device="cpu").predict(pairs))
    if labels == 1:
        assert kind == "score"
        assert [result["value"] for result in pipeline(pairs)] == pytest.approx(
            scores.tolist(), abs=1e-5
        )
        return
    shares = (
        scores if SIGMOID in str(ERAS[era]) and "trained from" not in era else scores.softmax(-1)
    )
    probabilities = [list(result["probabilities"].values()) for result in pipeline(pairs)]
    assert_close(torch.tensor(probabilities), shares, atol=1e-5, rtol=0)


def test_one_output_that_nothing_names_is_reported(with_model, caplog):
    folder = with_model(CLASSIFIER, num_labels=1)
    logit = logits_of(folder, CLASSIFIER, *PAIR).item()
    for problem, expected in ((None, 1 / (1 + np.exp(-logit))), ("regression", logit)):
        change(folder / "config.json", problem_type=problem)
        caplog.clear()
        with caplog.at_level("WARNING", "albertkit"):
            assert load_pipeline(folder, precision="fp32")(PAIR)["value"] == pytest.approx(
                expected, abs=1e-5
            )
        assert ("does not say what its one output is" in caplog.text) == (problem is None)


LABELS = {
    "integers": {0: 10, 1: 20, 2: 30},
    "booleans and null": {0: False, 1: True, 2: None},
    "without B- and I-": {0: "O", 1: "PER", 2: "LOC"},
    "with B- and I-": {0: "O", 1: "B-PER", 2: "I-PER"},
    "I- alone": {0: "O", 1: "I-PER", 2: "I-LOC"},
    "IOB1": {0: "I-PER", 1: "B-PER", 2: "O"},
    "not in order": {2: "O", 0: "I-PER", 1: "B-PER"},
    "labels of padding": {0: "[PAD]", 1: "B-PER", 2: "I-PER"},
    "parts of speech": {0: "NOUN", 1: "VERB", 2: "E-mail"},
    "prefix behind": {0: "O", 1: "PER-B", 2: "PER-I"},
    "no names": {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"},
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_and_entities_are_those_of_transformers(with_model, name):
    names = {str(number): label for number, label in LABELS[name].items()}
    folder = with_model("AlbertForTokenClassification", num_labels=3)
    change(folder / "config.json", id2label=names)
    text = "the quick brown fox over a lazy dog the cafe a fox"
    theirs = logits_of(folder, "AlbertForTokenClassification", text).argmax(-1).tolist()[1:-1]
    result = load_pipeline(folder, precision="fp32")(text)
    labels = [str(names[str(number)]) for number in theirs]
    assert result["tags"] == labels
    change(folder / "config.json", id2label={key: str(label) for key, label in names.items()})
    grouped = transformers.pipeline(
        "token-classification", str(folder), aggregation_strategy="simple"
    )(text)
    assert [(e["type"], e["start"], e["end"]) for e in result["entities"]] == [
        (entity["entity_group"], entity["start"], entity["end"]) for entity in grouped
    ]


@pytest.mark.parametrize("other_labels", [(), ("[PAD]",)])
@pytest.mark.parametrize("prefixes", ["BIES", "BMES", "BILU"])
def test_entities_of_ends_and_single_words_are_those_of_their_scheme(
    bases, tmp_path, prefixes, other_labels
):
    """transformers' aggregation knows B- and I- alone, and joins two single words."""
    from seqeval.metrics.sequence_labeling import get_entities

    labels = dict(enumerate(("O", *(f"{prefix}-PER" for prefix in prefixes), *other_labels)))
    text = "the quick brown fox over a lazy dog the cafe a fox"
    words = text.split()
    for seed in range(1, 6):
        folder = shutil.copytree(bases["words"], tmp_path / str(seed))
        add_model(folder, "AlbertForTokenClassification", seed, num_labels=len(labels))
        change(folder / "config.json", id2label=labels)
        result = load_pipeline(folder, precision="fp32")(text)
        tags = [f"I-{tag}" if tag in other_labels else tag for tag in result["tags"]]
        tags = [tag[0].translate(str.maketrans("MLU", "IES")) + tag[1:] for tag in tags]
        expected = [
            (kind, " ".join(words[first : last + 1])) for kind, first, last in get_entities(tags)
        ]
        assert [(entity["type"], entity["text"]) for entity in result["entities"]] == expected


@pytest.mark.parametrize("labels", [[10, 20, 30], [False, True, None], ["x", "1", ""]])
def test_probabilities_are_those_of_transformers(classifier, labels):
    change(classifier / "config.json", id2label=dict(enumerate(labels)))
    assert probabilities_of(classifier) == shares_of(classifier, map(str, labels))


def weights(save, **config):
    """Write the weights in another way, under other names."""

    def rewrite(folder):
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        save(folder, tensors)
        change(folder / "config.json", **config)

    return rewrite


def as_bin(folder, tensors, **options):
    torch.save(tensors, folder / "pytorch_model.bin", **options)


def as_safetensors(folder, tensors, metadata=None):
    save_file(tensors, folder / "model.safetensors", metadata=metadata)


def as_shards(folder, tensors, save=save_file, stem="model", suffix="safetensors"):
    files = {name: f"{stem}-0000{1 + n % 2}-of-00002.{suffix}" for n, name in enumerate(tensors)}
    for file in set(files.values()):
        save({name: tensors[name] for name in files if files[name] == file}, folder / file)
    change(folder / f"{stem}.{suffix}.index.json", metadata={}, weight_map=files)


def in_type(dtype):
    def save(folder, tensors):
        converted_tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        as_safetensors(folder, converted_tensors, {"format": "pt"})

    return save


def simpletransformers(folder, tensors):
    as_bin(folder, tensors)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
        torch.save({"lr": 4e-5}, folder / name)
    (folder / "model_args.json").write_text('{"model_type": "albert", "do_lower_case": true}')


def beside_other_libraries(folder):
    for name in (
        "tf_model.h5",
        "flax_model.msgpack",
        "model.ckpt-best.index",
        "model.ckpt-best.data-00000-of-00001",
    ):
        (folder / name).write_bytes(b"theirs")


MODELS = {
    "transformers 2: pickled weights, keys of its configuration": weights(
        as_bin,
        output_past=True,
        pruned_heads={},
        finetuning_task=None,
        torchscript=False,
        is_decoder=False,
        use_bfloat16=False,
        architectures=[CLASSIFIER],
    ),
    "shards with an index": weights(as_shards),
    "safetensors with other metadata": weights(
        partial(as_safetensors, metadata={"format": "pt", "author": "someone"})
    ),
    "safetensors without metadata": weights(as_safetensors),
    "safetensors of MLX": weights(partial(as_safetensors, metadata={"format": "mlx"})),
    "files of simpletransformers": weights(simpletransformers),
    "half precision": weights(in_type(torch.float16), torch_dtype="float16"),
    "eight bits of a float": weights(in_type(torch.float8_e4m3fn)),
    "bfloat16": weights(in_type(torch.bfloat16), dtype="bfloat16"),
    "double precision": weights(in_type(torch.float64)),
    "torch before 1.6": weights(partial(as_bin, _use_new_zipfile_serialization=False)),
    "pickled shards with an index": weights(
        partial(as_shards, save=torch.save, stem="pytorch_model", suffix="bin")
    ),
    "beside TensorFlow's and Flax's files": beside_other_libraries,
    "code of its own under auto_map": keys(auto_map={"AutoModel": "mine.Model"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_transformers(classifier, name):
    MODELS[name](classifier)
    assert probabilities_of(classifier) == shares_of(classifier)


def check_mask(folder, text, logits):
    guess = load_pipeline(folder, precision="fp32")(text)["masks"][0][0]
    assert guess["id"] == logits.argmax().item()
    assert guess["probability"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_masks_of_any_name_are_filled(copy, mask):
    folder = copy("words")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").replace("[MASK]", "<mask>")
    (folder / "vocab.txt").write_text(lines, encoding="utf-8")
    settings(mask_token="<mask>")(folder)
    add_model(folder, MASKED_LM)
    check_mask(folder, f"the {mask} fox", logits_of(folder, MASKED_LM, "the <mask> fox")[2])


def test_masked_lm_of_ckiplab_s_shape(with_model):
    """A WordPiece vocabulary, and the class of its tokenizer in config.json alone."""
    folder = with_model(MASKED_LM)
    (folder / "tokenizer_config.json").unlink()
    change(folder / "config.json", tokenizer_class="BertTokenizerFast")
    check_mask(folder, "我爱北[MASK]", logits_of(folder, MASKED_LM, "我爱北[MASK]")[4])


def test_decoders_that_are_not_tied(with_model, tmp_path):
    folder = with_model(MASKED_LM)
    tensors = load_file(folder / "model.safetensors")
    change(folder / "config.json", tie_word_embeddings=False)
    for read in (load_pipeline, converted):
        with pytest.raises(AlbertKitError, match="tie_word_embeddings"):
            read(folder)
    table = tensors["albert.embeddings.word_embeddings.weight"]
    copies = {
        "predictions.decoder.weight": table.clone(),
        "predictions.decoder.bias": tensors["predictions.bias"].clone(),
    }
    save_file({**tensors, **copies}, folder / "model.safetensors", metadata={"format": "pt"})
    shares = logits_of(folder, MASKED_LM, "the [MASK] fox").softmax(-1)[2]
    AlbertForMaskedLM.from_pretrained(folder).save_pretrained(
        tmp_path / "again", AlbertTokenizer.from_pretrained(folder)
    )
    assert_close(logits_of(tmp_path / "again", MASKED_LM, "the [MASK] fox").softmax(-1)[2], shares)


def under_a_key(folder, tensors):
    as_bin(folder, {"state_dict": tensors, "epoch": 3})


def without_a_shard(folder, tensors):
    as_shards(folder, tensors)
    (folder / "model-00002-of-00002.safetensors").unlink()


def as_variant(folder, tensors):
    save_file(tensors, folder / "model.fp16.safetensors")


def as_pointer(folder, tensors):
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 123\n"
    )


def of_another_library(folder, tensors):
    beside_other_libraries(folder)
    for file in folder.glob("model.ckpt*"):
        file.unlink()


def cross_encoder_of(*modules, **transformer):
    """Write the files of a CrossEncoder of version 6 of some modules."""
    listing = [
        {"idx": n, "name": str(n), "path": "", "type": f"sentence_transformers.base.modules.{name}"}
        for n, name in enumerate(modules)
    ]

    def write(folder):
        write_json(folder / "modules.json", listing)
        change(folder / "config_sentence_transformers.json", model_type="CrossEncoder")
        change(folder / "sentence_bert_config.json", **transformer)

    return write


def readme_alone(folder):
    for file in folder.iterdir():
        file.unlink()
    (folder / "README.md").write_text("# A model")


def farm(folder, tensors):
    torch.save(tensors, folder / "language_model.bin")
    (folder / "config.json").rename(folder / "language_model_config.json")


def flair(folder, tensors):
    as_bin(folder, {"__cls__": "flair.models.TextClassifier", "state_dict": tensors})


def averaged(folder, tensors):
    """Write the state of torch's AveragedModel."""
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    as_bin(folder, {**wrapped, "n_averaged": torch.tensor(3)})


def numbered(folder, tensors):
    as_bin(folder, dict(enumerate(tensors.values())))


def sparse(folder, tensors):
    as_bin(folder, {**tensors, "classifier.weight": tensors["classifier.weight"].to_sparse()})


def with_lora(folder, tensors):
    names = {
        name: name.replace("attention.query.", "attention.query.base_layer.") for name in tensors
    }
    layers = {f"base_model.model.{names[name]}": tensor for name, tensor in tensors.items()}
    as_bin(folder, {**layers, "base_model.model.x.lora_A.default.weight": torch.ones(4, 64)})


def with_adapters(folder, tensors):
    as_bin(
        folder,
        {
            name.replace("classifier.", "heads.default.3."): tensor
            for name, tensor in tensors.items()
        },
    )
    change(
        folder / "config.json",
        architectures=["AlbertAdapterModel"],
        prediction_heads={"default": {"layers": 1}},
    )


def under_name(name):
    return weights(lambda folder, _: (folder / name).write_bytes(b"theirs"))


MODELS_REFUSED = {
    "FARM": (weights(farm), "unsupported", "convert_to_transformers"),
    "flair": (weights(flair), "corrupt", "its `state_dict` does"),
    "LoRA that was not merged": (weights(with_lora), "weights-mismatch", "base_layer"),
    "a head of AdapterHub": (weights(with_adapters), "weights-mismatch", "heads.default.3.weight"),
    "whole numbers": (weights(in_type(torch.int8)), "unsupported", "int8"),
    "numbers in the place of names": (
        weights(numbered),
        "corrupt",
        "does not hold a dictionary of tensors",
    ),
    "sparse weights": (weights(sparse), "unsupported", "sparse_coo"),
    "code of its own for a class of its own": (
        keys(architectures=["Mine"], auto_map={"AutoModelForSequenceClassification": "mine.Mine"}),
        "ambiguous",
        "--head",
    ),
    "Keras": (under_name("model.weights.h5"), "missing-file", "`model.weights.h5` is Keras's"),
    "optimum, quantized": (
        under_name("model_quantized.onnx"),
        "missing-file",
        "`model_quantized.onnx` is ONNX's",
    ),
    "rust-bert": (under_name("rust_model.ot"), "missing-file", "`rust_model.ot` is rust-bert's"),
    "PaddleNLP": (under_name("model_state.pdparams"), "missing-file", "PaddlePaddle"),
    "Lightning": (
        under_name("epoch=1-step=9.ckpt"),
        "missing-file",
        "save its state_dict as pytorch_model.bin",
    ),
    "another name": (
        under_name("albert.safetensors"),
        "missing-file",
        "rename it to model.safetensors",
    ),
    "an adapter": (
        in_file("adapter_config.json", peft_type="LORA", base_model_name_or_path="albert/base"),
        "unsupported",
        "LORA adapter of `albert/base`",
    ),
    "an adapter of another library": (
        in_file(
            "adapter_config.json", model_name="albert/base", config={"adapter_residual": False}
        ),
        "unsupported",
        "adapter of `albert/base`",
    ),
    "weights under a key": (weights(under_a_key), "corrupt", "its `state_dict` does"),
    "a shard is missing": (
        weights(without_a_shard),
        "missing-file",
        "model-00002-of-00002.safetensors",
    ),
    "weights of a variant": (
        weights(as_variant),
        "missing-file",
        "rename `model.fp16.safetensors`",
    ),
    "a pointer of Git LFS": (weights(as_pointer), "bad-file", "lfs pull"),
    "TensorFlow's and Flax's weights": (
        weights(of_another_library),
        "missing-file",
        "Flax weights of transformers",
    ),
    "a card alone": (readme_alone, "not-found", "config.json"),
    "no class": (keys(architectures=None), "ambiguous", "--head token-classification"),
    "a CrossEncoder of more modules": (
        cross_encoder_of("transformer.Transformer", "pooling.Pooling", "dense.Dense"),
        "unsupported",
        "Transformer, Pooling, Dense",
    ),
    "a CrossEncoder's arguments": (
        cross_encoder_of("transformer.Transformer", processing_kwargs={"text": {"max_length": 8}}),
        "unsupported",
        "processing_kwargs",
    ),
    "quantized weights": (
        keys(quantization_config={"quant_method": "bitsandbytes"}),
        "unsupported",
        "bitsandbytes",
    ),
    "keys that are no numbers": (
        keys(id2label={"a": "x", "b": "y", "c": "z"}),
        "bad-value",
        "id2label",
    ),
    "two keys of one number": (
        keys(id2label={"1": "x", " 1": "y", "0": "z"}),
        "bad-value",
        "id2label",
    ),
    "a key below 0": (
        keys(id2label={"-1": "x", "0": "y", "1": "z"}),
        "bad-value",
        "-1",
    ),
    "two classes of one name": (
        keys(id2label={"0": "x", "1": "y", "2": "x"}),
        "ambiguous",
        "x, y, x",
    ),
    "an activation of its own": (
        keys(sentence_transformers={"activation_fn": "mine.Softplus"}),
        "unsupported",
        "mine.Softplus",
    ),
}


@pytest.mark.parametrize("name", MODELS_REFUSED)
def test_other_models_are_refused_by_name(classifier, name):
    alter, slug, words = MODELS_REFUSED[name]
    alter(classifier)
    check_refused(slug, words, load_pipeline, classifier)


# --- sentence encoders ----------------------------------------------------------------------------


def their_vectors(folder, texts):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts)


def check_vectors(folder, texts):
    ours = SentenceEncoder.from_pretrained(folder).encode(texts)
    assert_allclose(ours, their_vectors(folder, texts), atol=1e-4)


@pytest.mark.parametrize("base", ["words", "ours"])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan", None])
def test_sentence_encoders_are_those_of_their_library(with_model, tmp_path, base, similarity):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    path = with_model(base=base)
    words = Transformer(str(path), max_seq_length=24)
    encoder = SentenceTransformer(
        modules=[words, Pooling(64)], device="cpu", similarity_fn_name=similarity
    )
    encoder.save(str(tmp_path / "encoder"))
    if base == "ours":  # a folder of somebody else's with such a vocabulary
        settings(text_rules=None)(tmp_path / "encoder")
    texts = [
        "the fox",
        "the [SEP] fox[MASK] [CLS]x <pad> a dog",
        "the quick brown fox jumps over lazy dog " * 5,
    ]
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    ours = SentenceEncoder.from_pretrained(tmp_path / "encoder")
    vectors = theirs.encode(texts)
    assert_allclose(ours.encode(texts), vectors, atol=1e-4)
    assert_allclose(
        ours.similarity(vectors, vectors), theirs.similarity(vectors, vectors), atol=1e-4
    )
    ours.save_pretrained(tmp_path / "again")
    reloaded = SentenceEncoder.from_pretrained(tmp_path / "again")
    assert_allclose(reloaded.encode(texts), vectors, atol=1e-4)
    reloaded.settings["special_names"] = "text"
    assert np.abs(reloaded.encode(texts)[1] - vectors[1]).max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_and_padded_on_their_tokenizers_side(copy, tmp_path, side):
    folder = copy("words", settings(truncation_side=side, padding_side=side))
    AlbertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "again")
    ours = AlbertTokenizer.from_pretrained(tmp_path / "again")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    options = dict(truncation=True, padding="max_length", return_token_type_ids=True)
    words = "the quick brown fox jumps over a lazy dog".split()
    for length in range(4, 16):
        for first, second in [(9, 3), (3, 9), (9, 9), (6, 5), (5, 6)]:
            pair = " ".join(words[:first]), " ".join(words[:second])
            expected = theirs(*pair, max_length=length, **options)
            assert dict(ours(*pair, max_length=length, **options)) == dict(expected), (
                length,
                first,
                second,
            )
        assert (
            ours(pair[0], max_length=length, **options)["input_ids"]
            == theirs(pair[0], max_length=length, **options)["input_ids"]
        )


ENCODERS = {
    "lower case, but for special names": {"sentence_bert_config.json": {"do_lower_case": True}},
    "cut on the left": {"tokenizer_config.json": {"truncation_side": "left"}},
    "length of the tokenizer": {
        "sentence_bert_config.json": {"max_seq_length": None},
        "tokenizer_config.json": {"model_max_length": 10},
    },
    "a default prompt": {
        "config_sentence_transformers.json": {
            "prompts": {"q": "The fox: "},
            "default_prompt_name": "q",
        }
    },
    "special names are text": {"tokenizer_config.json": {"split_special_tokens": True}},
    "arguments that change nothing": {
        "sentence_bert_config.json": {
            "model_args": {"attn_implementation": "eager", "torch_dtype": "float32"}
        },
    },
    "fewer numbers": {"config_sentence_transformers.json": {"truncate_dim": 16}},
}


@pytest.mark.parametrize("name", ENCODERS)
def test_settings_of_sentence_encoders_are_read(encoder_folder, name):
    for file, values in ENCODERS[name].items():
        change(encoder_folder / file, **values)
    check_vectors(
        encoder_folder,
        ["The Fox", "the [SEP] Fox[MASK] dog", "The quick brown fox jumps over lazy dog " * 5],
    )


@pytest.fixture
def encoder_folder(with_model, tmp_path):
    """Save a sentence encoder of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    path = with_model()
    modules = [Transformer(str(path), max_seq_length=24), Pooling(64)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "encoder"))
    return tmp_path / "encoder"


def words_below(folder):
    """Move the model and its tokenizer into a folder of their own, as until 2021."""
    words = folder / "0_Transformer"
    words.mkdir()
    for file in [path for path in folder.iterdir() if path.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(words / file.name)
    modules = read_json(folder / "modules.json")
    modules[0]["path"] = words.name
    write_json(folder / "modules.json", modules)


@pytest.mark.parametrize("alter", [None, words_below])
def test_exported_sentence_encoders_are_those_of_their_library(encoder_folder, tmp_path, alter):
    if alter is not None:
        alter(encoder_folder)
    export_onnx(encoder_folder, tmp_path / "onnx")
    texts = ["The Fox", "the [SEP] Fox[MASK] dog", "The quick brown fox jumps over lazy dog " * 5]
    vectors = SentenceEncoder.from_pretrained(tmp_path / "onnx").encode(texts)
    assert_allclose(vectors, their_vectors(encoder_folder, texts), atol=1e-4)


def test_exported_cross_encoders_score_as_their_library(with_model, tmp_path):
    from sentence_transformers import CrossEncoder

    folder = with_model(CLASSIFIER, num_labels=1)
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))
    change(folder / "config_sentence_transformers.json", activation_fn=IDENTITY)
    change(folder / "sentence_bert_config.json", max_seq_length=12)
    export_onnx(folder, tmp_path / "onnx")
    values = [result["value"] for result in load_pipeline(tmp_path / "onnx")(PAIRS)]
    scores = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    assert values == pytest.approx(scores.tolist(), abs=1e-4)


def test_flags_without_a_value_are_off(encoder_folder):
    """As an `if` of sentence-transformers takes them."""
    (encoder_folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 64, "pooling_mode_cls_token": null,'
        ' "pooling_mode_mean_tokens": true, "include_prompt": null}'
    )
    (encoder_folder / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 24, "do_lower_case": null}'
    )
    prompt = {"prompts": {"q": "The fox: "}, "default_prompt_name": "q", "similarity_fn_name": ""}
    change(encoder_folder / "config_sentence_transformers.json", **prompt)
    check_vectors(encoder_folder, ["The Fox", "the dog"])


def test_classifiers_of_setfit_are_reported(encoder_folder, caplog):
    """SentenceTransformer, too, reads the encoder alone."""
    (encoder_folder / "model_head.pkl").write_bytes(b"theirs")
    change(encoder_folder / "config_setfit.json", labels=["no", "yes"], normalize_embeddings=False)
    expected = their_vectors(encoder_folder, ["The Fox"])
    with caplog.at_level("WARNING", "albertkit"):
        vector = load_pipeline(encoder_folder, precision="fp32")("The Fox")["embedding"]
    assert_allclose(vector, expected[0], atol=1e-4)
    assert "classifier of SetFit" in caplog.text


ENCODERS_REFUSED = {
    "arguments of the tokenizer": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"text": {"max_length": 8}}},
        "processing_kwargs",
    ),
    "a length in the arguments": (
        "sentence_bert_config.json",
        {"tokenizer_args": {"model_max_length": 8}},
        "tokenizer_args",
    ),
    "an activation in the arguments": (
        "sentence_bert_config.json",
        {"config_args": {"hidden_act": "relu"}},
        "config_args",
    ),
    "another output": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        "modality_config",
    ),
    "no room for a text": (
        "sentence_bert_config.json",
        {"max_seq_length": 0},
        "`max_seq_length` is 0",
    ),
    "vectors of no numbers": (
        "config_sentence_transformers.json",
        {"truncate_dim": 0},
        "`truncate_dim` is 0",
    ),
    "another similarity": (
        "config_sentence_transformers.json",
        {"similarity_fn_name": "angular"},
        "angular",
    ),
    "a prompt that is not there": (
        "config_sentence_transformers.json",
        {"default_prompt_name": "nowhere"},
        "default prompt `nowhere`",
    ),
}


@pytest.mark.parametrize("name", ENCODERS_REFUSED)
def test_other_sentence_encoders_are_refused_by_name(encoder_folder, name):
    file, values, words = ENCODERS_REFUSED[name]
    change(encoder_folder / file, **values)
    with pytest.raises(AlbertKitError, match=words):
        SentenceEncoder.from_pretrained(encoder_folder)


MODULES = {
    "LSTM": lambda modules: [modules.LSTM(64, 32), modules.Pooling(64)],
    "CNN": lambda modules: [modules.CNN(64, 32), modules.Pooling(96)],
    "WeightedLayerPooling": lambda modules: [
        modules.WeightedLayerPooling(64, num_hidden_layers=2, layer_start=1),
        modules.Pooling(64),
    ],
    "LayerNorm": lambda modules: [modules.Pooling(64), modules.LayerNorm(64)],
    "Dropout": lambda modules: [modules.Pooling(64), modules.Dropout(0.1)],
    "Dense after Transformer, Pooling, Normalize": lambda modules: [
        modules.Pooling(64),
        modules.Normalize(),
        modules.Dense(64, 8),
    ],
    "activation.ReLU": lambda modules: [
        modules.Pooling(64),
        modules.Dense(64, 8, activation_function=torch.nn.ReLU()),
    ],
}


@pytest.mark.parametrize("name", [*MODULES, "Router"])
def test_other_modules_are_refused_by_name(with_model, tmp_path, name):
    import sentence_transformers.sentence_transformer.modules as theirs
    from sentence_transformers import SentenceTransformer

    words = theirs.Transformer(str(with_model()))
    if name == "Router":
        modules = [
            theirs.Router.for_query_document(
                [words, theirs.Pooling(64)], [words, theirs.Pooling(64)]
            )
        ]
    else:
        modules = [words, *MODULES[name](theirs)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "encoder"))
    for read in (SentenceEncoder.from_pretrained, load_pipeline):
        with pytest.raises(AlbertKitError, match=name) as raised:
            read(tmp_path / "encoder")
        assert raised.value.slug == "unsupported"


# --- what convert tolerates, loading tolerates ----------------------------------------------------


def renamed(rename):
    """Rename the weights, as wrappers and other programs do."""

    def save(folder, tensors):
        as_bin(folder, {rename(name): tensor for name, tensor in tensors.items()})

    return weights(save)


TOLERATED = {
    "torch.compile": renamed("_orig_mod.{}".format),
    "DistributedDataParallel": renamed("module.{}".format),
    "DistributedDataParallel of torch.compile": renamed("module._orig_mod.{}".format),
    "torch.compile of DistributedDataParallel": renamed("_orig_mod.module.{}".format),
    "Lightning": renamed("model.{}".format),
    "Lightning of torch.compile": renamed("model._orig_mod.{}".format),
    "AveragedModel": weights(averaged),
    "an attribute of any name": renamed("net.student.{}".format),
    "an attribute called albert": renamed("albert.{}".format),
    "an encoder compiled by itself": renamed(
        lambda name: name.replace("albert.", "albert._orig_mod.", 1)
    ),
    "FSDP": renamed(
        lambda name: (
            f"_fsdp_wrapped_module.{name.replace('encoder.', 'encoder._fsdp_wrapped_module.', 1)}"
        )
    ),
    "an encoder as an attribute beside the head": renamed(
        lambda name: name.replace("albert.", "encoder_model.", 1)
    ),
    "gamma and beta": renamed(
        lambda name: name.replace("orm.weight", "orm.gamma").replace("orm.bias", "orm.beta")
    ),
    "BERT's name": renamed(lambda name: name.replace("albert.", "bert.")),
    "BERT's name, gamma and beta, Lightning": renamed(
        lambda name: (
            "model."
            + name.replace("albert.", "bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
        )
    ),
    "generation keys of transformers 2": keys(
        do_sample=False, num_beams=1, top_k=50, length_penalty=1.0, _num_labels=3
    ),
    "keys of transformers 4": keys(
        gradient_checkpointing=False, _attn_implementation_autoset=True, layers_to_keep=[]
    ),
    "keys of Chinese conversions": keys(
        directionality="bidi", pooler_fc_size=768, pooler_type="first_token_transform"
    ),
    "keys of adapters": keys(adapters={"adapters": {}, "config_map": {}, "fusions": {}}),
    "keys of sentence-transformers": keys(sbert_ce_note=None),
    "chunks of the feed-forward": keys(chunk_size_feed_forward=1),
    "nothing pruned, no decoder": keys(
        pruned_heads={}, is_decoder=False, add_cross_attention=False
    ),
    "an author's note": keys(comment="trained on my desk", author={"name": "someone"}),
}
ACTIVATIONS = (
    "gelu_pytorch_tanh gelu_python_tanh gelu_accurate gelu_fast gelu_python gelu relu".split()
)
TOLERATED |= {f"activation {name}": keys(hidden_act=name) for name in ACTIVATIONS}


@pytest.mark.parametrize("name", TOLERATED)
def test_what_convert_tolerates_is_loaded_alike(classifier, tmp_path, name):
    if name.startswith("activation"):
        TOLERATED[name](classifier)
    shares = shares_of(classifier)
    TOLERATED[name](classifier)
    convert(ConvertOptions(classifier, tmp_path / "converted"))
    for path in (classifier, tmp_path / "converted"):
        assert probabilities_of(path) == shares


# transformers refuses these
EMPTY = dict.fromkeys(sorted(FOREIGN_KEYS - {"num_labels", "tie_word_embeddings"}))
EMPTY |= {"problem_type": "", "pruned_heads": [], "directionality": "", "label2id": {}}


@pytest.mark.parametrize("label_keys", [["0", "1", "2"], ["00", " 1", "+2"], ["2 ", "1\n", "0_0"]])
def test_keys_without_a_value_say_nothing_and_labels_have_any_whole_numbers(classifier, label_keys):
    file = classifier / "config.json"
    labels = dict(zip(label_keys, "xyz", strict=True))
    settings(tokenizer_class="BertTokenizer")(classifier)
    write_json(file, {**read_json(file), **EMPTY, "id2label": labels})
    model = transformers.AlbertForSequenceClassification.from_pretrained(classifier)
    assert AlbertConfig.from_pretrained(classifier).id2label == model.config.id2label
    # Which AutoConfig asks for
    change(classifier / "config.json", model_type="albert", architectures=[CLASSIFIER])
    labels_in_order = [model.config.id2label[number] for number in range(3)]
    assert probabilities_of(classifier) == shares_of(classifier, labels_in_order)


def test_keys_that_are_left_out_are_reported_once(with_model, caplog):
    folder = with_model()
    keys(do_sample=False, comment="trained on my desk")(folder)
    with caplog.at_level("WARNING", "albertkit"):
        SentenceEncoder.from_pretrained(folder)
        AlbertModel.from_pretrained(folder)
    assert [message for message in caplog.messages if "left out" in message] == [
        f"`{folder / 'config.json'}`: left out of the configuration, nothing in ALBERT reads them: do_sample, comment"
    ]


UNCOMPUTED = {
    "is_decoder": {"is_decoder": True},
    "add_cross_attention": {"add_cross_attention": True},
    "is_encoder_decoder": {"is_encoder_decoder": True},
    "pruned_heads": {"pruned_heads": {"0": [1]}},
    "position_embedding_type": {"position_embedding_type": "relative_key"},
    "directionality": {"directionality": "left"},
    "hidden_act": {"hidden_act": "quick_gelu"},
    "num_hiden_layers": {"num_hiden_layers": 2, "num_hidden_layers": None},
}


@pytest.mark.parametrize("key", UNCOMPUTED)
def test_keys_that_change_what_is_computed_are_refused_by_name(with_model, key):
    folder = with_model()
    keys(**UNCOMPUTED[key])(folder)
    for load in (
        AlbertModel.from_pretrained,
        load_pipeline,
        SentenceEncoder.from_pretrained,
        converted,
    ):
        with pytest.raises(AlbertKitError, match=key) as raised:
            load(folder)
        assert "change these values" not in raised.value.hint  # the weights were trained with them


def converted(folder):
    convert(ConvertOptions(folder, folder / "converted"))


def test_two_tensors_of_one_name_are_refused(with_model):
    folder = with_model()
    tensors = load_file(folder / "model.safetensors")
    weights(as_bin)(folder)
    copies = {f"module.{name}": tensor + 1 for name, tensor in tensors.items()}
    as_bin(folder, {**tensors, **copies})
    with pytest.raises(AlbertKitError, match="are one tensor"):
        load_pipeline(folder)
    as_bin(folder, {**{f"teacher.{name}": tensor for name, tensor in tensors.items()}, **tensors})
    with pytest.raises(AlbertKitError, match="teacher"):
        load_pipeline(folder)


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 100_000, "intermediate_size": 400_000},
        {"num_hidden_layers": 10_000_000},
        {"vocab_size": 9_000_000},
    ],
    ids=str,
)
def test_a_shape_is_compared_with_the_file_before_memory_is_taken(with_model, shape, monkeypatch):
    folder = with_model()
    keys(**shape)(folder)
    sizes = []
    register = torch.nn.Module.register_parameter

    def record(module, name, parameter):
        if parameter is not None and parameter.device.type != "meta":
            sizes.append(parameter.numel())
        register(module, name, parameter)

    monkeypatch.setattr(torch.nn.Module, "register_parameter", record)
    for load in (AlbertModel.from_pretrained, load_pipeline, converted):
        with pytest.raises(AlbertKitError):
            load(folder)
    assert max(sizes, default=0) < 100_000


def test_a_million_tensors_are_refused_by_the_size_of_their_header(with_model):
    folder = with_model()
    tensor = '"albert.t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(tensor % number for number in range(150_000)) + "}").encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    for load in (AlbertModel.from_pretrained, inspect_folder, converted):
        with pytest.raises(AlbertKitError, match="no ALBERT has so many tensors"):
            load(folder)
