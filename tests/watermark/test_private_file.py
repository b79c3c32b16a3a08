import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tokenmark.watermark import private_file
from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.private_file import (
    locked,
    open_regular,
    refuse_shared,
    replace_file,
    resolve,
)

posix_only = pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@posix_only
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_a_new_file_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "file"
    with umask(mask):
        replace_file(path, lambda: b"content")
    assert mode_of(path) == 0o600
    assert path.read_bytes() == b"content"


@posix_only
def test_new_folders_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    with umask(0), locked(path, timeout_s=1):
        replace_file(path, lambda: b"content")
    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "a" / "b")) == (0o700, 0o700)
    assert {child.name for child in path.parent.iterdir()} == {"file", "file.lock"}


@posix_only
def test_an_old_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    replace_file(path, lambda: b"new")
    assert (mode_of(path), path.read_bytes()) == (0o640, b"new")


@posix_only
def test_an_old_file_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    given: list[tuple[int, int]] = []
    own = path.stat()

    def of_somebody_else(_handle: int) -> os.stat_result:
        return os.stat_result([*own[:4], own.st_uid + 1, *own[5:]])

    monkeypatch.setattr(os, "fstat", of_somebody_else)
    monkeypatch.setattr(os, "fchown", lambda _handle, uid, gid: given.append((uid, gid)))
    replace_file(path, lambda: b"new")
    assert given == [(own.st_uid, own.st_gid)]


class Crash(BaseException):
    """The end of the process at this moment."""


def crash(*_args: object, **_kwargs: object) -> None:
    raise Crash


def full_disk(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["os.fsync", "os.fchmod", "pathlib.Path.replace"])
@pytest.mark.parametrize("how", ["crash", "full disk"])
def test_a_failure_before_the_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, how: str
) -> None:
    path = tmp_path / "file"
    replace_file(path, lambda: b"old")
    failure, error = (crash, Crash) if how == "crash" else (full_disk, KeyringError)
    monkeypatch.setattr(step, failure)
    with pytest.raises(error):
        replace_file(path, lambda: b"new")
    assert path.read_bytes() == b"old"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_a_crash_after_the_replacement_leaves_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, lambda: b"old")
    monkeypatch.setattr(private_file, "_flush_folder", crash)
    with pytest.raises(Crash):
        replace_file(path, lambda: b"new")
    assert path.read_bytes() == b"new"


def test_a_full_disk_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(KeyringError, match=r"file cannot be written: No space left on device"):
        replace_file(tmp_path / "file", lambda: b"new")


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "file"
    leftover = tmp_path / ".file.partial"
    leftover.write_bytes(b"half")
    replace_file(path, lambda: b"new")
    assert path.read_bytes() == b"new"
    assert not leftover.exists()


@posix_only
def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".file.partial").symlink_to(victim)
    replace_file(tmp_path / "file", lambda: b"new")
    assert victim.read_bytes() == b"precious"


def test_the_data_reach_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noting(step: str, real: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object) -> object:
            steps.append(step)
            return real(*args)

        return noted

    monkeypatch.setattr(os, "fsync", noting("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noting("replace", Path.replace))
    replace_file(tmp_path / "file", lambda: b"new")
    assert steps == ["fsync", "replace", "fsync"] if os.name == "posix" else ["fsync", "replace"]


def test_a_held_lock_is_named(tmp_path: Path) -> None:
    lock_path = tmp_path / "file.lock"
    with (
        FileLock(lock_path),
        pytest.raises(KeyringError, match=r"file\.lock is held by another process"),
        locked(tmp_path / "file", timeout_s=0.01),
    ):
        pass


def test_the_lock_is_free_again_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(Crash), locked(path, timeout_s=0.01):
        raise Crash
    with locked(path, timeout_s=0.01):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a file, no folder")
    with (
        pytest.raises(KeyringError, match="file cannot be written: "),
        locked(tmp_path / "a" / "b" / "file", timeout_s=0.01),
    ):
        pass


def test_reading_wants_a_regular_file_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        open_regular(path, max_bytes=4)
    path.write_bytes(b"1234")
    with open_regular(path, max_bytes=4) as file:
        assert file.read() == b"1234"
    with pytest.raises(KeyringError, match="regular file of at most"):
        open_regular(path, max_bytes=3)


@posix_only
def test_reading_waits_for_no_pipe_and_takes_no_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(KeyringError, match="regular file"):
            open_regular(path, max_bytes=4)


def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_args: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(KeyringError, match="file cannot be read: Permission denied"):
        open_regular(tmp_path / "file", max_bytes=4)


@posix_only
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o610, 0o601, 0o602, 0o777])
def test_a_file_that_others_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "the file"
    path.write_bytes(b"secrets")
    path.chmod(mode)
    with (
        path.open("rb") as file,
        pytest.raises(KeyringError, match=f"mode 0{mode:o} .* `chmod 600 '.*/the file'`"),
    ):
        refuse_shared(file, path)


@posix_only
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_is_fine(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secrets")
    path.chmod(mode)
    with path.open("rb") as file:
        refuse_shared(file, path)


@posix_only
def test_links_are_followed_and_loops_are_told(tmp_path: Path) -> None:
    link, target, loop = tmp_path / "link", tmp_path / "target", tmp_path / "loop"
    link.symlink_to(target)
    assert resolve(link) == target.resolve()
    loop.symlink_to(loop)
    with pytest.raises(KeyringError, match="symbolic link that leads nowhere"):
        resolve(loop)
