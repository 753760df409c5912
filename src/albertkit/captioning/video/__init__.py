"""Files of video to frames, by PyAV."""
