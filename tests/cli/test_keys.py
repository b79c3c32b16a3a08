import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.tiny_engine import tiny_tokenizer_json
from tokenmark.cli import keys
from tokenmark.watermark import sealing
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import ENTRY_FIELDS
from tokenmark.watermark.keyring import KeyringFile
from tokenmark.watermark.tokenizers import reference_of, resolve_tokenizer

SECRET = "5ec3e7a1" * 8


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_N", 2**4)
    monkeypatch.setenv("TOKENMARK_PASSPHRASE", "correct horse")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "keyring.json"


def wm_keys(path: Path, *arguments: str, typed: str | bytes = "") -> Result:
    return CliRunner().invoke(keys.main, [*arguments, "--keyring", str(path)], input=typed)


def ran(path: Path, *arguments: str, typed: str = "") -> Result:
    result = wm_keys(path, *arguments, typed=typed)
    assert result.exit_code == 0, result.output
    return result


def as_json(path: Path, *arguments: str, typed: str = "") -> Any:  # noqa: ANN401 - whatever is printed
    return json.loads(ran(path, *arguments, "--json", typed=typed).stdout)


def refused(path: Path, *arguments: str, typed: str | bytes = "") -> str:
    result = wm_keys(path, *arguments, typed=typed)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    return result.stderr


def stored_key(path: Path, name: str) -> WatermarkKey:
    return KeyringFile(path, passphrase=lambda _use: "correct horse").read().key(name)


def test_a_new_key_is_stored_sealed_and_shown_without_its_secret(path: Path) -> None:
    result = ran(path, "new", "demo", "--context-width", "3")
    key = stored_key(path, "demo")
    for shown in (result.output, path.read_text(), ran(path, "show", "demo").output):
        assert key.reveal_text() not in shown
        assert key.key_id in shown
    assert f"stored in {path}" in result.stderr
    assert "bound to no tokenizer" in result.stderr


def test_json_has_the_documented_fields(path: Path) -> None:
    dates = ["--not-before", "2026-01-31", "--not-after", "2027-01-31T12:00:00Z"]
    entry = as_json(path, "new", "demo", "--context-width", "3", *dates)
    assert set(entry) == ENTRY_FIELDS
    expected = {"name": "demo", "scheme": "tm1", "context_width": 3, "payload": None}
    expected |= {"state": "active", "tokenizer": None}
    expected |= {"not_before": "2026-01-31T00:00:00Z", "not_after": "2027-01-31T12:00:00Z"}
    assert {name: entry[name] for name in expected} == expected
    assert as_json(path, "show", "demo") == entry
    listed = as_json(path, "list")
    assert listed == {"keyring": str(path), "protection": "passphrase", "keys": [entry]}
    assert as_json(path, "revoke", "demo") == {**entry, "state": "revoked"}
    assert as_json(path, "show", "demo")["state"] == "revoked"


def test_two_new_keys_differ(path: Path) -> None:
    assert as_json(path, "new", "a")["key_id"] != as_json(path, "new", "b")["key_id"]


@pytest.mark.parametrize(("scheme", "width"), [("sglang-gumbel", 4), ("textseal-gumbel", 1)])
def test_the_default_context_is_that_of_the_scheme(path: Path, scheme: str, width: int) -> None:
    shown = as_json(path, "import", "k", "--scheme", scheme, typed="987654321")
    assert shown["context_width"] == width


def test_a_scheme_with_parameters_is_stored_and_shown_with_them(path: Path) -> None:
    stated = ("--parameter", "alpha=0.25")
    shown = as_json(path, "import", "k", "--scheme", "vllm-dual", *stated, typed="987654321")
    assert shown["parameters"] == {"alpha": 0.25}
    assert as_json(path, "show", "k") == shown
    assert "alpha=0.25" in ran(path, "show", "k").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parameter", "alpha"), "'alpha' is not of the form NAME=VALUE"),
        (("--parameter", "alpha=x"), "is not of the form NAME=VALUE"),
        (("--parameter", "alpha=2"), "alpha must be a number from 0 to 1, got 2"),
        (("--parameter", "alpha=nan"), "alpha must be a number from 0 to 1, got nan"),
        (("--parameter", "beta=0"), "has no parameter 'beta'; it has alpha"),
        (("--parameter", "alpha=0", "--parameter", "alpha=1"), "alpha is given twice"),
        (("--context-width", "65"), "context_width of vllm-dual must be 1..64, got 65"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    path: Path, arguments: tuple[str, ...], message: str
) -> None:
    said = refused(path, "import", "k", "--scheme", "vllm-dual", *arguments, typed="987654321")
    assert message in said
    assert not path.exists()


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [
        ("sglang-dual", "0x1234abcd, 99887766"),
        ("textseal-gumbel", "-5"),
        ("synthid-iv", "654,400,-836"),
    ],
)
def test_secrets_of_several_or_signed_integers_are_kept(
    path: Path, scheme: str, secret: str
) -> None:
    as_json(path, "import", "k", "--scheme", scheme, typed=secret)
    values = [int(part, 0) for part in secret.replace(" ", "").split(",")]
    assert stored_key(path, "k").reveal_integers() == tuple(values)


