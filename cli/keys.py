"""`wm-keys`: makes, imports, lists, shows and revokes watermark keys.

Knows nothing of marking or detecting. No command prints a secret.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypedDict, TypeVar, Unpack

import click

from tokenmark.cli.options import (
    json_option,
    keyring_file,
    keyring_option,
    passphrase_file_option,
    prompt_hidden,
)
from tokenmark.cli.output import Group, fail, print_json, print_table, say

if TYPE_CHECKING:
    from tokenmark.watermark.key import WatermarkKey
    from tokenmark.watermark.key_entry import KeyEntry
    from tokenmark.watermark.scheme import Scheme
    from tokenmark.watermark.tokenizers import TokenizerReference

__all__ = ["main"]

P = ParamSpec("P")
R = TypeVar("R")

_NATIVE_SCHEME: Final = "tm1"
_MAX_SECRET_BYTES: Final = 4096
_DATE: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])


class _NewKey(TypedDict):
    """What `new` and `import` are told alike."""

    name: str
    context_width: int | None
    tokenizer: str | None
    no_passphrase: bool
    not_before: datetime | None
    not_after: datetime | None
    keyring: Path
    passphrase_file: Path | None
    as_json: bool


def _new_key_options(command: Callable[P, R]) -> Callable[P, R]:
    options = (
        click.argument("name"),
        click.option(
            "--context-width",
            type=int,
            metavar="N",
            help="Token ids before the one that is drawn.  [default: the scheme's, mostly 4]",
        ),
        click.option(
            "--tokenizer",
            metavar="FILE|ALIAS",
            help="Bind the key to this tokenizer.json; without one it tests token ids, no text.",
        ),
        click.option("--not-before", type=_DATE, metavar="DATE", help="Mark no text earlier, UTC."),
        click.option("--not-after", type=_DATE, metavar="DATE", help="Mark no text from then on."),
        click.option("--no-passphrase", is_flag=True, help="Keep the secret in clear, mode 0600."),
        keyring_option,
        passphrase_file_option,
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=Group)
def main() -> None:
    """Make and keep watermark keys."""


@main.command()
@_new_key_options
def new(**options: Unpack[_NewKey]) -> None:
    """Make a new key of scheme tm1, NAME."""
    from tokenmark.watermark.key import WatermarkKey

    _store(WatermarkKey.generate(), _scheme(_NATIVE_SCHEME, options["context_width"], {}), options)


@main.command("import")
@click.option("--scheme", required=True, metavar="SCHEME", help="What the secret is a key of.")
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="A public number of the scheme; may be repeated.",
)
@_new_key_options
def import_key(scheme: str, parameters: tuple[str, ...], **options: Unpack[_NewKey]) -> None:
    """Store an existing key as NAME.

    Its secret is read from standard input; at a terminal it is asked for and not shown. That of tm1
    is 64 hexadecimal digits, that of a scheme with integer keys a number, decimal or 0x, or several
    with commas between them.
    """
    from tokenmark.watermark.errors import KeyMaterialError
    from tokenmark.watermark.key import WatermarkKey

    stated = _scheme(scheme, options["context_width"], _numbers(parameters))
    key = WatermarkKey.parse(_read_secret(), stated.profile.key_form)
    # A secret that the scheme cannot use is told here, not by the first text.
    stated.profile.law(key, stated.parameters)
    if key.is_published():
        raise KeyMaterialError(
            "this secret stands in public documentation or test vectors, so anybody can forge its "
            "mark; make one of your own with `wm-keys new`"
        )
    _store(key, stated, options)


@main.command("list")
@keyring_option
@json_option
def list_keys(keyring: Path, *, as_json: bool) -> None:
    """List the keys, oldest first."""
    found = keyring_file(keyring).read()
    if as_json:
        print_json(
            {
                "keyring": str(keyring),
                "protection": found.protection.value,
                "keys": [entry.to_json() for entry in found.entries],
            }
        )
        return
    columns = ("name", "key_id", "scheme", "state", "tokenizer", "created")
    rows = [_fields(entry) for entry in found.entries]
    print_table(columns, [[row[column] for column in columns] for row in rows])


@main.command()
@click.argument("name")
@keyring_option
@json_option
def show(name: str, keyring: Path, *, as_json: bool) -> None:
    """Show what is public of the key NAME."""
    _print_entry(keyring_file(keyring).read().get(name), as_json=as_json)


@main.command()
@click.argument("name")
@keyring_option
@json_option
def revoke(name: str, keyring: Path, *, as_json: bool) -> None:
    """Revoke the key NAME for good.

    It neither marks nor verifies any more, here and wherever this key file is used.
    """
    from tokenmark.watermark.key_entry import KeyState

    entry = keyring_file(keyring).set_state(name, KeyState.REVOKED)
    _print_entry(entry, as_json=as_json)


def _scheme(name: str, context_width: int | None, parameters: dict[str, float]) -> "Scheme":
    from tokenmark.watermark.profiles import PROFILES
    from tokenmark.watermark.scheme import Scheme

    if context_width is None and name in PROFILES:
        context_width = PROFILES[name].context_width
    # An unknown name is refused whatever the width.
    return Scheme(name=name, context_width=context_width or 0, parameters=parameters)


def _numbers(stated: tuple[str, ...]) -> dict[str, float]:
    """The numbers of NAME=VALUE, each name once."""
    numbers: dict[str, float] = {}
    for text in stated:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            fail(f"--parameter {text[:80]!r} is not of the form NAME=VALUE with a number as VALUE")
        if name in numbers:
            fail(f"--parameter {name} is given twice; leave one out")
        numbers[name] = number
    return numbers


def _read_secret() -> str:
    # Python has None for a stream that was closed at the start, which its types do not say.
    is_terminal = getattr(sys.stdin, "isatty", None)
    if is_terminal is None:
        fail("standard input is closed; pipe the secret to it")
    if is_terminal():
        return prompt_hidden("Secret", twice=False, instead="pipe the secret to standard input")
    # What is no text becomes no secret either; the error must not show it.
    return sys.stdin.buffer.read(_MAX_SECRET_BYTES).decode("utf-8", "replace").strip()


def _store(key: "WatermarkKey", scheme: "Scheme", options: _NewKey) -> None:
    from tokenmark.watermark.key_entry import KeyEntry
    from tokenmark.watermark.keyring import Protection

    tokenizer = None if options["tokenizer"] is None else _kept_tokenizer(options["tokenizer"])
    entry = KeyEntry(
        name=options["name"],
        key_id=key.key_id,
        scheme=scheme,
        created=datetime.now(UTC).replace(microsecond=0),
        not_before=_in_utc(options["not_before"]),
        not_after=_in_utc(options["not_after"]),
        tokenizer=tokenizer,
    )
    path = options["keyring"]
    protection = Protection.NONE if options["no_passphrase"] else Protection.PASSPHRASE
    file = keyring_file(path, passphrase_file=options["passphrase_file"])
    file.add(entry, key, protection=protection)
    _print_entry(entry, as_json=options["as_json"])
    say(f"Key {entry.name} is stored in {path}.")
    if protection is Protection.NONE:
        say(
            "Its secret is there in clear: whoever can read the file can forge and remove the mark."
        )
    if tokenizer is None:
        say("It is bound to no tokenizer: until it is, it can test token ids and no text.")


def _kept_tokenizer(name: str) -> "TokenizerReference":
    """The reference of a tokenizer that can be read, which is in the cache from now on."""
    from tokenmark.detector.tokens import TextTokenizer
    from tokenmark.watermark.tokenizers import resolve_tokenizer, store_tokenizer

    path, _ = resolve_tokenizer(name)
    TextTokenizer(name)  # Refuses a file that is no tokenizer.
    return store_tokenizer(path.read_bytes())[1]


def _in_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def _print_entry(entry: "KeyEntry", *, as_json: bool) -> None:
    if as_json:
        print_json(entry.to_json())
        return
    for label, value in _fields(entry).items():
        click.echo(f"{label:<15}{value}")


def _fields(entry: "KeyEntry") -> dict[str, str]:
    """What people read of an entry, label by label."""
    fields = {
        label: "-" if value is None else str(value) for label, value in entry.to_json().items()
    }
    if entry.scheme.parameters:
        stated = entry.scheme.parameters.items()
        fields["parameters"] = ", ".join(f"{name}={value:g}" for name, value in stated)
    if entry.scheme.payload is not None:
        layout = entry.scheme.payload
        fields["payload"] = f"{layout.slots} symbols of {layout.bits} bits"
    if entry.tokenizer is not None:
        fields["tokenizer"] = entry.tokenizer.id
    return fields
