"""Files that are not as they should be are used as far as they go, or refused by name; never a traceback, never a black frame."""

import os
import resource
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from fractions import Fraction
from functools import partial
from struct import pack

import av
import numpy as np
import pytest

import albertkit.captioning.video as file
from albertkit.captioning.video import MAX_PIXELS, FrameSampling, VideoFile, sample_frames
from albertkit.errors import AlbertKitError, DataError

SAMPLING = FrameSampling(num_frames=4, size=96)
FASTSTART = {"movflags": "faststart"}
NAMES = {
    "bad-row", "bad-file", "not-found", "too-large", "corrupt",
}  # fmt: skip


def slug_of(path, *args):
    with pytest.raises(DataError) as caught:
        sample_frames(path, SAMPLING, *args)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value.slug


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def test_not_there_not_a_file_nothing_in_it(tmp_path):
    assert slug_of(tmp_path / "missing.mp4") == "not-found"
    assert slug_of(tmp_path) == "wrong-kind"
    os.mkfifo(tmp_path / "pipe.mp4")
    assert slug_of(tmp_path / "pipe.mp4") == "wrong-kind"
    (tmp_path / "zero.mp4").touch()
    assert slug_of(tmp_path / "zero.mp4") == "bad-file"


@pytest.mark.parametrize("name", "text.mp4 text.txt noise.mp4 list.m3u8 list.mp4".split())
def test_what_is_no_video(tmp_path, clip, name):
    """FFmpeg would draw a .txt as pictures, and follow a playlist to other files."""
    target = clip("other.mp4", 5)
    contents = {
        "text": b"a man walks\n" * 100,
        "noise": np.random.default_rng(0).bytes(10_000),
        "list": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n".encode(),
    }
    path = tmp_path / name
    path.write_bytes(contents[path.stem])
    assert slug_of(path) == "bad-file"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\npipe.ts\n#EXT-X-ENDLIST\n"),
        ("list.mp4", "ffconcat version 1.0\nfile pipe.ts\n"),
        ("pipe.idx", "# VobSub index file, v7 (do not modify this line!)\n"),
    ],
)
def test_no_file_opens_another(name, content, tmp_path):
    """The other one is a pipe, which whoever opens it waits at until it is written to."""
    (tmp_path / name).write_text(content)
    for pipe in ("pipe.ts", "pipe.sub"):
        os.mkfifo(tmp_path / pipe)
    with ThreadPoolExecutor(1) as pool:
        slug = pool.submit(slug_of, tmp_path / name)
        while not wait([slug], 0.1).done:
            for pipe in ("pipe.ts", "pipe.sub"):
                with suppress(OSError):  # nobody reads it
                    os.close(os.open(tmp_path / pipe, os.O_WRONLY | os.O_NONBLOCK))
                    pytest.fail(f"{pipe} was opened")
    assert slug.result() == "bad-file"


@pytest.mark.parametrize("cover", [False, True])
def test_sound_without_pictures(tmp_path, cover):
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        voice = container.add_stream("aac", rate=16000, layout="mono")
        if cover:
            art = container.add_stream("mjpeg", rate=1)
            art.width = 32
            art.height = 32
            art.pix_fmt = "yuvj420p"
            art.disposition = av.stream.Disposition.attached_pic
            container.mux(art.encode(av.VideoFrame(32, 32, "yuvj420p")) + art.encode(None))
        sound = av.AudioFrame.from_ndarray(
            np.zeros((1, 16000), np.float32), format="fltp", layout="mono"
        )
        sound.sample_rate = 16000
        container.mux(voice.encode(sound) + voice.encode(None))
    assert slug_of(path) == "bad-file"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("clip.mp4", dict(container_options=FASTSTART)),
        ("clip.mkv", {}),
        ("sound.mkv", dict(sound=True)),
        ("clip.webm", dict(codec="libvpx-vp9", options={"deadline": "realtime", "cpu-used": "8"})),
        ("clip.avi", dict(codec="mpeg4")),
    ],
)
def test_truncated(name, how, clip, spell):
    """Most of a file is used with a note, less than half of it is refused. Every frame used is a real one."""
    frames = sample_frames(
        cut(clip(name, 100, **how), 0.85), FrameSampling(num_frames=100, size=96)
    )
    numbers = spell(frames.pixels)
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert 60 < numbers[-1] < 95
    # Perhaps after that the last frame is broken
    assert frames.notes[-1].startswith("the file ends early: at 3.")
    np.testing.assert_allclose(frames.times, np.array(numbers) / 25, atol=2e-3)
    assert slug_of(cut(clip(name, 100, **how), 0.45)) == "corrupt"
    assert slug_of(cut(clip(name, 100, **how), 0.85), 3.9, 4.0) == "corrupt"


