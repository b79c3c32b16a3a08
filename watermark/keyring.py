"""The key file on disk and every use and change of it.

Knows nothing of marks, texts or models, and nothing of how a passphrase is asked for. Public fields
are read and changed without a passphrase; it is asked for when a secret is read or added.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Final

from cryptography.exceptions import InvalidTag

from tokenmark.watermark.errors import (
    KeyMaterialError,
    KeyringError,
    KeyStateError,
    UnknownKeyError,
)
from tokenmark.watermark.hidden import HiddenText
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.key_document import SEAL_CONTEXT, KeyDocument, Protection, StoredKey
from tokenmark.watermark.key_entry import KeyEntry, KeyState
from tokenmark.watermark.private_file import (
    locked,
    open_regular,
    refuse_shared,
    replace_file,
    resolve,
)
from tokenmark.watermark.sealing import Sealer, SealParameters
from tokenmark.watermark.tokenizers import TokenizerReference

__all__ = ["Keyring", "KeyringFile", "Passphrase", "PassphraseUse", "Protection"]

_MAX_FILE_BYTES: Final = 64 * 2**20
_LOCK_TIMEOUT_S: Final = 10.0
_MAX_NAMED: Final = 5


class PassphraseUse(Enum):
    """What a passphrase is asked for."""

    OPEN = "open"
    """The one that a key file has."""

    CHOOSE = "choose"
    """That of a new key file, which the user makes up now."""


Passphrase = Callable[[PassphraseUse], str]
"""Called once a secret is read or added, and no sooner."""


class Keyring:
    """The keys of a file as they were when it was read; made by `KeyringFile.read`."""

    __slots__ = ("_document", "_path", "_unlock")

    def __init__(
        self, document: KeyDocument, *, path: Path, unlock: Callable[[SealParameters], Sealer]
    ) -> None:
        self._document = document
        self._path = path
        self._unlock = unlock

    @property
    def entries(self) -> tuple[KeyEntry, ...]:
        """What is public of every key, in the order they were added."""
        return tuple(stored.entry for stored in self._document.keys)

    @property
    def protection(self) -> Protection:
        """How the secrets are kept."""
        return self._document.protection

    def get(self, name: str) -> KeyEntry:
        """What is public of the key of that name.

        Raises:
            UnknownKeyError: there is none.
        """
        return _find(self._document, name, self._path).entry

    def key(self, name: str) -> WatermarkKey:
        """The key of that name, to mark or verify with; may ask for the passphrase.

        Whether it may mark at this moment is for `KeyEntry.check_can_mark` to say.

        Raises:
            UnknownKeyError: there is none.
            KeyStateError: it is revoked.
            KeyringError: the passphrase is wrong or missing, or the secret was altered.
        """
        stored = _find(self._document, name, self._path)
        stored.entry.check_can_verify()
        try:
            return self._open(stored)
        except (InvalidTag, KeyMaterialError):
            # Without the cause, whose frames may hold a damaged secret.
            raise KeyringError(
                f"{self._path}: the secret of key {name!r} was altered or damaged; restore the "
                "file from a backup"
            ) from None

    def _open(self, stored: StoredKey) -> WatermarkKey:
        # The secret goes from call to call without a name, so that no traceback can show it.
        seal, entry, place = self._document.seal, stored.entry, _place(stored.entry)
        form = entry.scheme.profile.key_form
        if seal is None:
            key = WatermarkKey.parse(stored.secret.reveal(), form, key_id=entry.key_id)
        elif form is KeyForm.BYTES32:
            sealer = self._unlock(seal)
            key = WatermarkKey.from_bytes(sealer.unseal(stored.secret.reveal(), place=place))
        else:
            sealer = self._unlock(seal)
            key = WatermarkKey(
                sealer.unseal(stored.secret.reveal(), place=place), form=form, key_id=entry.key_id
            )
        if key.key_id != entry.key_id:
            raise KeyMaterialError("the secret is not the one of this key_id")
        return key

    def __repr__(self) -> str:
        return f"Keyring({str(self._path)!r}, {len(self.entries)} keys)"


class KeyringFile:
    """A key file, there or yet to be made.

    The passphrase is asked for once at most, unless the file is exchanged for one under another
    seal; the object then holds the key derived from it.

    Args:
        path: the file; a symbolic link stands for its target.
        passphrase: asked when a secret of a sealed file is read or added; None if there is nobody
            to ask.
    """

    def __init__(self, path: Path, *, passphrase: Passphrase | None = None) -> None:
        self._path = path
        self._passphrase = passphrase
        self._sealer: Sealer | None = None
        self._asking = Lock()

    def read(self) -> Keyring:
        """The keys as they are now; needs no passphrase.

        Raises:
            KeyringError: the file is missing, broken, of a newer version, or holds secrets in clear
                that others can read.
        """
        path = resolve(self._path)
        document = _load(path)
        if document is None:
            raise KeyringError(
                f"there is no key file {self._path}; make one with `wm-keys new NAME`, or name "
                "another with --keyring"
            )
        return Keyring(document, path=self._path, unlock=self._unlocked)

    def add(
        self, entry: KeyEntry, key: WatermarkKey, *, protection: Protection = Protection.PASSPHRASE
    ) -> None:
        """Store a new key; a file that is not there yet is made with the given protection.

        Raises:
            KeyringError: the name or key_id is taken, the file has the other protection or cannot
                be written, the passphrase is wrong or missing.
            KeyMaterialError: the key is not the entry's, or not of its scheme.
        """
        _check_material(entry, key)
        # Asked now, so that nobody waits for a person while the file is locked.
        sealer = self._sealer_for(entry, protection)
        empty = KeyDocument(seal=None if sealer is None else sealer.parameters)
        with self._change() as (path, found):
            document = empty if found is None else found
            self._refuse_mixing(document, protection)
            if document.seal is not None:
                # Another process may have made the file in between, under a seal of its own.
                sealer = self._unlocked(document.seal)
            stored = StoredKey(entry, _stored_secret(entry, key, sealer))
            replace_file(path, document.with_added(stored).to_bytes)

    def set_state(self, name: str, state: KeyState) -> KeyEntry:
        """Change what a key may be used for; the entry as it is now. Needs no passphrase.

        Raises:
            UnknownKeyError: there is no such key.
            KeyStateError: it is revoked, which is final.
            KeyringError: the file is missing, broken or cannot be written.
        """

        def changed(entry: KeyEntry) -> KeyEntry:
            if entry.state is KeyState.REVOKED and state is not KeyState.REVOKED:
                raise KeyStateError(
                    f"key {name!r} is revoked, which is final; make a new one with `wm-keys new`"
                )
            return replace(entry, state=state)

        return self._replace_entry(name, changed)

    def bind_tokenizer(self, name: str, tokenizer: TokenizerReference) -> KeyEntry:
        """Bind a key to the tokenizer of its texts, once; the entry as it is now.

        Raises:
            UnknownKeyError: there is no such key.
            KeyStateError: it is bound to another tokenizer.
            KeyringError: the file is missing, broken or cannot be written.
        """

        def changed(entry: KeyEntry) -> KeyEntry:
            entry.check_tokenizer(tokenizer)
            return replace(entry, tokenizer=tokenizer) if entry.tokenizer is None else entry

        return self._replace_entry(name, changed)

    def _replace_entry(self, name: str, changed: Callable[[KeyEntry], KeyEntry]) -> KeyEntry:
        self.read().get(name)  # A mistaken path or name must not leave a lock file behind.
        with self._change() as (path, document):
            if document is None:
                raise KeyringError(f"{self._path} was removed meanwhile; nothing is changed")
            old = _find(document, name, self._path).entry
            new = changed(old)
            if new != old:
                replace_file(path, document.with_entry(new).to_bytes)
            return new

    @contextmanager
    def _change(self) -> Iterator[tuple[Path, KeyDocument | None]]:
        """The resolved path and what is there now, with every other writer kept out."""
        path = resolve(self._path)
        with locked(path, timeout_s=_LOCK_TIMEOUT_S):
            yield path, _load(path)

    def _sealer_for(self, entry: KeyEntry, protection: Protection) -> Sealer | None:
        """What will seal the new entry's secret, or why it cannot be added."""
        document = _load(resolve(self._path))
        if document is not None:
            self._refuse_mixing(document, protection)
            document.refuse_duplicate(entry)
            return None if document.seal is None else self._unlocked(document.seal)
        if protection is Protection.NONE:
            return None
        with self._asking:
            self._sealer = Sealer.choose(self._asker(PassphraseUse.CHOOSE), context=SEAL_CONTEXT)
            return self._sealer

    def _unlocked(self, seal: SealParameters) -> Sealer:
        with self._asking:
            if self._sealer is None or self._sealer.parameters != seal:
                try:
                    self._sealer = Sealer.open(
                        seal, self._asker(PassphraseUse.OPEN), context=SEAL_CONTEXT
                    )
                except InvalidTag:
                    raise KeyringError(
                        f"this is not the passphrase of {self._path}; give the one it was made with"
                    ) from None
            return self._sealer

    def _asker(self, use: PassphraseUse) -> Callable[[], str]:
        ask = self._passphrase
        if ask is None:
            raise KeyringError(f"the secrets of {self._path} need a passphrase, and none was given")
        return lambda: ask(use)

    def _refuse_mixing(self, document: KeyDocument, protection: Protection) -> None:
        if document.protection is protection:
            return
        if protection is Protection.NONE:
            raise KeyringError(
                f"{self._path} seals its secrets under a passphrase and takes none in clear; leave "
                "out --no-passphrase, or name another file with --keyring"
            )
        raise KeyringError(
            f"{self._path} holds its secrets in clear and takes none under a passphrase; add "
            "--no-passphrase to store this one in clear too, or name another file with --keyring"
        )


