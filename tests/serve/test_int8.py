"""int8 is served only of models that still say in it what they say in fp32."""

from pathlib import Path

import pytest

from albertkit.engines.fused import lacking
from albertkit.errors import AlbertKitError
from albertkit.inference.comparison import Comparison
from albertkit.serve import worker
from albertkit.serve.options import ServeOptions
from albertkit.serve.protocol import Start


@pytest.mark.parametrize("force", [False, True])
def test_int8_that_disagrees(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    if reason := lacking("int8"):
        pytest.skip(reason)
    asked = []

    def disagreeing(model, *, precision):
        asked.append((model, precision))
        return Comparison(precision, "text", 1, 0.5, 0.1)

    monkeypatch.setattr(worker, "compare_precision", disagreeing)
    options = ServeOptions((), precision="int8", device="cpu", force=force)
    start = Start({"one": str(folders["classify"])}, options)
    if force:
        assert "one" in worker._load(start)
    else:
        with pytest.raises(AlbertKitError, match=r"\[doubtful\]"):
            worker._load(start)
    assert asked == [(str(folders["classify"]), "int8")]
