"""Results as people read them: units beside the numbers, shares in per cent."""

import json

from albertkit.cli.printing import print_next, print_result

FOUND = {
    "hours": 0.0097, "seconds": 118.4, "seconds_per_step": 0.1234567, "minutes_used": 1.4593, "mb_per_second": 2.401,
    "peak_memory_mb": 123.7, "training_state_mb": 32.3, "epochs": 0.642, "masked_lm_perplexity": 1201.4,
    "masked_lm_accuracy": 0.0462, "masked_lm_interval": (0.03, 0.0617), "masked_lm_loss": 6.123456, "masked_lm_count": 130,
    "tokens_per_second": 9123.4, "tokens_used": 0.016, "planned": (90, 1767), "resumed": True, "absent": None,
}  # fmt: skip


def test_units_stand_beside_the_numbers(capsys):
    print_result(FOUND, json=False)
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {label.strip(): text.strip() for label, text in shown.items()}
    assert shown == {
        "hours": "34.9 s", "seconds": "1 min 58 s", "seconds per step": "0.123 s", "minutes used": "1 min 28 s",
        "mb per second": "2.4 MB/s", "peak memory": "124 MB", "training state": "32.3 MB", "epochs": "0.642",
        "masked lm perplexity": "1,201", "masked lm accuracy": "4.62%", "masked lm interval": "3.00% to 6.17%",
        "masked lm loss": "6.1235", "masked lm count": "130", "tokens per second": "9,123", "tokens used": "1.60%",
        "planned": "90 to 1,767", "resumed": "yes",
    }  # fmt: skip


def test_json_keeps_the_plain_numbers(capsys):
    print_result(FOUND, json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(FOUND))


def test_next_commands_are_printed_whole(capsys):
    print_next([("albertkit report " + "x" * 200, "a page"), ("albertkit evaluate [1]", "numbers")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "next:"
    assert lines[2] == "  albertkit report " + "x" * 200 + "  a page"
    assert lines[3].startswith("  albertkit evaluate [1] ")
