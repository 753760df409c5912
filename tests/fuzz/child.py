"""A process that reads damaged files: what it may take is limited, what it must not do is noticed.

It dies of what would kill a reader, such as a crash in a library, and the tests outlive it.
"""

import importlib.util
import os
import re
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from albertkit.files import cache_folder

ADDRESS_SPACE = 3 << 30  # beyond what the process has when it begins
_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "socket.getaddrinfo",
    "pty.spawn",
)
_WRITING = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
)
_LOOPS = os.path.realpath(cache_folder() / "loops")  # compiled code
_DEVICES = ("/dev/null", "/dev/shm", "/proc/", "/dev/tty")


class Watch:
    """Notices what a reader does outside of its folder.

    Args:
        root: Folder of all readers, which may lie among the devices.
    """

    def __init__(self, root):
        self.root = root
        self.allowed = ()
        self.bait = ""
        self.moments = []
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if not self.allowed:
            return
        if event in _FORBIDDEN:
            self.moments.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            flags = arguments[2] or 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._note_write(event, path)
            elif path.startswith(self.bait):
                self.moments.append(f"read {path}")
        elif event in _WRITING and isinstance(arguments[0], str | bytes):
            self._note_write(event, os.path.abspath(os.fsdecode(arguments[0])))

    def _note_write(self, event, path):
        is_device = path.startswith(_DEVICES) and not path.startswith(self.root)
        if (
            not is_device
            and not path.startswith((*self.allowed, _LOOPS))
            and "__pycache__" not in path
        ):
            self.moments.append(f"{event} {path}")


def serve(connection, scratch):
    """Read what the parent asks for until it goes away.

    Args:
        connection: Takes (file of a module, name of a function, folder) and answers (kind, details,
            bytes of memory).
        scratch: Folder for temporary files.
    """
    tempfile.tempdir = scratch
    os.environ |= {"TMPDIR": scratch, "MPLCONFIGDIR": scratch}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    watch = Watch(str(Path(scratch).parent))
    modules = {}
    while True:
        try:
            file, function, folder, limited = connection.recv()
        except EOFError:
            return
        if file not in modules:
            modules[file] = _module(file)
        resource.setrlimit(
            resource.RLIMIT_AS, (_size("VmSize") + ADDRESS_SPACE if limited else -1, -1)
        )
        before = _reset_peak()
        os.chdir(folder)
        watch.bait = f"{Path(folder).parent}/outside"
        watch.moments = []
        # Good files: matplotlib starts fc-list when it is first imported
        watch.allowed = (folder, scratch) if limited else ()
        try:
            answer = ("valid", str(getattr(modules[file], function)(Path(folder)))[:200])
        except BaseException as error:
            answer = _outcome(error)
        finally:
            watch.allowed = ()
        if watch.moments:
            answer = ("escape", "; ".join(watch.moments))
        connection.send((*answer, max(0, _size("VmHWM") - before)))


def _outcome(error):
    from albertkit.errors import AlbertKitError, explain_os_error

    explained = explain_os_error(error)
    if isinstance(explained, AlbertKitError) and explained.slug not in (
        "out-of-memory",
        "input-output",
    ):  # it was the file
        return "error", (explained.slug, explained.message, explained.hint)
    frames = traceback.extract_tb(error.__traceback__)
    our_frames = [
        f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames if "albertkit" in f.filename
    ] or ["(the test)"]
    last = frames[-1]
    return (
        "exception",
        f"{' > '.join(our_frames[-5:])} > {Path(last.filename).name}:{last.lineno}\n{type(error).__name__}: {error!s:.300}",
    )


def _module(file):
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _size(name):
    with open("/proc/self/status") as status:
        return int(re.search(rf"{name}:\s+(\d+)", status.read())[1]) * 1024


def _reset_peak():
    """Forget the most memory that the process has had; what it has now."""
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")
    return _size("VmRSS")