def test_keys_that_a_scheme_cannot_tell_apart_are_refused_at_once(path: Path) -> None:
    said = refused(path, "import", "k", "--scheme", "synthid-table-cpu", typed="5,65541")
    assert "count modulo 65536, and two of these are equal so" in said
    assert not path.exists()


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [
        ("sglang-dual", "12345"),
        ("sglang-gumbel", "12345,6"),
        ("vllm-gumbel", "-12345"),
        ("textseal-gumbel", "9223372036854775808"),
        ("synthid-iv", ",".join(["5"] * 65)),
        ("synthid-iv", "1,,2"),
    ],
)
def test_secrets_of_another_form_are_refused_unseen(path: Path, scheme: str, secret: str) -> None:
    said = refused(path, "import", "k", "--scheme", scheme, typed=secret)
    assert "this scheme's secret is" in said
    assert secret not in said


def test_a_list_is_a_table(path: Path) -> None:
    ran(path, "new", "a")
    ran(path, "new", "b")
    ran(path, "revoke", "b")
    lines = [line.split() for line in ran(path, "list").stdout.splitlines()]
    assert lines[0] == ["name", "key_id", "scheme", "state", "tokenizer", "created"]
    assert [(line[0], line[2], line[3], line[4]) for line in lines[1:]] == [
        ("a", "tm1", "active", "-"),
        ("b", "tm1", "revoked", "-"),
    ]


def test_a_key_is_bound_to_a_tokenizer_file_that_is_kept(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer, data = tmp_path / "tokenizer.json", tiny_tokenizer_json()
    tokenizer.write_bytes(data)
    result = ran(path, "new", "demo", "--tokenizer", str(tokenizer))
    reference = reference_of(data)
    assert reference.id in result.stdout
    assert "tokenizer" not in result.stderr
    assert as_json(path, "show", "demo")["tokenizer"]["sha256"] == reference.sha256
    assert str(tmp_path) not in path.read_text()
    # By its id the detector finds the file again.
    assert resolve_tokenizer(reference.id)[0].read_bytes() == data
    assert "missing" in refused(path, "new", "b", "--tokenizer", str(tmp_path / "missing"))
    tokenizer.write_bytes(b"{}")
    assert "not a tokenizer file" in refused(path, "new", "b", "--tokenizer", str(tokenizer))


@pytest.mark.parametrize("typed", [SECRET, f"  {SECRET.upper()}\n\n"])
def test_a_native_key_is_imported(path: Path, typed: str) -> None:
    result = ran(path, "import", "mine", "--scheme", "tm1", typed=typed)
    assert SECRET not in result.output.lower()
    assert stored_key(path, "mine") == WatermarkKey.from_hex(SECRET)


@pytest.mark.parametrize("typed", ["81985529216486895", "0x0123456789abcDEF\n"])
def test_an_integer_key_is_imported(
    path: Path, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatermarkKey, "is_published", lambda _self: False)
    result = ran(path, "import", "mine", "--scheme", "vllm-gumbel", typed=typed)
    assert "0123456789abcdef" not in result.output.lower()
    assert "81985529216486895" not in result.output
    assert stored_key(path, "mine") == WatermarkKey.from_integer(0x0123456789ABCDEF)
    assert as_json(path, "show", "mine")["key_id"] == stored_key(path, "mine").key_id


@pytest.mark.parametrize(("scheme", "secret"), [("tm1", "00" * 32), ("vllm-gumbel", "42")])
def test_a_published_key_is_not_imported(path: Path, scheme: str, secret: str) -> None:
    said = refused(path, "import", "mine", "--scheme", scheme, typed=secret)
    assert "stands in public documentation or test vectors" in said
    assert not path.exists()


@pytest.mark.parametrize("scheme", ["tm1", "vllm-gumbel"])
@pytest.mark.parametrize(
    "typed", ["", "hunter2", SECRET[:-1] + "g", f"{SECRET} {SECRET}", b"hunter2\xff", "7" * 10_000]
)
def test_what_is_no_secret_is_refused_and_not_shown(
    path: Path, scheme: str, typed: str | bytes
) -> None:
    said = refused(path, "import", "mine", "--scheme", scheme, typed=typed)
    assert "this scheme's secret is" in said
    for part in ("hunter2", SECRET[:8], "7777"):
        assert part not in said
    assert not path.exists()


def test_an_unknown_scheme_is_told_with_those_that_exist(path: Path) -> None:
    said = refused(path, "import", "mine", "--scheme", "tm9", typed=SECRET)
    assert "vllm-gumbel" in said


def test_a_secret_is_typed_unseen_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "prompt_hidden", lambda *_args, **_options: SECRET)

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    assert keys._read_secret() == SECRET