def _load(path: Path) -> KeyDocument | None:
    """What the file says, or None where there is none."""
    try:
        file = open_regular(path, max_bytes=_MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    with file:
        try:
            document = KeyDocument.from_bytes(file.read(_MAX_FILE_BYTES))
        except KeyringError as error:
            raise KeyringError(f"key file {path}: {error}") from error
        if document.protection is Protection.NONE:
            refuse_shared(file, path)
    return document


def _find(document: KeyDocument, name: str, path: Path) -> StoredKey:
    stored = document.find(name)
    if stored is not None:
        return stored
    names = [other.entry.name for other in document.keys]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    known = f"it has {', '.join(names[:_MAX_NAMED])}{more}" if names else "it has no key at all"
    raise UnknownKeyError(f"{path} has no key named {name[:80]!r}; {known}")


def _check_material(entry: KeyEntry, key: WatermarkKey) -> None:
    form = entry.scheme.profile.key_form
    if key.form is not form:
        raise KeyMaterialError(
            f"a secret of scheme {entry.scheme.name} is {form.value}, this one is {key.form.value}"
        )
    if key.key_id != entry.key_id:
        raise KeyMaterialError(
            f"the entry is of key_id {entry.key_id}, the key is {key.key_id}; store it as its own"
        )


def _stored_secret(entry: KeyEntry, key: WatermarkKey, sealer: Sealer | None) -> HiddenText:
    if sealer is None:
        return HiddenText(key.reveal_text())
    return HiddenText(sealer.seal(key.reveal_bytes(), place=_place(entry)))


def _place(entry: KeyEntry) -> str:
    """What a secret's seal is tied to besides the file's format and version."""
    return f"{entry.scheme.name}/{entry.key_id}"
