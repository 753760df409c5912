"""`albertkit serve` as people call it; what it does once it runs is in tests/serve."""

import pytest


def test_help_names_every_setting(run_command):
    done = run_command("serve", "--help")
    assert done.status == 0
    for flag in ("--host", "--port", "--api-key-file", "--batch-tokens", "--timeout", "--max-upload-megabytes"):
        assert flag in done.out


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        ((), "bad-command-line"),
        (("model", "--host", "0.0.0.0"), "not-allowed"),
        (("model", "--timeout", "0"), "bad-value"),
        (("model", "--api-key-file", "no-such-file"), "not-found"),
        (("no-such-model",), "not-found"),
    ],
)
def test_mistakes_are_said_without_a_traceback(run_command, monkeypatch, arguments, slug):
    monkeypatch.delenv("ALBERTKIT_API_KEY", raising=False)
    done = run_command("serve", *arguments, "--port", "0")
    assert done.status == 2
    assert done.err.startswith(f"error[{slug}]")
