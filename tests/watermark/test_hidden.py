import copy
import pickle

import pytest

from tokenmark.watermark.hidden import HiddenText


def test_nothing_shows_a_hidden_text_but_reveal() -> None:
    hidden = HiddenText("hunter2")
    shown = [repr(hidden), str(hidden), f"{hidden}", f"{hidden!r}", repr([hidden])]
    assert all("hunter2" not in text for text in shown)
    assert hidden.reveal() == "hunter2"


def test_a_hidden_text_is_neither_pickled_nor_copied() -> None:
    hidden = HiddenText("hunter2")
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            take(hidden)
