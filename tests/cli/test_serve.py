"""`wm-serve` as users type it, with a tiny model file in place of a real one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_gguf import write_gguf
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import KeyEntry, KeyState
from tokenmark.watermark.keyring import KeyringFile, Protection
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.tokenizers import TokenizerReference

pytestmark = pytest.mark.slow

CALL = "import sys; from tokenmark.cli.{} import main; sys.exit(main())"
ELSEWHERE = TokenizerReference("other", "ab" * 32)


class Place:
    """A folder with a model file and a keyring, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keyring = folder / "keyring.json"
        write_gguf(folder / "tiny.gguf")

    def add_key(
        self,
        name: str,
        *,
        key: WatermarkKey | None = None,
        scheme: str = "tm1",
        state: KeyState = KeyState.ACTIVE,
        tokenizer: TokenizerReference | None = None,
    ) -> None:
        wm_key = key or WatermarkKey.generate()
        entry = KeyEntry(
            name=name,
            key_id=wm_key.key_id,
            scheme=Scheme(name=scheme),
            created=datetime(2026, 1, 1, tzinfo=UTC),
            state=state,
            tokenizer=tokenizer,
        )
        KeyringFile(self.keyring).add(entry, wm_key, protection=Protection.NONE)

    def command(self, name: str, *arguments: str) -> list[str]:
        keyring = () if "--keyring" in arguments else ("--keyring", str(self.keyring))
        return [sys.executable, "-c", CALL.format(name), *arguments, *keyring]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "COLUMNS": "200"}

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name, *arguments),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self.environment,
            timeout=120,
        )

    def refused(self, *arguments: str) -> str:
        done = self.run("serve", *arguments, "--port", "0")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "Traceback" not in done.stderr
        error = done.stderr.splitlines()[-1]
        assert error.startswith("Error: ")
        return error


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def served(place: Place) -> Iterator[tuple[Place, str, subprocess.Popen[str]]]:
    port = free_port()
    with subprocess.Popen(
        place.command("serve", "tiny.gguf", "--port", str(port)),
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.folder,
        env=place.environment,
    ) as process:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=5).close()  # noqa: S310 - loopback HTTP
                break
            except OSError:
                time.sleep(0.05)
        yield place, url, process
        process.kill()


def ask(url: str, **fields: object) -> Any:  # noqa: ANN401 - whatever is answered
    body = {"model": "tiny", "prompt": "the", **fields}
    request = urllib.request.Request(  # noqa: S310 - loopback HTTP
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - loopback HTTP
        return json.load(response)


def test_a_first_start_makes_a_key_and_marks_with_it(
    served: tuple[Place, str, subprocess.Popen[str]],
) -> None:
    place, url, process = served
    answer = ask(url, max_tokens=110, ignore_eos=True)
    entry = KeyringFile(place.keyring).read().entries[0]
    assert entry.tokenizer is not None
    assert answer["watermark"]["applied"]
    assert answer["watermark"]["key_id"] == entry.key_id
    assert place.keyring.stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    _, talk = process.communicate(timeout=30)
    assert process.returncode == 0
    assert str(place.keyring) in talk
    for shown in ("read", "build", "warm up", "ready", url, "curl", "tm1", entry.key_id):
        assert shown in talk
    # The key is bound to the model's tokenizer now, so the text is all that has to be named. What
    # random weights write is hardly text, so its bytes do not give back the ids they came from.
    (place.folder / "text.txt").write_text("the 123 the" * 20, encoding="utf-8")
    done = place.run("detect", "text.txt", "--json")
    signal_of_key = json.loads(done.stdout)["signals"][0]
    assert signal_of_key["key_id"] == entry.key_id
    assert signal_of_key["tokenizer"]["id"] == entry.tokenizer.id


def test_what_cannot_be_served_is_refused_in_one_line(place: Place) -> None:
    (place.folder / "broken.gguf").write_bytes(b"GGUF and nothing more")
    place.add_key("mine")
    cases = {
        ("nowhere.gguf",): "nowhere.gguf",
        ("broken.gguf",): "broken.gguf",
        ("gpt-5",): "'gpt-5' is not understood",
        ("tiny.gguf", "--key", "nobody"): "no key named 'nobody'",
        ("tiny.gguf", "--key", "mine", "--unmarked"): "exclude each other",
        ("tiny.gguf", "--host", "0.0.0.0"): "loopback",  # noqa: S104 - what must be refused
        ("tiny.gguf", "--device", "cuda:7"): "device 'cuda:7' cannot be used",
        ("tiny.gguf", "--device", "meta"): "device 'meta' is not known",
        ("tiny.gguf", "--max-model-len", "100000"): "max_model_len must be 1..128",
    }
    # A first start that fails leaves no key file behind.
    elsewhere = place.folder / "new" / "ring.json"
    for arguments in (("nowhere.gguf",), ("tiny.gguf", "--key", "typo")):
        done = place.run("serve", *arguments, "--port", "0", "--keyring", str(elsewhere))
        assert done.returncode == 2
        assert not elsewhere.parent.exists()
    before = place.keyring.read_bytes()
    for arguments, message in cases.items():
        assert message in place.refused(*arguments)
    assert place.keyring.read_bytes() == before


def test_a_busy_port_is_told_at_once(place: Place) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = place.run("serve", "tiny.gguf", "--port", port)
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in done.stderr
    # Nothing was begun: not even a keyring.
    assert not place.keyring.exists()


@pytest.mark.parametrize(
    ("keys", "arguments", "message"),
    [
        ({"old": {"state": KeyState.VERIFY_ONLY}}, (), "no key that may mark now"),
        ({"old": {"state": KeyState.VERIFY_ONLY}}, ("--key", "old"), "is verify_only"),
        ({"old": {"state": KeyState.REVOKED}}, ("--key", "old"), "is revoked"),
        ({"a": {}, "b": {}}, (), "several keys may mark: a, b; choose one with --key"),
        ({"a": {"tokenizer": ELSEWHERE}}, (), "is bound to tokenizer 'other'"),
        (
            {"v": {"scheme": "vllm-gumbel", "key": WatermarkKey.from_integer(99)}},
            ("--key", "v"),
            "scheme vllm-gumbel, which this engine only detects",
        ),
        ({"known": {"key": WatermarkKey.from_hex("00" * 32)}}, (), "stands in public documents"),
    ],
)
def test_without_a_usable_key_nothing_is_served(
    place: Place, keys: dict[str, dict[str, Any]], arguments: tuple[str, ...], message: str
) -> None:
    for name, options in keys.items():
        place.add_key(name, **options)
    assert message in place.refused("tiny.gguf", *arguments)
