"""transformers.js reads a saved folder as tokenizers and transformers read it: text in a browser has the ids of the model.

Needs `node` and, where NODE_PATH says, the package: `npm install --ignore-scripts
@huggingface/transformers@4.3.1`.
"""

import itertools
import json
import subprocess
import unicodedata

import pytest
from tokenizers import Tokenizer

from albertkit.tokenizer import train_tokenizer
from albertkit.tokenizer.tokenizer_json import lines_that_json_may_misread

PROGRAM = """
const { AutoTokenizer, env } = require("@huggingface/transformers");
const [folder, file] = process.argv.slice(1);
Object.assign(env, { allowRemoteModels: false, localModelPath: "/" });
AutoTokenizer.from_pretrained(folder).then((tokenizer) => {
  const cases = JSON.parse(require("fs").readFileSync(file, "utf8"));
  const ids = cases.map(([text, pair]) => {
    const inputs = tokenizer(text, { text_pair: pair, return_tensor: false, return_token_type_ids: true });
    return [inputs.input_ids, inputs.token_type_ids];
  });
  console.log(JSON.stringify(ids));
});
"""


def in_node(*arguments):
    """What node prints for a program and its arguments."""
    command = ["node", "--eval", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


try:
    in_node('require.resolve("@huggingface/transformers")')
except (OSError, subprocess.CalledProcessError):
    pytest.skip(
        "node does not find @huggingface/transformers; set NODE_PATH", allow_module_level=True
    )

pytestmark = pytest.mark.peer
TRAINED = {
    "google": {},
    "korean": {"text_rules": "korean", "user_defined_symbols": ["<num>", "서울"]},
    "multilingual": {"text_rules": "multilingual", "reserve": 8},
    "accents": {"text_rules": "google-accents", "split_digits": True},
}


@pytest.fixture(scope="module", params=["published", *TRAINED])
def folder(request, google_folder, wiki, tmp_path_factory):
    """A folder with a tokenizer, Google's or one trained on two languages."""
    if request.param == "published":
        return google_folder
    text = tmp_path_factory.mktemp(request.param) / "text.txt"
    text.write_text(
        "\n".join(wiki("en/wiki_20")[:2000] + wiki("ko/wiki_20")[:2000]), encoding="utf-8"
    )
    train_tokenizer([text], text.parent / "tokenizer", 6000, **TRAINED[request.param])
    return text.parent / "tokenizer"


def test_ids_of_texts_and_pairs_are_equal(folder, golden_rows, wiki, tmp_path):
    texts = [row["text"] for row in golden_rows("tokenizer/lines.jsonl")]
    texts += wiki("en/wiki_21")[:1000] + wiki("ko/wiki_21")[:1000]
    texts += [unicodedata.normalize("NFD", text) for text in wiki("ko/wiki_21")[:200]]
    if (folder / "spiece.model").exists():
        texts += lines_that_json_may_misread((folder / "spiece.model").read_bytes(), "none")
    cases = [(text, None) for text in texts] + list(itertools.pairwise(texts[:300]))
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(cases))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [tokenizer.encode(*(case if case[1] is not None else case[:1])) for case in cases]
    answers = json.loads(in_node(PROGRAM, str(folder), str(file)))
    different = [
        case
        for case, encoding, (ids, types) in zip(cases, expected, answers, strict=True)
        if ids != encoding.ids or types != encoding.type_ids
    ]
    assert different == []
