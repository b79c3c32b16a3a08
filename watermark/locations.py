"""Where this user's files lie: the cache and the configuration. Knows nothing of their contents."""

from pathlib import Path
from typing import Final

import platformdirs

__all__ = ["cache_folder", "config_folder", "default_keyring_path", "tokenizer_path"]

_APPLICATION: Final = "tokenmark"


def cache_folder() -> Path:
    """The folder of what can be fetched or built again; it need not exist yet."""
    return platformdirs.user_cache_path(_APPLICATION, appauthor=False)


def config_folder() -> Path:
    """The folder of what cannot be made again, such as keys; it need not exist yet."""
    return platformdirs.user_config_path(_APPLICATION, appauthor=False)


def default_keyring_path() -> Path:
    """The key file that is used when none is named."""
    return config_folder() / "keyring.json"


def tokenizer_path(tokenizer_id: str, *, cache: Path | None = None) -> Path:
    """The place of a tokenizer in the cache folder, by default this user's own."""
    folder = cache_folder() if cache is None else cache
    return folder / "tokenizers" / f"{tokenizer_id}.json"
