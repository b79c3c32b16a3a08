"""The text of one answer, id by id as it is drawn. Knows nothing of requests or of streaming.

Text passes two gates before it is shown: characters whose bytes have not all come wait at the
first, and text that may be the beginning of a stop string waits at the second.
"""

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["Detokenizer"]

_REPLACEMENT: Final = "\ufffd"
# A character has at most four bytes, so an incomplete one is spread over at most three ids.
_MAX_INCOMPLETE_IDS: Final = 3


class Detokenizer:
    """Turns ids into text that later ids cannot take back.

    What `push` and `finish` return, joined, is `decode` of all ids, or the part of it before the
    first stop string. The work for one id does not grow with the length of the text.

    Args:
        decode: the text of a sequence of ids. Special ids add nothing to it, bytes that are not
            UTF-8 give U+FFFD, and more ids change at most an incomplete character at its end.
        stop: the answer ends before the first of these, that is the one whose last character comes
            first, and among several such the longest.
        min_tokens: a stop string counts only if it begins behind the text of this many ids; one
            that begins earlier is text like any other.

    >>> detokenizer = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"), ("|",))
    >>> [detokenizer.push(byte) for byte in "né|x".encode()]
    ['n', '', 'é', '', '']
    >>> detokenizer.stopped
    True
    """

    __slots__ = (
        "_decode",
        "_min_tokens",
        "_n_ids",
        "_n_read",
        "_parts",
        "_read_text",
        "_stop",
        "_stopped",
        "_undecided",
        "_window",
    )

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
    ) -> None:
        self._decode = decode
        self._stop = [_StopString(text) for text in stop]
        self._min_tokens = min_tokens
        self._n_ids = 0
        # The window is the ids whose text came last (read) and those whose text waits. Some read
        # ids stay in it because the text of an id may depend on whether one stands before it.
        self._window: list[int] = []
        self._n_read = 0
        self._read_text = ""
        # Complete characters that may be the beginning of a stop string.
        self._undecided = ""
        self._parts: list[str] = []
        self._stopped = False

    @property
    def text(self) -> str:
        """All text returned so far."""
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; from then on there is no more text."""
        return self._stopped

    def push(self, token_id: int) -> str:
        """The text that can be shown now that this id has been drawn; often none."""
        if self._stopped:
            return ""
        self._n_ids += 1
        self._window.append(token_id)
        return self._show(self._take_complete())

    def finish(self) -> str:
        """The text held back so far, now that no id follows."""
        if self._stopped:
            return ""
        rest = self._decode(self._window)[len(self._read_text) :]
        self._keep_window_from(len(self._window))
        shown = self._show(rest)
        rest, self._undecided = self._undecided, ""
        self._parts.append(rest)
        return shown + rest

    def _take_complete(self) -> str:
        """The new text of the window up to its last complete character."""
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            return self._take_before_incomplete(text)
        new = text[len(self._read_text) :]
        if new:
            self._keep_window_from(self._n_read)
        elif self._read_text:
            # Special ids: they would only push the ids out of the window that matter to the next.
            del self._window[self._n_read :]
        else:
            # A space that is not shown at the start of an answer, but is what the next id follows.
            self._n_read = len(self._window)
        return new

    def _take_before_incomplete(self, text: str) -> str:
        """The new text up to a character that may be incomplete.

        U+FFFD at the end is an incomplete character, or bytes that never become one, or a genuine
        U+FFFD; the next ids tell. They may go on in the same way for ever, so the window is cut
        where it surely can be: between two ids whose texts stay the same when joined. An incomplete
        character is one U+FFFD; cut in two, it would be at least two.
        """
        if len(self._window) - self._n_read <= _MAX_INCOMPLETE_IDS:
            return ""
        for border in range(len(self._window) - 1, self._n_read, -1):
            head, tail = self._decode(self._window[:border]), self._decode(self._window[border:])
            if tail and head + tail == text:
                new = head[len(self._read_text) :]
                del self._window[:border]
                self._n_read, self._read_text = 0, ""
                return new
        return ""

    def _keep_window_from(self, start: int) -> None:
        """Mark the whole window as read and drop the ids before `start`."""
        del self._window[:start]
        self._n_read = len(self._window)
        self._read_text = self._decode(self._window)

    def _show(self, new: str) -> str:
        """The part of the undecided and the new text in which no stop string can begin any more."""
        text = self._undecided + new
        end = self._find_stop(new)
        if end is None:
            n_shown = len(text) - max((stop.n_matched for stop in self._stop), default=0)
            shown, self._undecided = text[:n_shown], text[n_shown:]
        else:
            self._stopped = True
            shown, self._undecided = text[: len(self._undecided) + end], ""
        self._parts.append(shown)
        return shown

    def _find_stop(self, new: str) -> int | None:
        """Where the first stop string begins, counted from the start of the new text.

        Negative if that is in the undecided text.
        """
        if not self._stop or self._n_ids <= self._min_tokens:
            return None
        for index, char in enumerate(new):
            n_completed = [len(stop.text) for stop in self._stop if stop.advance(char)]
            if n_completed:
                return index + 1 - max(n_completed)
        return None


class _StopString:
    """One stop string and how much of it the text ends with (Knuth, Morris and Pratt).

    Reads every character once, so that neither a long stop string nor a repetitive answer costs
    more than its length.
    """

    __slots__ = ("_borders", "n_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.n_matched = 0
        # _borders[n] is the length of the longest proper prefix of text[:n] that also ends it.
        self._borders = [0, 0]
        for char in text[1:]:
            self._borders.append(self._extend(self._borders[-1], char))

    def advance(self, char: str) -> bool:
        """Whether the text, with this character, ends with the whole stop string."""
        self.n_matched = self._extend(self.n_matched, char)
        return self.n_matched == len(self.text)

    def _extend(self, n_matched: int, char: str) -> int:
        while n_matched and self.text[n_matched] != char:
            n_matched = self._borders[n_matched]
        return n_matched + (self.text[n_matched] == char)
