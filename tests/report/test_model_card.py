"""The model card: front matter that YAML reads, numbers that were given, nothing that was not."""

import ast
import re

import pytest
from scipy.stats import binomtest

from albertkit.checkpoints import save_checkpoint
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.report import model_card, write_card
from albertkit.report.task_card import write_task_card

yaml = pytest.importorskip("yaml")

CONFIG = AlbertConfig.from_size("small", vocab_size=8000)
FACTS = dict(
    config=CONFIG.to_dict(),
    parameters=CONFIG.num_parameters(heads=True),
    corpus={"documents": 12345, "tokens": 9876543, "tokenizer_fingerprint": "0f" * 32},
    settings={"seed": 20261121, "optimizer": {"lr": 0.00176}, "resume": False, "store": "a|b\n<script>"},
    results={
        "masked_lm_loss": 4.3121, "masked_lm_accuracy": 0.3123, "masked_lm_count": 23456,
        "sentence_order_loss": 0.52, "sentence_order_accuracy": 0.71, "sentence_order_count": 512,
    },
    baselines={"unigram_loss": 6.71, "most_frequent_accuracy": 0.0421},
    versions={"albertkit": "0.1.0", "torch": "2.13.0+cpu"},
)  # fmt: skip


def front_matter(card):
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def table_rows(body):
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in body.splitlines() if line[:1] == "|"
    ]


def test_front_matter_is_what_the_hub_reads():
    head, _ = front_matter(model_card("wiki-small", **FACTS, language=["no", "ko"], license="apache-2.0"))
    assert head == {
        "language": ["no", "ko"],  # bare, YAML would read Norwegian as False
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["albert", "albertkit", "fill-mask"],
    }


def test_the_hubs_own_library_accepts_the_front_matter():
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(model_card("wiki-small", **FACTS, language="en"))
    assert card.data.language == ["en"]
    assert "fill-mask" in card.data.tags


def test_license_and_language_are_left_out_unless_given():
    head, _ = front_matter(model_card("wiki-small", **FACTS))
    assert not {"license", "language"} & set(head)


def test_measured_numbers_stand_beside_their_baselines():
    _, body = front_matter(model_card("wiki-small", **FACTS))
    rows = table_rows(body)
    assert ["Masked-LM loss", "4.312", "", "6.710 (unigram)"] in rows
    assert ["Masked-LM accuracy", "31.2%", "30.6% to 31.8%", "4.2% (most frequent piece)"] in rows
    order = binomtest(364, 512).proportion_ci(method="wilson")  # 364 = round(0.71 * 512)
    interval = f"{order.low:.1%} to {order.high:.1%}"
    assert ["Sentence-order accuracy", "71.0%", interval, "50.0% (coin toss)"] in rows
    assert "8,975,810 parameters" in body
    assert "23,456 hidden pieces, 512 pairs of segments" in body
    assert "11.0 times as probable" in body
    assert ["`vocab_size`", "8,000"] in rows
    assert ["documents", "12,345"] in rows
    assert ["tokenizer fingerprint", "0f" * 32] in rows
    assert ["`seed`", "20261121"] in rows
    assert ["`optimizer.lr`", "0.00176"] in rows
    assert "torch 2.13.0+cpu" in body


def test_values_cannot_break_out_of_a_table():
    _, body = front_matter(model_card("wiki-small", **FACTS))
    assert ["`store`", "a\\|b &lt;script>"] in table_rows(body)


def test_sections_without_numbers_are_left_out():
    card = model_card("bare", config=CONFIG.to_dict())
    assert not re.search("Results|Training data|Settings|Versions|None|nan", card)
    assert "sentence order" not in card


def test_loading_examples_are_valid_python_even_for_odd_names():
    card = model_card('a "quoted"\\name', **FACTS)
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "card", "exec")
    assert 'from_pretrained("a \\"quoted\\"\\\\name")' in blocks[0]


def test_counts_may_come_as_floats_from_a_log():
    floats = {name: float(value) for name, value in FACTS["results"].items()}
    assert model_card("wiki-small", **FACTS | {"results": floats}) == model_card("wiki-small", **FACTS)


def test_loading_examples_run_on_a_saved_folder(tmp_path, monkeypatch, capsys, data):
    """What the card tells people to run, run on what albertkit saves: five pieces from each library."""
    pytest.importorskip("transformers")
    from albertkit import AlbertForPreTraining, AlbertTokenizer

    monkeypatch.chdir(tmp_path)
    config = AlbertConfig(hidden_size=64, num_attention_heads=2, intermediate_size=64, num_hidden_layers=1)
    model = AlbertForPreTraining(config)
    save_checkpoint(tmp_path / "wiki-small", model, AlbertTokenizer.from_pretrained(data / "albert"))
    for block in re.findall(r"```python\n(.*?)```", model_card("wiki-small", **FACTS), flags=re.DOTALL):
        exec(block, {})
    ours, theirs = (ast.literal_eval(line) for line in capsys.readouterr().out.strip().splitlines())
    assert [piece.removeprefix("▁") for piece in ours] == [guess["token_str"].removeprefix("▁") for guess in theirs]


def test_the_card_is_written_as_readme(tmp_path):
    path = write_card(tmp_path, "wiki-small", **FACTS)
    assert path == tmp_path / "README.md"
    assert path.read_text(encoding="utf-8") == model_card("wiki-small", **FACTS)


def test_an_impossible_count_is_refused_before_anything_is_written(tmp_path):
    facts = FACTS | {"results": {"masked_lm_accuracy": 0.5, "masked_lm_correct": 9, "masked_lm_count": 4}}
    with pytest.raises(ConfigError):
        write_card(tmp_path, "wiki-small", **facts)
    assert list(tmp_path.iterdir()) == []


def test_examples_name_the_folder_that_holds_the_model(tmp_path):
    """A run is no model: `from_pretrained("run")` fails, `from_pretrained("run/final")` does not."""
    body = model_card("my_run", place="my_run/final", **FACTS)
    assert body.count('from_pretrained("my_run/final")') == 3
    assert 'model="my_run/final"' in body
    assert '("my_run")' not in body


def test_a_command_in_a_card_can_be_pasted(tmp_path):
    write_task_card(
        tmp_path, "my_run of *mine*", kind="classification", task="sst2", model_class="AlbertForSequenceClassification",
        parameters=1, start="m", examples={"train": 1, "dev": 1}, scores={}, intervals={}, settings={}, versions={},
    )  # fmt: skip
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "albertkit predict 'my_run of *mine*' INPUT --out" in card.split("```")[1]