def test_truncated_before_the_index(clip):
    """An MP4 keeps its index at the end: half of one is nothing."""
    assert slug_of(cut(clip("clip.mp4", 100), 0.5)) == "bad-file"


def test_lost_frames_are_counted_and_left_out(clip, spell):
    """Frames 30 to 39 are overwritten; nothing takes their place."""
    path = clip("clip.mov", 60, codec="mjpeg", pix_fmt="yuvj420p")
    overwrite(path, range(30, 40))
    frames = sample_frames(path, FrameSampling(num_frames=50, size=96))
    assert spell(frames.pixels) == [*range(30), *range(40, 60)]
    assert frames.notes == ("10 of 60 frames cannot be decoded",)
    overwrite(path, range(20, 60))
    assert slug_of(path) == "bad-file"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (20, [*range(20), *range(30, 60)]),
        (0, [*range(10, 60)]),
    ],
)
def test_what_hangs_on_a_lost_keyframe_is_left_out(key, expected, clip, spell):
    path = clip("clip.mp4", 60, gop=10, codec="mpeg4", options={"sc_threshold": "1000000000"})
    overwrite(path, [key])
    frames = sample_frames(path, FrameSampling(num_frames=50, size=96))
    assert spell(frames.pixels) == expected
    assert frames.notes == ("10 of 60 frames cannot be decoded",)


def overwrite(path, numbers):
    """Put zeros where the packets of these numbers are."""
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    with open(path, "r+b") as file:
        for number in numbers:
            position, size = packets[number]
            file.seek(position)
            file.write(bytes(size))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("clip.mp4", {}),
        ("clip.mkv", dict(options={"bf": "2"})),
        ("clip.ts", {}),
        ("clip.avi", dict(codec="mpeg4")),
        ("clip.webm", dict(codec="libvpx-vp9", options={"deadline": "realtime", "cpu-used": "8"})),
        ("clip.gif", dict(codec="gif", pix_fmt="rgb8")),
    ],
)
def test_flipped_bits_give_frames_or_a_name(name, how, clip):
    path = clip(name, 40, **how)
    sample = partial(sample_frames, sampling=SAMPLING)
    content = np.frombuffer(path.read_bytes(), np.uint8)
    random = np.random.default_rng(5)
    outcomes = set()
    for _ in range(25):
        flipped = content.copy()
        offsets = random.integers(0, len(content), random.integers(1, 40))
        flipped[offsets] ^= (1 << random.integers(0, 8, len(offsets))).astype(np.uint8)
        path.write_bytes(flipped.tobytes())
        for look in (sample, partial(sample, start=0.5, end=1.2)):
            try:
                look(path)
                outcomes.add("fine")
            except AlbertKitError as error:
                outcomes.add(error.slug)
    assert "fine" in outcomes
    assert outcomes <= {"fine", *NAMES}


def test_one_frame(clip):
    kinds = {
        "one.mp4": {},
        "one.gif": dict(codec="gif", pix_fmt="rgb8"),
        "one.png": dict(codec="png", pix_fmt="rgb24"),
    }
    for name, how in kinds.items():
        path = clip(name, [np.full((40, 60, 3), 255, np.uint8)], **how)
        frames = sample_frames(path, SAMPLING)
        assert frames.pixels.shape == (4, 96, 96, 3)
        assert np.abs(frames.pixels.astype(int) - 255).max() <= 3
        np.testing.assert_array_equal(frames.times, 0)


