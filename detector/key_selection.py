"""Chooses the keys of a keyring that a text is tested with, and finds their tokenizers.

Knows nothing of the texts themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmark.detector.detector import DetectionKey
from tokenmark.detector.tokens import TextTokenizer
from tokenmark.watermark.errors import KeyringError, KeyStateError, TokenizerError
from tokenmark.watermark.key_entry import KeyEntry
from tokenmark.watermark.keyring import Keyring

__all__ = ["Selection", "select_keys"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys to test, and what was left out."""

    keys: tuple[DetectionKey, ...]
    warnings: tuple[str, ...]


class _Tokenizers:
    """Each tokenizer file read once."""

    def __init__(self, given: str | None) -> None:
        self._given = None if given is None else TextTokenizer(given)
        self._bound: dict[str, TextTokenizer] = {}

    def of(self, entry: KeyEntry, *, may_be_missing: bool) -> TextTokenizer | None:
        """The tokenizer that was given, else the one that the entry names."""
        bound = entry.tokenizer
        if self._given is not None:
            found = self._given
        elif bound is None:
            _refuse_unbound(entry, may_be_missing=may_be_missing)
            return None
        elif bound.sha256 in self._bound:
            return self._bound[bound.sha256]
        else:
            found = TextTokenizer(bound.id)
        if bound is not None and bound.sha256 != found.reference.sha256:
            raise TokenizerError(
                f"key {entry.name!r} is bound to tokenizer {bound.id!r} (SHA-256 {bound.sha256}), "
                f"and this one has {found.reference.sha256}; give the tokenizer.json of the model "
                "that the key marks"
            )
        if bound is not None:
            self._bound[bound.sha256] = found
        return found


def _refuse_unbound(entry: KeyEntry, *, may_be_missing: bool) -> None:
    if not may_be_missing:
        raise TokenizerError(
            f"key {entry.name!r} is bound to no tokenizer, so it can only test token ids; "
            "give --tokenizer FILE, or --ids with a list of ids"
        )


def select_keys(
    keyring: Keyring,
    *,
    names: Sequence[str] = (),
    tokenizer: str | None = None,
    for_ids: bool = False,
) -> Selection:
    """The keys to test on texts, or on token ids.

    Args:
        keyring: where they come from.
        names: these keys, each of which must be usable; without any, all that are usable.
        tokenizer: a file or an alias, in place of the one that an entry names.
        for_ids: token ids will be tested, so a key may do without a tokenizer.

    Raises:
        UnknownKeyError: no key of a given name.
        KeyStateError: a key asked for by name is revoked.
        TokenizerError: a tokenizer is missing or not the key's own.
        KeyringError: no key is left to test.
    """
    tokenizers = _Tokenizers(tokenizer)
    entries = [keyring.get(name) for name in names] or keyring.entries
    keys, left_out = [], []
    for entry in entries:
        try:
            entry.check_can_verify()
            found = tokenizers.of(entry, may_be_missing=for_ids)
        except (KeyStateError, TokenizerError) as error:
            if names or len(entries) == 1:
                raise
            left_out.append(f"not tested: {error}")
            continue
        keys.append(
            DetectionKey(
                name=entry.name,
                key=keyring.key(entry.name),
                scheme=entry.scheme,
                tokenizer=found,
            )
        )
    if not keys:
        reason = f" ({left_out[0]})" if left_out else ""
        raise KeyringError(
            f"the keyring holds no key that can be tested{reason}; add one with `wm-keys new` or "
            "`wm-keys import`, or name another file with --keyring"
        )
    return Selection(keys=tuple(keys), warnings=tuple(left_out))
