"""`wm-detect`: is there a mark in these texts? Knows nothing of statistics: it reads, asks, prints.

Results go to stdout, warnings and errors to stderr. A file that cannot be read does not keep the
others from being examined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tokenmark.cli.options import (
    json_option,
    keyring_file,
    keyring_option,
    passphrase_file_option,
)
from tokenmark.cli.output import Command, print_json, print_table, say

if TYPE_CHECKING:
    from pathlib import Path

    from tokenmark.detector.detector import Detector
    from tokenmark.detector.report import Detection
    from tokenmark.watermark.errors import TokenmarkError

_FAILED: Final = 2
_EXIT_CODES: Final = {"watermarked": 0, "not_detected": 1, "inconclusive": 3}


def _checked_level(_context: click.Context, _option: click.Parameter, level: float) -> float:
    # Written so that NaN breaks the rule.
    if not 0 < level < 1:
        raise click.BadParameter(f"{level} is not between 0 and 1")
    return level


@click.command(cls=Command, name="wm-detect")
@click.argument("names", metavar="FILE...", nargs=-1, required=True)
@keyring_option
@passphrase_file_option
@click.option(
    "--key", "keys", multiple=True, metavar="NAME", help="Test only this key; repeatable."
)
@click.option(
    "--tokenizer",
    metavar="FILE|ALIAS",
    help="The model's tokenizer.json.  [default: the one that the key names]",
)
@click.option(
    "--ids", "as_ids", is_flag=True, help="The input is a JSON list of token ids, or one a line."
)
@click.option(
    "--prompt",
    metavar="FILE",
    help="What the model was asked; not scored where the text begins with it.",
)
@click.option(
    "--level",
    callback=_checked_level,
    type=float,
    default=1e-3,
    show_default=True,
    help="False-alarm rate, for all keys together; between 0 and 1.",
)
@json_option
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit with 0 found, 1 not found, 3 inconclusive; 2 if any file failed.",
)
def main(
    *,
    names: tuple[str, ...],
    keyring: Path,
    passphrase_file: Path | None,
    keys: tuple[str, ...],
    tokenizer: str | None,
    as_ids: bool,
    prompt: str | None,
    level: float,
    as_json: bool,
    exit_code: bool,
) -> None:
    """Find watermarks in texts, offline: with the key and the tokenizer, without the model.

    FILE is plain UTF-8 text, or - for standard input.
    """
    from tokenmark.detector.detector import Detector
    from tokenmark.detector.documents import read_document
    from tokenmark.detector.key_selection import select_keys

    ring = keyring_file(keyring, passphrase_file=passphrase_file).read()
    selection = select_keys(ring, names=keys, tokenizer=tokenizer, for_ids=as_ids)
    for warning in selection.warnings:
        say(f"Warning: {warning}")
    detector = Detector(selection.keys, level=level)
    examine = _examine_ids if as_ids else _examine_text
    asked = None if prompt is None else read_document(prompt)
    items = [item for name in names for item in examine(detector, name, asked)]
    for item in items:
        item.say_notes()
    if as_json:
        data = [item.to_json() for item in items]
        print_json(data[0] if len(data) == 1 else {"object": "list", "data": data})
    else:
        _print_items(items)
    _exit(items, by_verdict=exit_code)


class _Item:
    """One examined text: a detection, or the reason why there is none."""

    def __init__(self, source: str, outcome: Detection | TokenmarkError) -> None:
        self.source = source
        self.outcome = outcome

    @property
    def verdict(self) -> str:
        """The verdict, or `error`."""
        return "error" if isinstance(self.outcome, Exception) else str(self.outcome.verdict)

    def to_json(self) -> dict[str, object]:
        """The detection with the name of its source."""
        if isinstance(self.outcome, Exception):
            return {
                "object": "detection",
                "source": self.source,
                "verdict": "error",
                "error": {"message": str(self.outcome)},
            }
        return {"source": self.source, **self.outcome.to_json()}

    def to_row(self) -> list[str]:
        """The cells of the table: the strongest of the signals."""
        if isinstance(self.outcome, Exception):
            return [self.source, "error", "", "", "", ""]
        best = self.outcome.best
        return [
            self.source,
            self.verdict,
            f"{best.log10_pvalue_corrected:.2f}",
            str(best.n_scored),
            str(best.n_repeated),
            f"{best.key_name} ({best.scheme})",
        ]

    def say_notes(self) -> None:
        """Error or warnings on stderr, one line each."""
        if isinstance(self.outcome, Exception):
            message = str(self.outcome)
            # Some errors name the file themselves, and all must.
            say(f"Error: {message if self.source in message else f'{self.source}: {message}'}")
            return
        for warning in self.outcome.warnings:
            say(f"Warning: {self.source}: {warning}")


def _examine_text(detector: Detector, name: str, prompt: str | None) -> list[_Item]:
    from tokenmark.detector.documents import read_document
    from tokenmark.watermark.errors import TokenmarkError

    try:
        return [_Item(name, detector.detect_text(read_document(name), prompt=prompt))]
    except TokenmarkError as error:
        return [_Item(name, error)]


def _examine_ids(detector: Detector, name: str, prompt: str | None) -> list[_Item]:
    from tokenmark.detector.documents import parse_token_ids, read_document
    from tokenmark.watermark.errors import DocumentError, TokenmarkError

    try:
        lists = parse_token_ids(read_document(name), name)
        prompts = [[]] if prompt is None else parse_token_ids(prompt, "the prompt")
        if len(prompts) > 1:
            raise DocumentError(f"the prompt holds {len(prompts)} lists of ids; give one")
    except TokenmarkError as error:
        return [_Item(name, error)]
    items = []
    for number, ids in enumerate(lists, start=1):
        source = name if len(lists) == 1 else f"{name}:{number}"
        try:
            items.append(_Item(source, detector.detect_ids(ids, prompt_ids=prompts[0])))
        except TokenmarkError as error:
            items.append(_Item(source, error))
    return items


def _print_items(items: list[_Item]) -> None:
    columns = ["text", "verdict", "log10 p", "scored", "repeated", "key"]
    print_table(columns, [item.to_row() for item in items])
    if len(items) == 1 and not isinstance(items[0].outcome, Exception):
        click.echo(items[0].outcome.verdict_text)


def _exit(items: list[_Item], *, by_verdict: bool) -> None:
    """End with the status of the worst failure, else of the strongest finding."""
    verdicts = {item.verdict for item in items}
    if "error" in verdicts:
        raise SystemExit(_FAILED)
    if by_verdict:
        found = next(
            name for name in ("watermarked", "inconclusive", "not_detected") if name in verdicts
        )
        raise SystemExit(_EXIT_CODES[found])
