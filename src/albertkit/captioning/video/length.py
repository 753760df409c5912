"""Whether a file holds what it says and what a clip asks for: a note if nearly, an error if less than half."""

from albertkit.captioning.video.file import MOST_PIXELS, VideoFile
from albertkit.captioning.video.timeline import Bounds
from albertkit.errors import DataError

_ENOUGH = 0.5  # of a clip
_SLACK = 0.02  # of a clip, or two frames: bounds and headers are rounded


def check_length(video: VideoFile, bounds: Bounds, until: float | None, broken_off: bool) -> tuple[str, ...]:
    """Compare when the frames end with when they should.

    Args:
        video: The file.
        bounds: Of the clip.
        until: When the last frame seen ends, in seconds.
        broken_off: Whether reading ended there in an error.

    Returns:
        Notes.

    Raises:
        DataError: bad-clip, truncated-video.
    """
    if until is None:
        return ()
    begin, declared = bounds.start or 0.0, video.declared_end
    file_end = until if declared is None else declared
    stop = file_end if bounds.end is None else min(bounds.end, file_end)
    slack = max(2 / float(video.rate), _SLACK * (stop - begin))
    notes = []
    if bounds.end is not None and bounds.end > file_end + slack:
        if file_end - begin < _ENOUGH * (bounds.end - begin):
            raise outside(video, bounds, file_end)
        notes.append(f"the clip should end at {bounds.end:.2f} s, the file ends at {file_end:.2f} s")
    if until < stop - slack:
        if until - begin < _ENOUGH * (stop - begin):
            raise truncated(video, until, file_end)
        notes.append(f"the file ends early: at {until:.2f} s of {file_end:.2f} s")
    elif broken_off:
        notes.append(f"the file cannot be read beyond {until:.2f} s")
    return tuple(notes)


def check_decoded(video: VideoFile, decoded: int, packets: int) -> tuple[str, ...]:
    """Compare the frames decoded with the packets they were in.

    Raises:
        DataError: undecodable-video.
    """
    if not video.faults or decoded >= packets:
        return ()
    if decoded < _ENOUGH * packets:
        raise video.undecodable(f"only {decoded:,} of {packets:,} frames can be decoded")
    return (f"{packets - decoded:,} of {packets:,} frames cannot be decoded",)


def no_frame(video: VideoFile, bounds: Bounds, until: float) -> DataError:
    """The error for a clip of no frames.

    Args:
        video: The file, decoded to its end.
        bounds: Of the clip.
        until: When its last frame ends, in seconds; 0 if it has none.
    """
    if not until and (video.faults or video.broken_off):
        limit = "" if video.stream.codec_context.width else f" (none of more than {2 * MOST_PIXELS:,} pixels is)"
        return video.undecodable(f"none of its frames can be decoded{limit}")
    declared = video.declared_end
    if declared is not None and until <= (bounds.start or 0.0) < declared:
        return truncated(video, until, declared)
    if until:
        return outside(video, bounds, until)
    return DataError("empty-video", f"`{video.path}` holds no frame", "copy or download it again")


def outside(video: VideoFile, bounds: Bounds, file_end: float) -> DataError:
    """The error for a clip that is not in its file."""
    end = "the end" if bounds.end is None else f"{bounds.end:g} s"
    return DataError(
        "bad-clip",
        f"a clip from {bounds.start or 0:g} s to {end} of `{video.path}`, which ends at {file_end:.2f} s",
        "correct its start and end, in seconds",
    )


def truncated(video: VideoFile, until: float, file_end: float) -> DataError:
    """The error for a file of which too little is there."""
    return DataError(
        "truncated-video",
        f"`{video.path}` breaks off at {until:.2f} s of {file_end:.2f} s",
        "copy or download it again",
    )
