"""A file of video, opened: its packets, the frames they decode to, and errors that name what is wrong with it."""

import errno
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, Self

from albertkit.errors import DataError, MissingExtraError, explain, near_path

MOST_PIXELS = 1 << 26  # of a frame: 8192 x 8192. 8K is half of it; a decoder may keep 17 such frames
# FFmpeg's names of what is read: containers, streams without one, pictures. Not lists, which open other files (HLS, DASH,
# concat, VobSub, SDP), text drawn as pictures, devices.
_FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,mxf,gxf,nut,rm,nsv,nuv,wtv,swf,ivf,dv,av1,obu,h261,h263,h264,hevc,vvc,evc,vc1,"
    "vc1test,m4v,mpegvideo,cavsvideo,avs2,avs3,dirac,dnxhd,mjpeg,mjpeg_2000,yuv4mpegpipe,mlv,cine,r3d,smjpeg,bink,smk,flic,"
    "apng,gif,jpegxl_anim,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,jpegxl_pipe,j2k_pipe,exr_pipe,dpx_pipe,qoi_pipe"
)
_INTRA = 1  # PyAV's PictureType.I
_HAVE_LENGTH = frozenset("mov matroska avi asf flv".split())


class VideoFile:
    """A file of video and its one stream of pictures; a context manager.

    It is decoded by one thread: every machine sees the same frames of a damaged file, and many files take a process a core.

    Attributes:
        stream: PyAV's stream of pictures; covers of songs are none.
        container: PyAV's container.
        kind: FFmpeg's word for the file: mov (which is MP4 too), matroska (WebM too), avi, mpegts, gif, …
        codec: FFmpeg's word for the codec of the pictures.
        tick: Unit of presentation times, in seconds.
        zero: Start of the file, in seconds of its own clock.
        undecoded: Packets and frames that could not be decoded so far.
        broken_off: Whether reading ended in an error, not at the end of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import av
        except ImportError:
            raise MissingExtraError.of("av", "caption", "reading video") from None
        self.error: type[Exception] = av.error.FFmpegError
        self.path = Path(path)
        self.undecoded, self.broken_off = 0, False
        self.container: Any = self._opened(av)
        try:
            self.stream: Any = self._pictures(av)
            width, height = self.stream.codec_context.width, self.stream.codec_context.height
            if width * height > MOST_PIXELS:
                raise too_large(self.path, f"{width:,} x {height:,} pixels")
        except BaseException:
            self.container.close()
            raise
        self.stream.codec_context.thread_count = 1
        self.stream.codec_context.options = _limit()
        self.kind: str = self.container.format.name.split(",")[0]
        # Not the decoder's name, which may be another: libdav1d
        self.codec: str = self.stream.codec_context.codec.canonical_name
        self.tick: Fraction = self.stream.time_base
        own, whole = self.stream.start_time, self.container.start_time
        self.zero = Fraction(whole or 0, 1_000_000)
        if own is not None and abs(own * self.tick - self.zero) < Fraction(1, 500_000):
            self.zero = own * self.tick  # the container's is rounded to microseconds

    def _opened(self, av: Any) -> Any:
        if self.path.exists() and not self.path.is_file():  # a pipe or a device might never end
            raise DataError("wrong-kind", f"`{self.path}` is not a regular file", "name a file of video")
        try:
            with open(self.path, "rb") as file:
                begins = file.read(1)
        except OSError as error:
            if not self.path.exists():
                raise DataError(
                    "not-found", f"no video at `{self.path}`", near_path(self.path, "check the path")
                ) from None
            raise explain(error) or self.undecodable(error) from None
        if not begins:
            raise DataError("bad-file", f"`{self.path}` holds no bytes", "copy or download it again")
        # `file:` and the lists: neither a name nor a playlist makes it read the network or another file
        limits = {"protocol_whitelist": "file", "format_whitelist": _FORMATS, **_limit()}
        try:
            container = av.open(f"file:{self.path.absolute()}", options=limits, metadata_errors="replace")
        except (self.error, ValueError) as error:
            is_refused = getattr(error, "errno", None) == errno.EINVAL
            raise self.undecodable("it is of no format of video that is read" if is_refused else error) from None
        return container

    def _pictures(self, av: Any) -> Any:
        cover = av.stream.Disposition.attached_pic
        streams = [stream for stream in self.container.streams.video if not stream.disposition & cover]
        kinds = ", ".join(sorted({stream.type for stream in self.container.streams} - {"data", "unknown"}))
        if not streams and not kinds:
            raise self.undecodable("it holds nothing that can be played")
        if not streams:
            raise DataError(
                "bad-file",
                f"`{self.path}` holds no pictures, only {kinds}",
                "leave the file out, or name another",
            )
        best = self.container.streams.best("video")
        stream = next((stream for stream in streams if best is not None and stream.index == best.index), streams[0])
        if stream.codec_context is None or not stream.time_base:
            raise self.undecodable("there is no decoder for it")
        return stream

    def undecodable(self, reason: object) -> DataError:
        """Return the error for a file that cannot be read as video."""
        return undecodable(self.path, reason)

    def seconds(self, pts: int) -> float:
        """Return a presentation time as seconds from the start of the file."""
        return float(pts * self.tick - self.zero)

    @property
    def rate(self) -> Fraction:
        """Return frames per second, on average; 25 where the file does not say."""
        return self.stream.average_rate or self.stream.guessed_rate or Fraction(25)

    @property
    def declared_end(self) -> float | None:
        """Return the end of the pictures by the file's header, in seconds from its start; None if that does not say.

        FFmpeg estimates the duration of formats without one from bit rates, which is not to be trusted.
        """
        stream, whole = self.stream, self.container.duration
        if self.kind not in _HAVE_LENGTH:
            return None
        if stream.duration:  # of AVI it shrinks with the file, the number of frames does not
            counted = round(stream.frames / (self.rate * self.tick)) if self.kind == "avi" else 0
            return self.seconds((stream.start_time or 0) + max(stream.duration, counted))
        if written := re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", "")):  # Matroska
            return float(written[1]) * 3600 + float(written[2]) * 60 + float(written[3]) - float(self.zero)
        if whole and len(self.container.streams) == 1:  # of several the longest counts, which may be the sound
            return whole / 1_000_000
        return None

    def end_of(self, shown: Any) -> float:
        """Return the end of a packet or frame, in seconds from the start of the file."""
        return self.seconds(shown.pts) + float(shown.duration * self.tick if shown.duration else 1 / self.rate)

    def seek(self, pts: int) -> bool:
        """Go to the packet that stands alone at or before a time in ticks; False where the file cannot."""
        try:
            self.container.seek(pts, stream=self.stream)
        except (self.error, OverflowError):
            return False
        return True

    def frames_from(self, pts: int, dts: int) -> Iterator[Any] | None:
        """Yield the frames from a packet that stands alone to the end; None where it cannot be sought.

        Some formats are sought by the time of showing, others by that of decoding; the wrong one leads a keyframe too far
        or back. Too far is seen from the first packet.
        """
        for ticks in (pts, dts):
            if self.seek(ticks):
                packets = self.packets()
                first = next(packets)
                if first is not None and first.pts is not None and first.pts <= pts:
                    return self.frames(chain([first], packets))
        return None

    def packets(self) -> Iterator[Any]:
        """Yield the packets from here to the end, the last of them empty; what ends early sets `broken_off`."""
        try:
            yield from self.container.demux(self.stream)
        except (self.error, LookupError):  # LookupError: PyAV, where a damaged header announced fewer streams
            self.broken_off = True
            yield None

    def frames(self, packets: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield the frames from here to the end, in the order they are shown; those that cannot be decoded are counted.

        Nothing is taken before a frame that stands alone, nor after such a frame was lost until the next: decoders paint
        what hangs on it over grey, black, or the picture of another scene.
        """
        lost, awaited = True, deque[int]()  # presentation times of frames that stand alone and are to come
        for packet in self.packets() if packets is None else packets:
            try:
                decoded = self.stream.codec_context.decode(packet)
            except (self.error, ValueError):
                self.undecoded += 1
                lost = lost or packet is None or packet.is_keyframe
                continue
            if packet is not None and packet.is_keyframe:
                if packet.is_discard or packet.pts is None:  # the first by an edit list: decoded, and not to be shown
                    lost = False
                else:
                    awaited.append(packet.pts)
            for frame in decoded:
                while awaited and frame.pts is not None and awaited[0] < frame.pts:  # it never came, without an error
                    awaited.popleft()
                    lost, self.undecoded = True, self.undecoded + 1
                if awaited and awaited[0] == frame.pts:
                    awaited.popleft()
                lost = lost and not (frame.key_frame or frame.pict_type == _INTRA)
                if lost or frame.is_corrupt:
                    self.undecoded += 1
                else:
                    yield frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.container.close()


def _limit() -> dict[str, str]:
    """Return FFmpeg's option against frames whose size is only known when they are decoded; it counts what decoders add."""
    return {"max_pixels": str(2 * MOST_PIXELS)}


def too_large(path: str | os.PathLike[str], size: str) -> DataError:
    """Return the error for frames that would take too much memory."""
    return DataError(
        "too-large",
        f"frames of `{path}` are {size}; {MOST_PIXELS:,} pixels are the most",
        "make it smaller with a tool for video",
    )


def undecodable(path: str | os.PathLike[str], reason: object) -> DataError:
    """Return the error for a file that cannot be read as video."""
    text = "it ends too early" if isinstance(reason, EOFError) else str(getattr(reason, "strerror", None) or reason)
    return DataError(
        "bad-file",
        f"`{path}` cannot be read as video: {text[:1].lower()}{text[1:]}",
        "play it to see whether it is whole; copy it again, or leave it out",
    )
