import copy
import json
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tokenmark.watermark import keyring as keyring_module
from tokenmark.watermark import sealing
from tokenmark.watermark.errors import (
    KeyMaterialError,
    KeyringError,
    KeyStateError,
    UnknownKeyError,
)
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import KeyEntry, KeyState
from tokenmark.watermark.keyring import KeyringFile, PassphraseUse, Protection
from tokenmark.watermark.private_file import locked
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.tokenizers import TokenizerReference

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = TokenizerReference(id="one", sha256="1" * 64)
TWO = TokenizerReference(id="two", sha256="2" * 64)


@pytest.fixture(autouse=True)
def cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_N", 2**4)


@dataclass
class Person:
    """Answers when asked for a passphrase, and remembers for what."""

    passphrase: str = "correct horse"  # noqa: S105 - of a test
    asked: list[PassphraseUse] = field(default_factory=list)

    def __call__(self, use: PassphraseUse) -> str:
        self.asked.append(use)
        return self.passphrase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "keyring.json"


def entry_of(key: WatermarkKey, name: str, scheme: str = "tm1") -> KeyEntry:
    return KeyEntry(name=name, key_id=key.key_id, scheme=Scheme(name=scheme), created=NOON)


def add(
    file: KeyringFile, name: str = "a", protection: Protection = Protection.PASSPHRASE
) -> WatermarkKey:
    key = WatermarkKey.generate()
    file.add(entry_of(key, name), key, protection=protection)
    return key


def sealed(path: Path, person: Person | None = None) -> KeyringFile:
    return KeyringFile(path, passphrase=Person() if person is None else person)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("protection", list(Protection))
def test_keys_of_every_form_come_back(path: Path, protection: Protection) -> None:
    file = sealed(path)
    native, integer = WatermarkKey.generate(), WatermarkKey.from_integer(2**63 + 5)
    file.add(entry_of(native, "a"), native, protection=protection)
    file.add(entry_of(integer, "b", "vllm-gumbel"), integer, protection=protection)
    keyring = sealed(path).read()
    assert keyring.protection is protection
    assert keyring.entries == (entry_of(native, "a"), entry_of(integer, "b", "vllm-gumbel"))
    assert keyring.get("b") == entry_of(integer, "b", "vllm-gumbel")
    for key, name in ((native, "a"), (integer, "b")):
        assert keyring.key(name) == key
        assert keyring.key(name).key_id == key.key_id


def test_secrets_are_in_the_file_in_clear_only_when_asked(path: Path, tmp_path: Path) -> None:
    key = add(sealed(path))
    assert key.reveal_text() not in path.read_text()
    clear = tmp_path / "clear.json"
    key = add(KeyringFile(clear), protection=Protection.NONE)
    assert key.reveal_text() in clear.read_text()


def test_the_passphrase_is_asked_for_once_and_late(path: Path) -> None:
    add(sealed(path))
    person = Person()
    file = sealed(path, person)
    keyring = file.read()
    keyring.get("a")
    file.bind_tokenizer("a", ONE)
    file.set_state("a", KeyState.VERIFY_ONLY)
    assert person.asked == []
    keyring.key("a")
    keyring.key("a")
    file.read().key("a")
    add(file, "b")
    assert person.asked == [PassphraseUse.OPEN]


def test_a_new_file_asks_for_a_new_passphrase(path: Path) -> None:
    person = Person()
    file = sealed(path, person)
    add(file)
    file.read().key("a")
    assert person.asked == [PassphraseUse.CHOOSE]


def test_clear_secrets_ask_nobody(path: Path) -> None:
    person = Person()
    file = sealed(path, person)
    key = add(file, protection=Protection.NONE)
    assert file.read().key("a") == key
    assert person.asked == []


def test_a_wrong_passphrase_neither_opens_nor_adds(path: Path) -> None:
    add(sealed(path))
    before = path.read_bytes()
    file = sealed(path, Person("wrong"))
    with pytest.raises(KeyringError, match=r"not the passphrase of .*keyring\.json"):
        file.read().key("a")
    with pytest.raises(KeyringError, match=r"not the passphrase of .*keyring\.json"):
        add(file, "b")
    assert path.read_bytes() == before


