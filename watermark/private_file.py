"""Files for their owner alone: read within bounds, replaced whole, under a lock.

Knows nothing of what they hold. A crash at any moment leaves the old file or the new one.
"""

import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from tokenmark.watermark.errors import KeyringError

__all__ = ["locked", "open_regular", "refuse_shared", "replace_file", "resolve"]

_POSIX: Final = os.name == "posix"

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


def resolve(path: Path) -> Path:
    """The file behind symbolic links, which need not exist.

    Whoever links to a key file means the target, so the target is locked and replaced.
    """
    try:
        target = path.resolve()
    except (OSError, RuntimeError):
        target = None
    # From Python 3.13 on a loop of links resolves to one of them.
    if target is None or target.is_symlink():
        raise KeyringError(f"{path} is a symbolic link that leads nowhere; remove it")
    return target


def open_regular(path: Path, *, max_bytes: int) -> BinaryIO:
    """The file opened for reading.

    Raises:
        FileNotFoundError: there is none.
        KeyringError: it cannot be opened, is no regular file, or is larger than `max_bytes`.
    """
    try:
        # Not to wait for a writer, should the path be a pipe.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KeyringError(f"{path} cannot be read: {error.strerror}") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        os.close(handle)
        raise KeyringError(
            f"{path} is no key file: that would be a regular file of at most {max_bytes >> 20} MiB"
        )
    return os.fdopen(handle, "rb")


def refuse_shared(file: BinaryIO, path: Path) -> None:
    """Return if only the owner can read the open file, else KeyringError with the way out.

    Elsewhere than on POSIX the mode says nothing: access is governed by lists that Python does not
    read, and a user's own folders are private by default.
    """
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if _POSIX and mode & 0o077:
        raise KeyringError(
            f"{path} holds secrets in clear and its mode {mode:04o} lets others at them; run "
            f"`chmod 600 {shlex.quote(str(path))}`"
        )


@contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Keep every other writer of the file out, in this process and in others.

    The folder of the file is made if there is none.

    Raises:
        KeyringError: another writer holds the lock for longer than `timeout_s`, or the folder
            cannot be written.
    """
    lock_path = path.with_name(path.name + ".lock")
    from filelock import FileLock, Timeout  # noqa: PLC0415 - only a change needs it, not a detection

    lock = FileLock(lock_path, timeout=timeout_s, mode=_FILE_MODE)
    try:
        _make_folder(path.parent)
        lock.acquire()
    except Timeout:
        raise KeyringError(
            f"{lock_path} is held by another process for more than {timeout_s:g} s; wait for it "
            "or end it"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise KeyringError(f"{path} cannot be written: {_reason(error)}") from error
    try:
        yield
    finally:
        lock.release()


def replace_file(path: Path, render: Callable[[], bytes]) -> None:
    """Put what `render` returns in the file's place, whole or not at all; under `locked` only.

    A new file has the mode 0600; an old one keeps its mode and owner. The content comes from a
    call, so that no frame of a traceback holds it.

    Raises:
        KeyringError: the file cannot be written; the old content is still there, unless only the
            last flush of the folder failed.
    """
    # One name is enough under the lock, and what a killed writer left there is cleared away.
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        try:
            _write(partial, render, like=path)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise KeyringError(f"{path} cannot be written: {_reason(error)}") from error


def _write(partial: Path, render: Callable[[], bytes], *, like: Path) -> None:
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    with os.fdopen(handle, "wb") as file:
        if _POSIX:
            _set_access(handle, like)
        file.write(render())
        file.flush()
        os.fsync(handle)


def _set_access(handle: int, like: Path) -> None:
    """Give the open file the owner and mode of `like`, or 0600 whatever the umask."""
    if not like.exists():
        os.fchmod(handle, _FILE_MODE)
        return
    old, new = like.stat(), os.fstat(handle)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))


def _make_folder(folder: Path) -> None:
    missing = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    for ancestor in reversed(missing):
        ancestor.mkdir(mode=_FOLDER_MODE, exist_ok=True)


def _flush_folder(folder: Path) -> None:
    # Elsewhere than on POSIX a folder cannot be opened, and the system orders the renames.
    if _POSIX:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _reason(error: OSError | NotImplementedError) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
