"""The model card: front matter that YAML reads, numbers that were given, nothing that was not."""

import ast
import re

import pytest
import yaml
from scipy.stats import binomtest

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.pretraining.card import PretrainingFacts, model_card
from albertkit.tasks.data import TaskData
from albertkit.tasks.finetune import task_card
from albertkit.tasks.registry import find_task

CONFIG = AlbertConfig.from_size("small", vocab_size=8000)
FACTS = dict(
    config=CONFIG.to_dict(),
    parameters=CONFIG.num_parameters(heads=True),
    corpus={"documents": 12345, "tokens": 9876543, "tokenizer_fingerprint": "0f" * 32},
    settings={
        "seed": 20261121,
        "optimizer": {"lr": 0.00176},
        "resume": False,
        "store": "a|b\n<script>",
    },
    results={
        "masked_lm_loss": 4.3121,
        "masked_lm_accuracy": 0.3123,
        "masked_lm_count": 23456,
        "sentence_order_loss": 0.52,
        "sentence_order_accuracy": 0.71,
        "sentence_order_count": 512,
        "unigram_loss": 6.71,
        "most_frequent_accuracy": 0.0421,
    },
    folder="wiki-small",
    versions={"albertkit": "0.1.0", "torch": "2.13.0+cpu"},
)


def card_of(name="wiki-small", **changes):
    return model_card(name, PretrainingFacts(**FACTS | changes)).text()


def front_matter(card):
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def table_rows(body):
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in body.splitlines()
        if line[:1] == "|"
    ]


def test_front_matter_is_what_the_hub_reads():
    head, _ = front_matter(card_of())
    assert head == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["albert", "albertkit", "fill-mask"],
    }


def test_the_hubs_own_library_accepts_the_front_matter():
    import huggingface_hub as hub

    assert "fill-mask" in hub.ModelCard(card_of()).data.tags


def test_measured_numbers_stand_beside_their_baselines():
    _, body = front_matter(card_of())
    rows = table_rows(body)
    assert ["Masked-LM loss", "4.312", "", "6.710 (unigram)"] in rows
    assert ["Masked-LM accuracy", "31.2%", "30.6% to 31.8%", "4.2% (most frequent token)"] in rows
    order = binomtest(364, 512).proportion_ci(method="wilson")  # 364 = round(0.71 * 512)
    interval = f"{order.low:.1%} to {order.high:.1%}"
    assert ["Sentence-order accuracy", "71.0%", interval, "50.0% (coin toss)"] in rows
    assert "8,975,810 parameters" in body
    assert "23,456 hidden tokens, 512 pairs of segments" in body
    assert "11.0 times as probable" in body
    assert ["`vocab_size`", "8000"] in rows
    assert ["documents", "12,345"] in rows
    assert ["tokenizer fingerprint", "0f" * 32] in rows
    assert ["`seed`", "20261121"] in rows
    assert ["`optimizer.lr`", "0.00176"] in rows
    assert "torch 2.13.0+cpu" in body


def test_values_cannot_break_out_of_a_table():
    _, body = front_matter(card_of())
    assert ["`store`", "a\\|b &lt;script>"] in table_rows(body)


def test_sections_without_numbers_are_left_out():
    card = model_card("bare", PretrainingFacts(config=CONFIG.to_dict())).text()
    assert not re.search("Results|Training data|Settings|Versions|None|nan", card)
    assert "sentence order" not in card


def test_loading_examples_are_valid_python_even_for_odd_names():
    card = card_of(folder='a "quoted"\\name')
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "card", "exec")
    assert 'from_pretrained("a \\"quoted\\"\\\\name")' in blocks[0]


def test_counts_may_come_as_floats_from_a_log():
    floats = {name: float(value) for name, value in FACTS["results"].items()}
    assert card_of(results=floats) == card_of()


def test_loading_examples_run_on_a_saved_folder(tmp_path, monkeypatch, capsys, data):
    """What the card tells people to run, run on what albertkit saves: five pieces from each library."""
    from albertkit import AlbertForPreTraining, AlbertTokenizer

    monkeypatch.chdir(tmp_path)
    config = AlbertConfig(
        hidden_size=64, num_attention_heads=2, intermediate_size=64, num_hidden_layers=1
    )
    model = AlbertForPreTraining(config)
    model.save_pretrained(tmp_path / "wiki-small", AlbertTokenizer.from_pretrained(data / "albert"))
    for block in re.findall(r"```python\n(.*?)```", card_of(), flags=re.DOTALL):
        exec(block, {})
    ours, theirs = (ast.literal_eval(line) for line in capsys.readouterr().out.strip().splitlines())
    assert [piece.removeprefix("▁") for piece in ours] == [
        guess["token_str"].removeprefix("▁") for guess in theirs
    ]


def test_the_card_is_written_as_readme(tmp_path):
    path = model_card("wiki-small", PretrainingFacts(**FACTS)).write(tmp_path)
    assert path == tmp_path / "README.md"
    assert path.read_text(encoding="utf-8") == card_of()


def test_an_impossible_count_is_refused_before_anything_is_written(tmp_path):
    facts = FACTS | {"results": {"masked_lm_accuracy": 2.25, "masked_lm_count": 4}}
    with pytest.raises(ConfigError):
        model_card("wiki-small", PretrainingFacts(**facts)).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_examples_name_the_folder_that_holds_the_model():
    """A run is no model: `from_pretrained("run")` fails, `from_pretrained("run/final")` does not."""
    body = card_of("my_run", folder="my_run/final")
    assert body.count('from_pretrained("my_run/final")') == 3
    assert 'model="my_run/final"' in body
    assert '("my_run")' not in body


def test_a_command_in_a_card_can_be_pasted():
    data = TaskData(find_task("sst2"), [None], [None], [], [])
    intervals = {"accuracy": (0.25, 0.75)}
    card = task_card(
        "my_run of *mine*", data, "m", 1, {"accuracy": 0.5}, {"intervals": intervals}, {"lr": 1e-5}
    ).text()
    assert "| accuracy | 0.5000 | 0.2500 to 0.7500 |" in card
    assert "albertkit predict 'my_run of *mine*' INPUT --out" in card.split("```")[1]
