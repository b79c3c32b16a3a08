"""Chooses the keys of a keyring that a text is tested with, and finds their tokenizers.

Knows nothing of the texts themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmark.detector.detector import DetectionKey, unbound_key
from tokenmark.detector.tokens import TextTokenizer
from tokenmark.watermark.errors import KeyringError, KeyStateError, SchemeError, TokenizerError
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
            entry.check_tokenizer(self._given.reference)
            return self._given
        if bound is None:
            if not may_be_missing:
                raise unbound_key(entry.name)
            return None
        if bound.sha256 not in self._bound:
            found = TextTokenizer(bound.id)
            entry.check_tokenizer(found.reference)
            self._bound[bound.sha256] = found
        return self._bound[bound.sha256]


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
    # A key named twice is one test, not two.
    entries = [keyring.get(name) for name in dict.fromkeys(names)] or keyring.entries
    keys, left_out = [], []
    for entry in entries:
        try:
            entry.check_can_verify()
            keys.append(
                DetectionKey(
                    name=entry.name,
                    key=keyring.key(entry.name),
                    scheme=entry.scheme,
                    tokenizer=tokenizers.of(entry, may_be_missing=for_ids),
                )
            )
        except (KeyStateError, SchemeError, TokenizerError) as error:
            if names or len(entries) == 1:
                raise
            left_out.append(f"not tested: {error}")
    if not keys:
        reason = f" ({left_out[0]})" if left_out else ""
        raise KeyringError(
            f"the keyring holds no key that can be tested{reason}; add one with `wm-keys new` or "
            "`wm-keys import`, or name another file with --keyring"
        )
    return Selection(keys=tuple(keys), warnings=tuple(left_out))
