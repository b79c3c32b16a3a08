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
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import demo_path
from tests.tiny_gguf import write_gguf
from tokenmark.eval.commands import run_command, running_server
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import KeyEntry, KeyState
from tokenmark.watermark.keyring import KeyringFile, Protection
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.tokenizers import TokenizerReference

pytestmark = pytest.mark.slow

CALL = "import sys; from tokenmark.cli.{} import main; sys.exit(main())"
PARTNER = WatermarkKey.from_integer(0x5EED_0F_7E575)
ELSEWHERE = TokenizerReference("other", "ab" * 32)


class Place:
    """A folder with a model file and a keyring, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
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


@contextmanager
def serving(place: Place, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server of the tiny model, ready, and its process."""
    port = free_port()
    with subprocess.Popen(
        place.command("serve", "tiny.gguf", "--port", str(port), *arguments),
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
        try:
            yield url, process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> str:
    """What a server has said on stderr, after it was asked to end and did."""
    process.send_signal(signal.SIGTERM)
    _, talk = process.communicate(timeout=30)
    assert process.returncode == 0
    return talk


def ask(url: str, **fields: object) -> Any:  # noqa: ANN401 - whatever is answered
    body = {"model": "tiny", "prompt": "the", **fields}
    request = urllib.request.Request(  # noqa: S310 - loopback HTTP
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - loopback HTTP
        return json.load(response)


def test_a_first_start_makes_a_key_and_marks_with_it(place: Place) -> None:
    with serving(place) as (url, process):
        answer = ask(url, max_tokens=110, ignore_eos=True)
        talk = end(process)
    entry = KeyringFile(place.keyring).read().entries[0]
    assert entry.tokenizer is not None
    assert answer["watermark"]["applied"]
    assert answer["watermark"]["key_id"] == entry.key_id
    assert place.keyring.stat().st_mode & 0o777 == 0o600
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


def test_a_vllm_key_marks_where_it_is_named(place: Place) -> None:
    place.add_key("partner", key=PARTNER, scheme="vllm-gumbel")
    place.add_key("own")
    with serving(place, "--key", "partner") as (url, process):
        mark = ask(url, max_tokens=110, ignore_eos=True)["watermark"]
        talk = end(process)
    assert (mark["scheme"], mark["key_id"]) == ("vllm-gumbel", PARTNER.key_id)
    assert mark["applied"]
    assert mark["marked_tokens"] > 60
    assert f"scheme vllm-gumbel, key {PARTNER.key_id}" in talk


@pytest.mark.weights
def test_what_the_demo_model_writes_with_a_vllm_key_is_recognised(tmp_path: Path) -> None:
    """False-alarm rate 2e-6: the level, for each of the two texts."""
    demo_path()
    own, other = Place(tmp_path / "own"), Place(tmp_path / "other")
    own.add_key("partner", key=PARTNER, scheme="vllm-gumbel")
    other.add_key("other", key=WatermarkKey.from_integer(99), scheme="vllm-gumbel")
    with running_server(own.keyring, "--key", "partner", is_quiet=True) as url:
        question = "Describe a market in an old harbour town on a summer morning."
        answers = ask(
            url, model="demo", prompt=question, n=2, min_tokens=200, max_tokens=280, ignore_eos=True
        )
    texts = [choice["text"] for choice in answers["choices"]]
    assert texts[0] != texts[1]
    for text in texts:
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        verdicts = []
        for place in (own, other):
            options = ("--keyring", str(place.keyring), "--tokenizer", "demo")
            said = run_command(
                "detect", *options, "--level", "1e-6", "--json", str(tmp_path / "text.txt")
            )
            verdicts.append(json.loads(said)["verdict"])
        assert verdicts == ["watermarked", "not_detected"]


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
        (
            {"v": {"scheme": "vllm-gumbel", "key": PARTNER}},
            (),
            "no key of scheme tm1 may mark now; of other schemes there are: v; choose one",
        ),
        ({"a": {"tokenizer": ELSEWHERE}}, (), "is bound to tokenizer 'other'"),
        (
            {"s": {"scheme": "vllm-dual", "key": PARTNER}},
            ("--key", "s"),
            "of scheme vllm-dual, which this engine only detects",
        ),
        ({"s": {"scheme": "vllm-dual", "key": PARTNER}}, (), "no key that may mark now"),
        (
            {"old": {"scheme": "vllm-gumbel", "key": PARTNER, "state": KeyState.VERIFY_ONLY}},
            (),
            "no key that may mark now",
        ),
        (
            {"known": {"scheme": "vllm-gumbel", "key": WatermarkKey.from_integer(42)}},
            ("--key", "known"),
            "stands in public documents",
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
