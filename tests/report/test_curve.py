"""The curve as PNG and SVG: not blank, the right colours where data is, sound XML."""

import builtins
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib import image

from albertkit.errors import MissingExtraError
from albertkit.output.plots import BASELINE, EVALUATION, TRAIN, new_figure
from albertkit.training.monitor import (
    RunMetrics,
    _plan_figure,
    _running_mean,
    loss_axis_bottom_top_and_num_above,
    plot_run,
    run_svgs,
)


@pytest.fixture(scope="module", autouse=True)
def copied_pictures():
    """Draw every picture."""


def pixels_of(path, colour):
    """How many pixels have a colour, to within the rounding of PNG."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    picture = np.round(image.imread(path)[:, :, :3] * 255)
    return int((np.abs(picture - rgb).max(axis=2) <= 2).sum()), picture.shape


def test_png_has_its_size_and_shows_training_evaluation_and_baseline(tmp_path, records):
    path = plot_run(
        RunMetrics.from_records(records),
        tmp_path / "curve.png",
        baseline={"unigram_loss": 6.7},
        title="a $run_name",
    )
    for colour in (TRAIN, EVALUATION, BASELINE):
        count, shape = pixels_of(path, colour)
        assert shape == (960, 1200, 3)
        assert count > 300, colour


def test_png_without_evaluations_has_no_evaluation_colour(tmp_path, records):
    steps = [record for record in records if record["event"] == "step"]
    path = plot_run(RunMetrics.from_records(steps), tmp_path / "curve.png")
    assert pixels_of(path, EVALUATION)[0] == 0
    assert pixels_of(path, TRAIN)[0] > 300


def test_panels_without_a_single_number_are_left_out():
    steps = [
        {"event": "step", "step": n, "masked_lm_loss": 5.0, "sentence_order_accuracy": None}
        for n in (1, 2)
    ]
    svg, _ = run_svgs(RunMetrics.from_records(steps))
    assert "masked-LM loss" in svg
    assert "sentence order" not in svg
    assert "learning" not in svg


def test_the_same_run_gives_the_same_bytes(tmp_path, records):
    first, second = (
        plot_run(RunMetrics.from_records(records), tmp_path / name).read_bytes()
        for name in ("a.png", "b.png")
    )
    assert first == second
    metrics = RunMetrics.from_records(records)
    assert run_svgs(metrics) == run_svgs(metrics)


@pytest.mark.parametrize(
    "tricky",
    [
        [{"event": "step", "step": 1, "masked_lm_loss": 9.0, "learning_rate": 0.0}],
        [
            {"event": "eval", "step": 5, "masked_lm_loss": 6.0},
            {"event": "eval", "step": 10, "masked_lm_loss": 5.0},
        ],
        [{"event": "step", "step": n, "masked_lm_loss": math.nan} for n in range(1, 60)],
        [{"event": "step", "step": n, "loss": 2.0} for n in range(1, 60)],
        [{"event": "step", "step": 0, "sentence_order_accuracy": 1.0}],
    ],
    ids=["one step", "two evaluations", "only NaN", "constant", "step zero"],
)
def test_tricky_records_still_make_a_picture(tmp_path, tricky):
    picture = image.imread(plot_run(RunMetrics.from_records(tricky), tmp_path / "curve.png"))
    assert picture.shape[1] == 1200
    assert picture[:, :, :3].std() > 0.02
    ET.fromstring(run_svgs(RunMetrics.from_records(tricky))[1])


def test_svg_is_sound_xml_with_text_and_page_colours(records):
    svg, _ = run_svgs(RunMetrics.from_records(records), baseline={"unigram_loss": 6.7})
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"masked-LM loss (nats)", "unigram baseline", "held-out text", "training step"} <= texts
    assert "var(--train, #0072b2)" in svg
    assert "var(--evaluation, #d55e00)" in svg
    assert "1,200 steps · 4.9 M tokens · 10 min 00 s" in root.attrib["aria-label"]


def test_wide_and_narrow_share_no_identifier_and_resolve_their_own(records):
    all_identifiers = []
    for svg in run_svgs(RunMetrics.from_records(records)):
        identifiers = set(re.findall(r'\bid="([^"]+)"', svg))
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)) <= {
            (i, "") for i in identifiers
        } | {("", i) for i in identifiers}
        assert "<style" not in svg
        all_identifiers.append(identifiers)
    assert not all_identifiers[0] & all_identifiers[1]


def test_smoothing_is_the_mean_around_each_value_without_nan():
    values = [float(n % 7) for n in range(500)]
    values[250] = math.nan
    smooth = _running_mean(values)
    assert smooth[200] == pytest.approx(np.mean(values[195:206]))
    assert smooth[250] == pytest.approx(np.nanmean(values[245:256]))
    assert smooth[0] == values[0]


def test_many_steps_are_drawn_in_few_points_that_keep_the_extremes():
    values = np.random.default_rng(0).uniform(-1, 1, 20_000).tolist()
    values[5_000], values[7_001] = 9.0, -9.0
    records = [{"event": "step", "step": n, "loss": value} for n, value in enumerate(values)]
    for svg in run_svgs(RunMetrics.from_records(records)):
        assert len(svg) < 120_000
        curve = max(re.findall(r' d="([^"]*)"', svg), key=len)
        heights = sorted(float(height) for height in re.findall(r"[ML] \S+ (\S+)", curve))
        usual = heights[-2] - heights[1]
        assert heights[1] - heights[0] == pytest.approx(4 * usual, rel=0.05)
        assert heights[-1] - heights[-2] == pytest.approx(4 * usual, rel=0.05)


def test_one_wild_step_does_not_flatten_the_curve():
    calm = [5 - n / 500 for n in range(1000)]
    assert loss_axis_bottom_top_and_num_above([*calm, 1e6], [])[1] < 7
    assert loss_axis_bottom_top_and_num_above([*calm, 1e6], [])[2] == 1
    assert loss_axis_bottom_top_and_num_above(calm, [6.7])[1] > 6.7
    assert loss_axis_bottom_top_and_num_above(calm, [6.7])[2] == 0


def test_a_run_without_records_is_refused_and_nothing_is_written(tmp_path, slug_of):
    assert slug_of(plot_run, RunMetrics.from_records([]), tmp_path / "curve.png") == "empty"
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_install_line_is_named(tmp_path, records, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError) as error:
        plot_run(RunMetrics.from_records(records), tmp_path / "curve.png")
    assert "albertkit[report]" in error.value.hint


@pytest.mark.parametrize("narrow", [False, True])
def test_the_line_of_chance_has_its_words_inside(narrow):
    """Also where all shares are near 100 %, and the panel is a fifth of the picture."""
    records = [
        {
            "event": "step",
            "step": n,
            "masked_lm_loss": 5 - n / 100,
            "sentence_order_accuracy": 0.95,
            "learning_rate": 1e-3,
        }
        for n in range(1, 200)
    ]
    plan = _plan_figure(RunMetrics.from_records(records), {}, None, "")
    with new_figure(plan[narrow], plan.draw) as figure:
        figure.draw_without_rendering()
    axes = next(axes for axes in figure.axes if "sentence order" in axes.get_ylabel())
    (words,) = axes.texts
    frame = axes.get_window_extent()
    extent = words.get_window_extent()
    assert words.get_text() == "coin toss"
    assert frame.y0 + extent.height < extent.y0 < extent.y1 < frame.y1
    assert frame.x0 < extent.x0 < extent.x1 < frame.x1 - extent.height / 2