def test_clear_secrets_need_no_passphrase_and_say_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENMARK_PASSPHRASE")
    result = ran(path, "new", "demo", "--no-passphrase")
    assert "in clear" in result.stderr
    key = KeyringFile(path).read().key("demo")
    assert key.reveal_text() in path.read_text()
    for shown in (
        result,
        ran(path, "list"),
        ran(path, "show", "demo"),
        ran(path, "list", "--json"),
    ):
        assert key.reveal_text() not in shown.output
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


def test_public_commands_need_no_passphrase(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(path, "new", "demo")
    monkeypatch.delenv("TOKENMARK_PASSPHRASE")
    for arguments in (["list"], ["show", "demo"], ["revoke", "demo"]):
        ran(path, *arguments)


def test_a_passphrase_file_is_read(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("another horse\n")
    file.chmod(0o600)
    ran(path, "new", "a", "--passphrase-file", str(file))
    assert "this is not the passphrase" in refused(path, "new", "b")
    ran(path, "new", "b", "--passphrase-file", str(file))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "nobody"], "has no key named 'nobody'; it has demo"),
        (["revoke", "nobody"], "has no key named 'nobody'"),
        (["new", "demo"], "a key named 'demo' already"),
        (["new", "a b"], "name has 1 to 64"),
        (["new", "b", "--context-width", "9"], "context_width of tm1 must be 1..8, got 9"),
        (["new", "b", "--no-passphrase"], "takes none in clear"),
        (["new", "b", "--not-after", "tomorrow"], "does not match"),
        (["new", "b", "--not-before", "2026-01-02", "--not-after", "2026-01-02"], "later than"),
        (["new", "b", "--tokenizer", "./nowhere.json"], "cannot be read"),
        (["import", "b"], "Missing option '--scheme'"),
    ],
)
def test_wrong_use_is_refused_with_the_reason(
    path: Path, arguments: list[str], reason: str
) -> None:
    ran(path, "new", "demo")
    before = path.read_bytes()
    assert reason in refused(path, *arguments)
    assert path.read_bytes() == before


def test_an_empty_passphrase_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMARK_PASSPHRASE", "")
    assert "passphrase is empty" in refused(path, "new", "demo")
    assert not path.exists()


def test_a_missing_file_is_told_with_the_way_out(path: Path) -> None:
    for arguments in (["list"], ["show", "demo"], ["revoke", "demo"]):
        assert "make one with `wm-keys new NAME`" in refused(path, *arguments)


def test_a_broken_file_is_told(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{")
    for arguments in (["list"], ["show", "a"], ["revoke", "a"], ["new", "a"]):
        assert f"{path}: broken JSON" in refused(path, *arguments)


def test_the_installed_command_works_without_a_terminal(path: Path) -> None:
    command = [str(Path(sys.executable).with_name("wm-keys"))]
    environment = {k: v for k, v in os.environ.items() if k != "TOKENMARK_PASSPHRASE"}

    def wm_keys_process(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *arguments, "--keyring", str(path)],
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
            timeout=60,
        )

    lost = wm_keys_process("new", "demo")
    assert (lost.returncode, lost.stdout) == (2, "")
    assert lost.stderr.startswith("Error: there is no terminal")
    assert lost.stderr.count("\n") == 1
    made = wm_keys_process("new", "demo", "--no-passphrase", "--json")
    assert made.returncode == 0
    shown = wm_keys_process("show", "demo", "--json")
    assert json.loads(shown.stdout) == json.loads(made.stdout)


def test_help_imports_no_numpy() -> None:
    program = (
        "import sys\n"
        "from tokenmark.cli.keys import main\n"
        "try:\n"
        "    main(['new', '--help'])\n"
        "finally:\n"
        "    heavy = {'numpy', 'rich', 'cryptography'} & set(sys.modules)\n"
        "    print(sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--context-width" in done.stdout
    assert done.stderr == "[]\n"