def test_frames_of_one_hour_are_found_without_decoding_it(clip, spell, monkeypatch):
    decoded = []
    original = VideoFile.frames
    monkeypatch.setattr(
        VideoFile, "frames", lambda *args: (decoded.append(1) or frame for frame in original(*args))
    )
    pts = list(range(0, 3600, 4))
    path = clip("hour.mp4", 900, codec="mpeg4", gop=30, pts=pts, time_base=Fraction(1))
    frames = sample_frames(path, FrameSampling(num_frames=8, size=96))
    assert spell(frames.pixels) == [56, 168, 281, 393, 506, 618, 731, 843]
    assert len(decoded) <= 8 * 30
    frames = sample_frames(path, FrameSampling(num_frames=2, size=96, rounding="floor"), 3000, 3010)
    assert spell(frames.pixels) == [750, 752]
    assert len(decoded) <= 8 * 30 + 2 * 30


def test_8k_is_decoded_in_little_memory(tmp_path):
    """12 frames of 7680 x 4320 are 1.2 GB as RGB and 0.6 GB as decoded; one at a time is 0.15 GB."""
    path = tmp_path / "8k.mov"
    picture = av.VideoFrame(7680, 4320, "yuvj420p")
    for plane, value in zip(picture.planes, (90, 128, 128), strict=True):
        plane.update(np.full(plane.buffer_size, value, np.uint8))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width = 7680
        stream.height = 4320
        stream.pix_fmt = "yuvj420p"
        packet = bytes(next(iter(stream.encode(picture))))
        for number in range(12):
            copy = av.Packet(packet)
            copy.stream = stream
            copy.pts = number
            copy.dts = number
            copy.is_keyframe = True
            copy.time_base = Fraction(1, 25)
            container.mux(copy)
    program = (
        "import resource, sys\n"
        "from albertkit.captioning.video import sample_frames\n"
        "from albertkit.captioning.video import FrameSampling\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "frames = sample_frames(sys.argv[1], FrameSampling(num_frames=12, size=32))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, frames.pixels.mean())\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    grown, level = process.stdout.split()
    assert int(grown) / 1024 < 350
    assert abs(float(level) - 90) < 2


def test_frames_larger_than_the_limit(tmp_path, clip, monkeypatch):
    """By the header of the file, before anything is decoded; a PNG of 30,000 x 30,000 never unfolds to its 900 MB."""
    assert MAX_PIXELS == 8192 * 8192
    with monkeypatch.context() as patched:
        patched.setattr(file, "MAX_PIXELS", 96 * 96 - 1)
        assert slug_of(clip("clip.mp4", 5)) == "too-large"
        patched.setattr(file, "MAX_PIXELS", 96 * 96)
        assert len(sample_frames(tmp_path / "clip.mp4", SAMPLING).times) == 4
    strip = clip("strip.mkv", [np.zeros((2, 16000, 3), np.uint8)], codec="ffv1", pix_fmt="bgr0")
    assert slug_of(strip) == "too-large"  # 96 x 768,000 when its shorter side is 96

    def chunk(kind, body):
        return pack(">I", len(body)) + kind + body + pack(">I", zlib.crc32(kind + body))

    rows = zlib.compressobj(1)
    packed = b"".join(rows.compress(bytes(30_001)) for _ in range(3000)) + rows.flush()
    header = pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="none of more than 134,217,728 pixels is"):
        sample_frames(tmp_path / "bomb.png", SAMPLING)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_names_that_mean_something_to_ffmpeg(tmp_path, clip):
    path = clip("clip.mp4", 5)
    for name in (
        "concat:a|b%03d.mp4",
        "http:\\x?y.mp4",
        "한국어 영상.mp4",
        os.fsdecode(b"\xff\xfe.mp4"),
        "-i.mp4",
    ):
        (tmp_path / name).write_bytes(path.read_bytes())
        assert len(sample_frames(tmp_path / name, SAMPLING).times) == 4
