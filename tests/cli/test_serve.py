"""`albertkit serve` as people call it; what it does once it runs is in tests/serve."""

import pytest

from albertkit.cli import main


def run(capsys, *arguments):
    """Exit status, and what is said."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *map(str, arguments)])
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def test_help_names_every_setting(capsys):
    status, shown = run(capsys, "--help")
    assert status == 0
    for flag in ("--host", "--port", "--api-key-file", "--batch-tokens", "--timeout", "--max-upload-megabytes"):
        assert flag in shown


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        ((), "bad-argument"),
        (("model", "--host", "0.0.0.0"), "no-api-key"),
        (("model", "--timeout", "0"), "bad-value"),
        (("model", "--api-key-file", "no-such-file"), "not-found"),
        (("no-such-model", "--port", "0"), "not-found"),
    ],
)
def test_mistakes_are_said_without_a_traceback(capsys, monkeypatch, arguments, slug):
    monkeypatch.delenv("ALBERTKIT_API_KEY", raising=False)
    status, said = run(capsys, *arguments, *([] if "--port" in arguments else ["--port", "0"]))
    assert status == 2
    assert said.startswith(f"error[{slug}]")
