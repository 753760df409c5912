"""Without POSIX's modules, as on Windows, and without AVX-512, as on ARM: all is imported, and a model is trained and asked.

The modules, functions and flags are hidden from a process of its own and from those that it starts.
"""

import os
import subprocess
import sys

HIDE = """
import os, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "termios", "pwd", "grp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name in ("sched_yield", "sched_getaffinity", "fchmod"):
    delattr(os, name)
"""

SCRIPT = """
import importlib, pkgutil, sys
from pathlib import Path
import torch
torch.cpu.get_capabilities = lambda: {}
import albertkit
from albertkit.cli import main
from albertkit.pretraining.settings import PretrainSettings

for module in pkgutil.walk_packages(albertkit.__path__, "albertkit."):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
try:
    import fcntl
except ImportError:
    pass
else:
    raise SystemExit("fcntl is not hidden")

text, out = Path("text.txt"), Path("out")
words = "the quick brown fox jumps over a lazy dog while seven wizards brew potions".split()
lines = [" ".join(words[(n * k) % 13] for k in range(1, 9)) + "." for n in range(1, 300)]
text.write_text("\\n".join(line + "\\n" * (number % 10 == 9) for number, line in enumerate(lines)))
albertkit.train_tokenizer([text], out / "tokenizer", 40)
store = albertkit.build_store([text], out / "store", out / "tokenizer", workers=1)
sizes = dict(vocab_size=40, embedding_size=16, hidden_size=64, intermediate_size=96)
config = albertkit.AlbertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
config.save_pretrained(out)
settings = PretrainSettings(config=out / "config.json", steps=2, warmup_steps=1, batch_tokens=128, length=32, held_out=0.2)
albertkit.pretrain(out / "store", out / "run", settings)
engine = albertkit.load_engine(out / "run", "int8")
print(type(engine).__name__, engine.notes)
print(albertkit.load_pipeline(out / "run")("the quick [MASK] fox"))
main(["doctor"])
"""


def test_without_posix_and_avx512(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(HIDE)
    paths = [str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert "ModelEngine ('not int8: the processor has no avx512_vnni',)" in process.stdout