def test_nobody_to_ask_is_told(path: Path) -> None:
    with pytest.raises(KeyringError, match="need a passphrase, and none was given"):
        add(KeyringFile(path))
    assert not path.exists()
    add(sealed(path))
    with pytest.raises(KeyringError, match="need a passphrase, and none was given"):
        KeyringFile(path).read().key("a")


def test_an_exchanged_file_asks_again(path: Path) -> None:
    person = Person()
    file = sealed(path, person)
    add(file)
    path.unlink()
    key = add(sealed(path, Person("other")))
    person.passphrase = "other"  # noqa: S105 - of a test
    assert file.read().key("a") == key
    assert person.asked == [PassphraseUse.CHOOSE, PassphraseUse.OPEN]


def test_a_file_that_another_process_made_meanwhile_is_added_to(path: Path) -> None:
    class Slow(Person):
        def __call__(self, use: PassphraseUse) -> str:
            if use is PassphraseUse.CHOOSE:
                add(sealed(path), "theirs")
            return super().__call__(use)

    person = Slow()
    key = add(sealed(path, person), "ours")
    keyring = sealed(path).read()
    assert [entry.name for entry in keyring.entries] == ["theirs", "ours"]
    assert keyring.key("ours") == key
    assert person.asked == [PassphraseUse.CHOOSE, PassphraseUse.OPEN]


def test_the_two_protections_do_not_mix(path: Path, tmp_path: Path) -> None:
    person = Person()
    add(sealed(path))
    with pytest.raises(KeyringError, match="takes none in clear; leave out --no-passphrase"):
        add(sealed(path, person), "b", Protection.NONE)
    clear = tmp_path / "clear.json"
    add(sealed(clear), protection=Protection.NONE)
    with pytest.raises(KeyringError, match="takes none under a passphrase; add --no-passphrase"):
        add(sealed(clear, person), "b")
    assert person.asked == []


def test_a_taken_name_or_key_is_refused_before_anybody_is_asked(path: Path) -> None:
    key = add(sealed(path))
    person = Person()
    with pytest.raises(KeyringError, match="a key named 'a' already"):
        add(sealed(path, person))
    with pytest.raises(KeyringError, match="is there already, as 'a'"):
        sealed(path, person).add(entry_of(key, "b"), key)
    assert person.asked == []


def test_a_key_must_be_that_of_its_entry_and_scheme(path: Path) -> None:
    key, other = WatermarkKey.generate(), WatermarkKey.generate()
    with pytest.raises(KeyMaterialError, match=f"entry is of key_id {key.key_id}"):
        sealed(path).add(entry_of(key, "a"), other)
    with pytest.raises(KeyMaterialError, match="a secret of scheme vllm-gumbel is an integer"):
        sealed(path).add(entry_of(key, "a", "vllm-gumbel"), key)
    assert not path.exists()


def test_a_missing_file_is_told_with_the_way_out(path: Path) -> None:
    uses: list[Callable[[], object]] = [
        lambda: sealed(path).read(),
        lambda: sealed(path).set_state("a", KeyState.REVOKED),
        lambda: sealed(path).bind_tokenizer("a", ONE),
    ]
    for use in uses:
        with pytest.raises(
            KeyringError, match=r"no key file .*keyring\.json; .*`wm-keys new NAME`"
        ):
            use()
    assert not path.parent.exists()


def test_an_unknown_name_is_told_with_a_few_that_exist(path: Path) -> None:
    file = KeyringFile(path)
    for name in "abcdefg":
        add(file, name, Protection.NONE)
    uses: list[Callable[[], object]] = [
        lambda: file.read().get("z"),
        lambda: file.read().key("z"),
        lambda: file.set_state("z", KeyState.REVOKED),
        lambda: file.bind_tokenizer("z", ONE),
    ]
    for use in uses:
        with pytest.raises(UnknownKeyError, match="named 'z'; it has a, b, c, d, e and 2 more"):
            use()
    edit(path, lambda document: document["keys"].clear())
    with pytest.raises(UnknownKeyError, match="it has no key at all"):
        file.read().get("z")


