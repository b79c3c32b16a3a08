"""The demonstration: a real model writes marked texts over HTTP, and the detector finds the mark.

Run it with `make demo`. Knows nothing of models or keys: it types the commands that a user would
type, and checks what they answer.
"""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

__all__ = ["main"]

_LEVEL: Final = 1e-6
_MIN_TOKENS: Final = 200
_MAX_TOKENS: Final = 280
_READY_TIMEOUT_S: Final = 300.0
_ANSWER_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 20.0
_HUMAN: Final = "austen-pride-and-prejudice-1.txt"
_QUESTIONS: Final = (
    "Write a story about a lighthouse keeper who finds a letter on the beach.",
    "Describe a market in an old harbour town on a summer morning.",
    "Explain why people have always been drawn to the mountains.",
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"\u201d\u2019)]*\s+")


class _DemoError(Exception):
    """A command of the demonstration failed."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A text to examine, the keyring to examine it with, and what must come out."""

    what: str
    path: Path
    keyring: Path
    expects_mark: bool


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where keys and texts are stored.",
)
def main(*, folder: Path) -> None:
    """Let the demo model write three marked texts and find the mark in them."""
    console = Console(highlight=False)
    try:
        rows = _prepare(folder, console)
        n_wrong = _examine(rows, console)
    except _DemoError as error:
        raise SystemExit(f"The demonstration failed: {error}") from None
    if n_wrong:
        raise SystemExit(f"{n_wrong} rows are not as expected.")
    console.print(f"\nAll rows are as expected at a false-alarm rate of {_LEVEL:g}.")
    console.print(f"Texts and keys are in {folder}; try: ", end="")
    console.print(f"wm-detect --keyring {rows[0].keyring} {rows[0].path}", soft_wrap=True)


def _prepare(folder: Path, console: Console) -> list[_Row]:
    """Make the keys, have the texts written, and cut the variants."""
    folder.mkdir(parents=True, exist_ok=True)
    keyring, other = folder / "keyring.json", folder / "other-keyring.json"
    _make_key("demo", keyring)
    with _server(keyring) as url:
        console.print(f"Asking for {len(_QUESTIONS)} texts of at least {_MIN_TOKENS} tokens ...")
        started = time.monotonic()
        with ThreadPoolExecutor(len(_QUESTIONS)) as pool:
            answers = list(pool.map(lambda question: _ask(url, question), _QUESTIONS))
        elapsed = time.monotonic() - started
    n_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    # The server has put the model's tokenizer into the cache, where the alias finds it.
    _make_key("other", other, "--tokenizer", "demo")
    console.print(f"{n_tokens} tokens in {elapsed:.0f} s. The server has ended; now offline:\n")
    rows = []
    for number, answer in enumerate(answers, start=1):
        text = answer["choices"][0]["message"]["content"]
        whole = _store(folder / f"marked-{number}.txt", text)
        cut = _store(folder / f"marked-{number}-cut.txt", _without_outer_sentences(text))
        rows.append(_Row(f"marked text {number}", whole, keyring, expects_mark=True))
        rows.append(_Row("  without its outer sentences", cut, keyring, expects_mark=True))
        rows.append(_Row("  under another key", whole, other, expects_mark=False))
    human = files("tokenmark.eval").joinpath("prose", _HUMAN).read_text(encoding="utf-8")
    path = _store(folder / "human.txt", human)
    rows.append(_Row("written by a person", path, keyring, expects_mark=False))
    return rows


def _make_key(name: str, keyring: Path, *options: str) -> None:
    keyring.unlink(missing_ok=True)
    _run("keys", "new", name, "--no-passphrase", "--keyring", str(keyring), *options)


def _examine(rows: list[_Row], console: Console) -> int:
    """Run the detector on every row and print the table; how many rows are not as expected."""
    table = Table(title="wm-detect, from key and tokenizer alone", title_justify="left")
    for column in ("text", "verdict", "log10 p", "scored", "as expected"):
        table.add_column(column, justify="right" if column in {"log10 p", "scored"} else "left")
    n_wrong = 0
    for row in rows:
        result = _detect(row)
        signal = result["signals"][0]
        is_right = (result["verdict"] == "watermarked") is row.expects_mark
        n_wrong += not is_right
        table.add_row(
            row.what,
            result["verdict"],
            f"{signal['log10_pvalue_corrected']:.2f}",
            str(signal["n_scored"]),
            "yes" if is_right else "NO",
        )
    console.print(table)
    return n_wrong


def _command(name: str, *arguments: str) -> list[str]:
    """A console command of this package, whether or not its folder is on the path."""
    call = f"import sys; from tokenmark.cli.{name} import main; sys.exit(main())"
    return [sys.executable, "-c", call, *arguments]


def _run(name: str, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter, no shell
        _command(name, *arguments), check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise _DemoError(f"wm-{name} {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def _detect(row: _Row) -> dict[str, Any]:
    arguments = ("--keyring", str(row.keyring), "--level", str(_LEVEL), "--json", str(row.path))
    result: dict[str, Any] = json.loads(_run("detect", *arguments))
    return result


@contextmanager
def _server(keyring: Path) -> Iterator[str]:
    """The address of `wm-serve demo` on a free port, ended when the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = _command("serve", "demo", "--keyring", str(keyring), "--port", str(port))
    with subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter, no shell
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _DemoError(f"wm-serve ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - loopback HTTP
                return
        except OSError:
            time.sleep(0.2)
    raise _DemoError(f"wm-serve was not ready after {_READY_TIMEOUT_S:.0f} s")


def _ask(url: str, question: str) -> dict[str, Any]:
    """One chat completion; it must say that it is marked."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "min_tokens": _MIN_TOKENS,
        "max_tokens": _MAX_TOKENS,
    }
    request = urllib.request.Request(  # noqa: S310 - loopback HTTP
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as response:  # noqa: S310 - as above
            answer: dict[str, Any] = json.load(response)
    except urllib.error.URLError as error:
        raise _DemoError(f"the server did not answer: {error.reason}") from error
    if not answer["watermark"]["applied"]:
        raise _DemoError(f"an answer is unmarked: {answer['watermark']['reason']}")
    return answer


def _without_outer_sentences(text: str) -> str:
    sentences = _SENTENCE_END.split(text)
    return " ".join(sentences[1:-1])


def _store(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
