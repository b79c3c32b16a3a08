import hashlib
import os
from pathlib import Path

import pytest

from tokenmark.watermark import tokenizers
from tokenmark.watermark.errors import TokenizerError
from tokenmark.watermark.locations import (
    cache_folder,
    config_folder,
    default_keyring_path,
    tokenizer_path,
)
from tokenmark.watermark.tokenizers import (
    ALIASES,
    TokenizerReference,
    fingerprint,
    reference_of,
    resolve_tokenizer,
    store_tokenizer,
)

DATA = b'{"version":"1.0"}'
SHA256 = hashlib.sha256(DATA).hexdigest()
DERIVED_ID = f"sha256-{SHA256[:16]}"


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> str:
    """An alias that stands for DATA."""
    monkeypatch.setattr(tokenizers, "ALIASES", {"demo": SHA256})
    return "demo"


def test_reference_follows_from_the_bytes_alone(alias: str) -> None:
    assert fingerprint(DATA) == SHA256
    assert reference_of(DATA) == TokenizerReference(alias, SHA256)
    other = DATA + b"\n"
    assert reference_of(other).id == f"sha256-{fingerprint(other)[:16]}"


@pytest.mark.parametrize(
    "name", ["", "Demo", "/home/me/tokenizer.json", "a" * 65, "a b", "-a", "a\n"]
)
def test_ids_are_plain_names(name: str) -> None:
    with pytest.raises(TokenizerError, match="tokenizer id has 1 to 64"):
        TokenizerReference(name, SHA256)


@pytest.mark.parametrize("sha256", ["", SHA256[:-1], SHA256.upper(), SHA256 + "\n", "g" * 64])
def test_fingerprints_are_64_hexadecimal_digits(sha256: str) -> None:
    with pytest.raises(TokenizerError, match="64 lowercase hexadecimal digits"):
        TokenizerReference("demo", sha256)


def test_aliases_have_valid_references() -> None:
    for name, sha256 in ALIASES.items():
        assert TokenizerReference(name, sha256).id == name


def test_stored_files_are_found_by_id(tmp_path: Path) -> None:
    path, reference = store_tokenizer(DATA, cache=tmp_path)
    assert path == tmp_path / "tokenizers" / f"{DERIVED_ID}.json"
    assert path.read_bytes() == DATA
    assert resolve_tokenizer(DERIVED_ID, cache=tmp_path) == (path, reference)
    assert list(path.parent.iterdir()) == [path]


def test_stored_files_are_found_by_alias(tmp_path: Path, alias: str) -> None:
    path, reference = store_tokenizer(DATA, cache=tmp_path)
    assert path.name == "demo.json"
    assert resolve_tokenizer(alias, cache=tmp_path) == (path, reference)


def test_a_good_file_is_not_written_again(tmp_path: Path) -> None:
    path, _ = store_tokenizer(DATA, cache=tmp_path)
    os.utime(path, (0, 0))
    store_tokenizer(DATA, cache=tmp_path)
    assert path.stat().st_mtime == 0


def test_a_broken_file_is_replaced(tmp_path: Path) -> None:
    path, _ = store_tokenizer(DATA, cache=tmp_path)
    path.write_bytes(b"{")
    store_tokenizer(DATA, cache=tmp_path)
    assert path.read_bytes() == DATA


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(TokenizerError, match="cannot be written: No space left on device; free"):
        store_tokenizer(DATA, cache=tmp_path)
    assert list((tmp_path / "tokenizers").iterdir()) == []


def test_a_path_is_read_wherever_it_is(tmp_path: Path, alias: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}")
    found, reference = resolve_tokenizer(str(path))
    assert found == path
    assert reference == reference_of(b"{}")
    path.write_bytes(DATA)
    assert resolve_tokenizer(str(path))[1].id == alias


def test_an_alias_means_the_cache_and_a_path_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_bytes(DATA)
    with pytest.raises(TokenizerError, match="'demo' is not in the cache"):
        resolve_tokenizer("demo", cache=tmp_path)
    assert resolve_tokenizer("./demo", cache=tmp_path)[1].sha256 == SHA256


@pytest.mark.parametrize(("name", "model"), [("demo", "demo"), (DERIVED_ID, "MODEL.gguf")])
def test_an_empty_cache_names_the_way_out(tmp_path: Path, name: str, model: str) -> None:
    with pytest.raises(
        TokenizerError,
        match=f"tokenizer '{name}' is not in the cache; run `wm-serve {model}` once on this"
        " machine or give --tokenizer FILE",
    ):
        resolve_tokenizer(name, cache=tmp_path)


@pytest.mark.parametrize("name", ["demo", DERIVED_ID])
def test_a_changed_file_in_the_cache_is_refused(tmp_path: Path, name: str) -> None:
    path = tokenizer_path(name, cache=tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"[]")
    with pytest.raises(TokenizerError, match=f"'{name}'.*{fingerprint(b'[]')}.*delete it"):
        resolve_tokenizer(name, cache=tmp_path)


@pytest.mark.parametrize("name", ["absent.json", ".", "demon"])
def test_unreadable_paths_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError, match=r"cannot be read: .*one of the aliases: demo"):
        resolve_tokenizer(name)


@pytest.mark.skipif(os.name != "posix", reason="the variables are those of POSIX desktops")
def test_folders_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "k"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (cache_folder(), config_folder()):
        assert folder.is_relative_to(tmp_path)
        assert folder.name == "tokenmark"
        assert not folder.exists()
    assert default_keyring_path() == config_folder() / "keyring.json"
    assert tokenizer_path("demo") == cache_folder() / "tokenizers" / "demo.json"
    with pytest.raises(TokenizerError, match="not in the cache"):
        resolve_tokenizer("demo")