@pytest.mark.parametrize("end", ["0", "1", "g", ""])
@pytest.mark.parametrize("protection", list(Protection))
def test_an_altered_secret_is_refused(path: Path, protection: Protection, end: str) -> None:
    key = add(sealed(path), protection=protection)

    def alter(document: dict[str, Any]) -> None:
        secret = document["keys"][0]["secret"]
        document["keys"][0]["secret"] = secret[:-1] + (end if end != secret[-1] else "f")

    edit(path, alter)
    with pytest.raises(KeyringError, match="secret of key 'a' was altered") as caught:
        sealed(path).read().key("a")
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert key.reveal_text()[:40] not in "".join(shown.format())


@pytest.mark.parametrize("secret", ["", "zz", "0" * 55, "00" * 28, "\ud800", "é"])
@pytest.mark.parametrize("protection", list(Protection))
def test_a_secret_that_is_none_is_refused(path: Path, protection: Protection, secret: str) -> None:
    add(sealed(path), protection=protection)
    edit(path, lambda document: document["keys"][0].update(secret=secret))
    with pytest.raises(KeyringError, match="secret of key 'a' was altered"):
        sealed(path).read().key("a")


@pytest.mark.parametrize("protection", list(Protection))
def test_secrets_cannot_change_places(path: Path, protection: Protection) -> None:
    add(sealed(path), "a", protection)
    add(sealed(path), "b", protection)

    def swap(document: dict[str, Any]) -> None:
        one, two = document["keys"]
        one["secret"], two["secret"] = two["secret"], one["secret"]

    edit(path, swap)
    for name in "ab":
        with pytest.raises(KeyringError, match=f"secret of key '{name}' was altered"):
            sealed(path).read().key(name)


