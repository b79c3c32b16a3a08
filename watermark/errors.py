"""The exceptions that callers may catch, in one tree. Knows nothing of what raises them.

    TokenmarkError
    ├── SchemeError           a scheme or one of its parameters does not exist
    ├── KeyMaterialError      a secret of the wrong form, or one that everybody knows
    ├── KeyringError          the key file: missing, broken, locked, too open, too new
    │   ├── UnknownKeyError   no entry of that name
    │   └── KeyStateError     the entry exists and may not be used for this
    ├── TokenizerError        a tokenizer that is missing, broken or not the key's own
    ├── TokenIdError          ids outside the range of the scheme or the vocabulary
    ├── DocumentError         a text that cannot be read: empty, binary, wrong form
    ├── ModelError            weights that are missing, damaged or of an unknown kind
    ├── AddressError          a host or port that cannot be served at
    ├── CapacityError         the machine or the engine is too small for what was asked
    ├── RequestError          a generation request that no engine state could make valid
    └── SamplingError         logits from which nothing can be drawn

Every message says what was wrong, with which value, by which rule, and the way out. No message
holds a secret or a user's text.
"""

__all__ = [
    "AddressError",
    "CapacityError",
    "DocumentError",
    "KeyMaterialError",
    "KeyStateError",
    "KeyringError",
    "ModelError",
    "RequestError",
    "SamplingError",
    "SchemeError",
    "TokenIdError",
    "TokenizerError",
    "TokenmarkError",
    "UnknownKeyError",
]


class TokenmarkError(Exception):
    """Base of everything this project raises on purpose."""


class SchemeError(TokenmarkError):
    """A scheme that is not registered, or a parameter outside its range."""


class KeyMaterialError(TokenmarkError):
    """A secret that has the wrong form or is publicly known."""


class KeyringError(TokenmarkError):
    """The key file cannot be read, written or trusted as it stands."""


class UnknownKeyError(KeyringError):
    """The keyring has no entry of that name."""


class KeyStateError(KeyringError):
    """The entry's state, validity or tokenizer forbids the use that was asked."""


class TokenizerError(TokenmarkError):
    """A tokenizer file that is missing, unreadable or not the one a key is bound to."""


class TokenIdError(TokenmarkError):
    """Token ids that are not integers of the allowed range."""


class DocumentError(TokenmarkError):
    """An input that holds no text to score."""


class ModelError(TokenmarkError):
    """Model weights that are missing, damaged or not supported."""


class AddressError(TokenmarkError):
    """A host that must not be served at, or a port that cannot be had."""


class CapacityError(TokenmarkError):
    """Memory or a limit of the engine is too small for the request."""


class RequestError(TokenmarkError):
    """A generation request that breaks a rule.

    Args:
        message: what was wrong and the way out.
        param: name of the offending request field, for the HTTP error body.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class SamplingError(TokenmarkError):
    """A row of logits that is NaN or wholly masked."""
