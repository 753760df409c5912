"""int8 is served only of models that still say in it what they say in fp32."""

from pathlib import Path

import pytest

from albertkit.engines.operators import lacking
from albertkit.errors import AlbertKitError
from albertkit.inference.agreement import Agreement
from albertkit.serve import worker
from albertkit.serve.wire import Start


@pytest.mark.parametrize("force", [False, True])
def test_int8_that_disagrees(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    if reason := lacking("int8"):
        pytest.skip(reason)
    asked = []

    def disagreeing(model, *, precision):
        asked.append((model, precision))
        return Agreement(precision, "text", 1, 0.5, 0.1)

    monkeypatch.setattr(worker, "check_agreement", disagreeing)
    start = Start({"one": str(folders["classify"])}, "int8", "cpu", 1, 512, None, force)
    if force:
        assert "one" in worker._load(start)
    else:
        with pytest.raises(AlbertKitError, match="low-agreement"):
            worker._load(start)
    assert asked == [(str(folders["classify"]), "int8")]
