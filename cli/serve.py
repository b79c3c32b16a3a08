"""`wm-serve`: a language model behind an OpenAI-compatible API that marks what it writes.

Knows nothing of how a model computes or a mark is drawn: it finds the key, loads the model, serves.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from tokenmark.cli.options import keyring_file, keyring_option, passphrase_file_option
from tokenmark.cli.output import Command, fail, say

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path
    from typing import Self

    from tokenmark.engine.build import Stage
    from tokenmark.engine.served_model import ServedModel
    from tokenmark.watermark.key import WatermarkKey
    from tokenmark.watermark.key_entry import KeyEntry
    from tokenmark.watermark.keyring import Keyring, KeyringFile

_NEW_KEY: Final = "default"
_OWN_SCHEME: Final = "tm1"
_INSTALL: Final = "pip install 'tokenmark[serve]'"


@click.command(cls=Command, name="wm-serve")
@click.argument("model", metavar="MODEL")
@keyring_option
@passphrase_file_option
@click.option(
    "--key", metavar="NAME", help="The key to mark with.  [default: the only active one of tm1]"
)
@click.option("--unmarked", is_flag=True, help="Mark nothing. Every response says so.")
@click.option("--host", default="127.0.0.1", show_default=True, help="A loopback address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or cuda:N.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="auto: bfloat16 where the processor has instructions for it.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of prompt and answer together.  [default: the model's own limit]",
)
def main(
    *,
    model: str,
    keyring: Path,
    passphrase_file: Path | None,
    key: str | None,
    unmarked: bool,
    host: str,
    port: int,
    device: str,
    dtype: str,
    max_model_len: int | None,
) -> None:
    """Serve a language model whose texts carry a watermark.

    MODEL is `demo`, a small model fetched once, or the path of a .gguf file.
    """
    if unmarked and key is not None:
        fail("--unmarked and --key exclude each other; leave one out")
    # Before torch is imported: threads that spin while they wait would take the processor from
    # the other half of the server.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch  # noqa: F401 - is the extra installed?
        import uvicorn  # noqa: F401 - as above

        from tokenmark.api.app import create_app
        from tokenmark.api.server import bind, serve
        from tokenmark.engine.answer import Mark
        from tokenmark.engine.build import Hardware, Stage, build_served_model
        from tokenmark.engine.models.loader import load_checkpoint
    except ModuleNotFoundError as error:
        fail(f"wm-serve needs the module {error.name}, which is not installed; run `{_INSTALL}`")
    from tokenmark.watermark.locations import cache_folder

    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))
        hardware = Hardware.choose(device, dtype)
        file = keyring_file(keyring, passphrase_file=passphrase_file)
        is_first_start = not unmarked and key is None and not keyring.exists()
        # Before anything is loaded: this may ask for a passphrase.
        chosen = None if unmarked or is_first_start else _choose(file.read(), key)
        stages = stack.enter_context(_Stages())
        stages.begin(Stage.READ)
        checkpoint = load_checkpoint(model, cache=cache_folder(), progress=stages.note)
        if is_first_start:
            chosen = _new_key()
        if chosen is not None:
            chosen.entry.check_tokenizer(checkpoint.tokenizer)
        served = build_served_model(
            checkpoint,
            hardware=hardware,
            max_model_len=max_model_len,
            mark=None if chosen is None else Mark(key=chosen.key, scheme=chosen.entry.scheme),
            progress=stages.begin,
        )
        stages.end()
        # Only now, so that a start that fails changes nothing.
        if chosen is not None:
            if is_first_start:
                _store(chosen, file, keyring)
            file.bind_tokenizer(chosen.entry.name, checkpoint.tokenizer)
        stack.enter_context(served.engine)
        # An IPv6 address stands in brackets in a URL.
        shown_host = f"[{host}]" if ":" in host else host
        url = f"http://{shown_host}:{listener.getsockname()[1]}"
        serve(create_app(served), listener, on_ready=lambda: _print_box(served, url))


class _Stages:
    """The progress bar of the start, on stderr; plain lines where that is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from tokenmark.engine.build import Stage

        self._n_stages = len(Stage)
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=self._n_stages)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def begin(self, stage: Stage) -> None:
        """Show that a stage begins."""
        done = list(type(stage)).index(stage)
        self._progress.update(self._task, description=str(stage), completed=done)
        if not self._console.is_terminal:
            say(f"{stage} ...")

    def note(self, text: str) -> None:
        """Show a line about the stage that is running."""
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """Take the bar away, before what follows is printed."""
        self._progress.stop()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The key to mark with."""

    entry: KeyEntry
    key: WatermarkKey


def _new_key() -> _Chosen:
    """The key of a first start, not stored yet."""
    from datetime import UTC, datetime

    from tokenmark.watermark.key import WatermarkKey
    from tokenmark.watermark.key_entry import KeyEntry
    from tokenmark.watermark.scheme import Scheme

    key = WatermarkKey.generate()
    entry = KeyEntry(
        name=_NEW_KEY,
        key_id=key.key_id,
        scheme=Scheme(name=_OWN_SCHEME),
        created=datetime.now(UTC).replace(microsecond=0),
    )
    return _Chosen(entry, key)


def _store(chosen: _Chosen, file: KeyringFile, path: Path) -> None:
    """Make the key file of a first start, and say where it is."""
    from tokenmark.watermark.keyring import Protection

    file.add(chosen.entry, chosen.key, protection=Protection.NONE)
    say(
        f"Made the key {chosen.entry.name!r} in {path}, readable by you alone and not encrypted. "
        "Keep a copy: without it the marks cannot be recognised."
    )


def _choose(ring: Keyring, name: str | None) -> _Chosen:
    """The key to mark with, or why there is none; may ask for the passphrase."""
    from datetime import UTC, datetime

    entry = _entry_to_mark_with(ring, name, datetime.now(UTC))
    key = ring.key(entry.name)
    if key.is_published():
        fail(
            f"the secret of key {entry.name!r} stands in public documents, so anybody could forge "
            "its mark; make one with `wm-keys new NAME`"
        )
    return _Chosen(entry, key)


def _entry_to_mark_with(ring: Keyring, name: str | None, now: datetime) -> KeyEntry:
    if name is not None:
        entry = ring.get(name)
        entry.check_can_mark(now)
        if entry.scheme.profile.family is None:
            fail(
                f"key {name!r} is of scheme {entry.scheme.name}, which this engine only detects; "
                "choose another key, or make one with `wm-keys new NAME`"
            )
        return entry
    able = [entry for entry in ring.entries if _can_mark(entry, now)]
    # A key of another scheme is most often somebody else's, imported to recognise their texts.
    usable = [entry for entry in able if entry.scheme.name == _OWN_SCHEME]
    if not usable and able:
        names = ", ".join(entry.name for entry in able)
        fail(
            f"no key of scheme {_OWN_SCHEME} may mark now; of other schemes there are: {names}; "
            "choose one with --key NAME, or make one with `wm-keys new NAME`"
        )
    if not usable:
        fail(
            "the keyring holds no key that may mark now; make one with `wm-keys new NAME`, or "
            "serve without a mark by --unmarked"
        )
    if len(usable) > 1:
        names = ", ".join(entry.name for entry in usable)
        fail(f"several keys may mark: {names}; choose one with --key NAME")
    return usable[0]


def _can_mark(entry: KeyEntry, now: datetime) -> bool:
    from tokenmark.watermark.errors import KeyStateError

    try:
        entry.check_can_mark(now)
    except KeyStateError:
        return False
    return entry.scheme.profile.family is not None


def _print_box(served: ServedModel, url: str) -> None:
    """What a user needs next: the address, a first request, and which mark is written.

    The box is open at its sides, so that the command can be copied as one line.
    """
    from rich.console import Console

    mark = served.mark
    marks = (
        "nothing: answers carry no mark"
        if mark is None
        else f"scheme {mark.scheme.name}, key {mark.key.key_id}"
    )
    body = f'{{"model": "{served.name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    console = Console(stderr=True, highlight=False, markup=False)
    console.rule(f"Serving {served.name}")
    console.print(f"URL    {url}\nMarks  {marks}\nTry    ", end="")
    console.print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        soft_wrap=True,
    )
    console.rule()