def test_a_sealed_secret_cannot_change_its_scheme(path: Path) -> None:
    key = WatermarkKey.from_integer(2**63 + 5)
    sealed(path).add(entry_of(key, "a", "vllm-gumbel"), key)
    edit(path, lambda document: document["keys"][0].update(scheme="tm1"))
    with pytest.raises(KeyringError, match="secret of key 'a' was altered"):
        sealed(path).read().key("a")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "broken JSON"),
        (b"\x00\xff", "not UTF-8"),
        (b"{}", "it is no key file"),
        (b'{"format": "tokenmark-keyring", "version": 2}', "newer version"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(path: Path, content: bytes, reason: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for use in (sealed(path).read, lambda: add(sealed(path))):
        with pytest.raises(KeyringError, match=rf"keyring\.json: .*{reason}"):
            use()
    assert path.read_bytes() == content


def test_a_file_beyond_all_bounds_is_not_read(path: Path) -> None:
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(KeyringError, match="regular file of at most 64 MiB"):
        sealed(path).read()


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_clear_secrets_that_others_can_read_are_refused(path: Path, tmp_path: Path) -> None:
    file = sealed(path)
    add(file, protection=Protection.NONE)
    path.chmod(0o644)
    uses: list[Callable[[], object]] = [
        file.read,
        lambda: add(file, "b", Protection.NONE),
        lambda: file.set_state("a", KeyState.REVOKED),
    ]
    for use in uses:
        with pytest.raises(KeyringError, match="mode 0644 lets others at them; run `chmod 600 "):
            use()
    other = tmp_path / "sealed.json"
    key = add(sealed(other))
    other.chmod(0o644)
    assert sealed(other).read().key("a") == key


def test_a_revoked_key_stays_revoked_and_closed(path: Path) -> None:
    file = sealed(path)
    add(file)
    assert file.set_state("a", KeyState.REVOKED).state is KeyState.REVOKED
    assert file.read().get("a").state is KeyState.REVOKED
    with pytest.raises(KeyStateError, match="revoked"):
        file.read().key("a")
    for state in (KeyState.ACTIVE, KeyState.VERIFY_ONLY):
        with pytest.raises(KeyStateError, match="which is final"):
            file.set_state("a", state)
    assert file.set_state("a", KeyState.REVOKED).state is KeyState.REVOKED


def test_a_retired_key_may_come_back(path: Path) -> None:
    file = sealed(path)
    key = add(file)
    file.set_state("a", KeyState.VERIFY_ONLY)
    assert file.read().key("a") == key
    assert file.set_state("a", KeyState.ACTIVE).state is KeyState.ACTIVE


def test_a_key_is_bound_to_one_tokenizer(path: Path) -> None:
    file = sealed(path)
    key = add(file)
    assert file.bind_tokenizer("a", ONE).tokenizer == ONE
    before = path.read_bytes()
    same_bytes = TokenizerReference(id="another-name", sha256=ONE.sha256)
    assert file.bind_tokenizer("a", same_bytes).tokenizer == ONE
    with pytest.raises(KeyStateError, match="'a' is bound to tokenizer 'one'"):
        file.bind_tokenizer("a", TWO)
    assert path.read_bytes() == before
    assert file.read().key("a") == key


def test_a_change_leaves_the_other_keys_alone(path: Path) -> None:
    file = sealed(path)
    keys = {name: add(file, name) for name in "abc"}
    before = file.read()
    file.set_state("b", KeyState.VERIFY_ONLY)
    after = sealed(path).read()
    assert [entry.name for entry in after.entries] == ["a", "b", "c"]
    assert [after.get(name) for name in "ac"] == [before.get(name) for name in "ac"]
    assert all(after.key(name) == keys[name] for name in "abc")


@pytest.mark.skipif(os.name != "posix", reason="links need a privilege elsewhere")
def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    file = sealed(link)
    add(file, "a")
    add(file, "b")
    assert link.is_symlink()
    assert not path.is_symlink()
    assert len(sealed(path).read().entries) == 2
    assert path.with_name("keyring.json.lock").exists()


def test_a_held_lock_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring_module, "_LOCK_TIMEOUT_S", 0.01)
    add(sealed(path))
    with (
        locked(path, timeout_s=1),
        pytest.raises(KeyringError, match=r"keyring\.json\.lock is held by another process"),
    ):
        add(sealed(path), "b")


def test_no_view_of_a_keyring_shows_a_secret(path: Path) -> None:
    file = sealed(path, Person("hunter2"))
    key = add(file, protection=Protection.NONE)
    keyring = file.read()
    for text in (repr(keyring), str(keyring), f"{keyring}", repr(keyring.entries), repr(file)):
        assert key.reveal_text() not in text
        assert "hunter2" not in text
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            take(keyring)


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from tokenmark.watermark import sealing
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import KeyEntry
from tokenmark.watermark.keyring import KeyringFile, Protection
from tokenmark.watermark.scheme import Scheme

path, prefix, count, protection = sys.argv[1:]
sealing.SCRYPT_N = 2**4
file = KeyringFile(Path(path), passphrase=lambda _use: "correct horse")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(count)):
    key = WatermarkKey.generate()
    entry = KeyEntry(
        name=f"{prefix}{number}",
        key_id=key.key_id,
        scheme=Scheme(name="tm1"),
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
    file.add(entry, key, protection=Protection(protection))
"""


def writer(path: Path, prefix: str, count: int, protection: Protection) -> "subprocess.Popen[str]":
    """A process that has started, and adds keys once it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), prefix, str(count), protection.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_that_add_at_once_lose_nothing(path: Path) -> None:
    processes = [writer(path, prefix, 20, Protection.PASSPHRASE) for prefix in ("x", "y")]
    for process in processes:
        start(process)
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    keyring = sealed(path).read()
    expected = {f"{prefix}{number}" for prefix in ("x", "y") for number in range(20)}
    assert {entry.name for entry in keyring.entries} == expected
    assert len(keyring.entries) == 40
    assert {keyring.key(name).key_id for name in expected} == {e.key_id for e in keyring.entries}


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(path: Path) -> None:
    kept = add(KeyringFile(path), "first", Protection.NONE)
    for delay_s in (0.003, 0.017, 0.05):
        before = path.read_bytes()
        n_before = len(KeyringFile(path).read().entries)
        process = writer(path, f"{n_before}-", 10_000, Protection.NONE)
        start(process)
        while path.read_bytes() == before:
            assert process.poll() is None
        time.sleep(delay_s)
        process.kill()
        process.communicate(timeout=60)
        keyring = KeyringFile(path).read()
        assert len(keyring.entries) > n_before
        assert keyring.key("first") == kept
        # The dead writer's lock is free and its unfinished file is no obstacle.
        add(KeyringFile(path), f"after-{n_before}", Protection.NONE)
    names = {child.name for child in path.parent.iterdir()}
    assert names == {"keyring.json", "keyring.json.lock"}
