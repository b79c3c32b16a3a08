"""The demonstration: a real model writes marked texts over HTTP, and the detector finds the mark.

Run it with `make demo`. Knows nothing of models or keys: it types the commands that a user would
type, and checks what they answer.
"""

import json
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tokenmark.eval.commands import CommandError, run_command, running_server

__all__ = ["main"]

_LEVEL: Final = 1e-6
_MIN_TOKENS: Final = 200
_MAX_TOKENS: Final = 280
_ANSWER_TIMEOUT_S: Final = 600.0
_HUMAN: Final = "austen-pride-and-prejudice-1.txt"
_QUESTIONS: Final = (
    "Write a story about a lighthouse keeper who finds a letter on the beach.",
    "Describe a market in an old harbour town on a summer morning.",
    "Explain why people have always been drawn to the mountains.",
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"\u201d\u2019)]*\s+")


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
    except CommandError as error:
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
    with running_server(keyring) as url:
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
        rows.append(_Row("  without outer sentences", cut, keyring, expects_mark=True))
        rows.append(_Row("  under another key", whole, other, expects_mark=False))
    human = files("tokenmark.eval").joinpath(_HUMAN).read_text(encoding="utf-8")
    path = _store(folder / "human.txt", human)
    rows.append(_Row("written by a person", path, keyring, expects_mark=False))
    return rows


def _make_key(name: str, keyring: Path, *options: str) -> None:
    keyring.unlink(missing_ok=True)
    run_command("keys", "new", name, "--no-passphrase", "--keyring", str(keyring), *options)


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


def _detect(row: _Row) -> dict[str, Any]:
    arguments = ("--keyring", str(row.keyring), "--level", str(_LEVEL), "--json", str(row.path))
    result: dict[str, Any] = json.loads(run_command("detect", *arguments))
    return result


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
        raise CommandError(f"the server did not answer: {error.reason}") from error
    if not answer["watermark"]["applied"]:
        raise CommandError(f"an answer is unmarked: {answer['watermark']['reason']}")
    return answer


def _without_outer_sentences(text: str) -> str:
    sentences = _SENTENCE_END.split(text)
    return " ".join(sentences[1:-1])


def _store(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
