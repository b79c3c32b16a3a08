import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tokenmark.eval import draw_cases
from tokenmark.eval.draw_cases import _TOP_K_AND_P, _TOP_P, _Choice, _keyed, _Rows, _unmarked
from tokenmark.eval.measuring import GateError
from tokenmark.kernels.gumbel import Draws, draw
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf.family import Family

CHOICES = [None, _TOP_K_AND_P, _TOP_P]


def normal_rows() -> Tensor:
    return 2 * torch.randn(4, 500, generator=torch.Generator().manual_seed(3))


ROWS = _Rows(name="small", what="small rows", make=normal_rows, n_runs=2)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("family", list(Family))
def test_a_run_of_the_draw_takes_some_time_for_all_entries(
    choice: _Choice | None, family: Family, tmp_path: Path
) -> None:
    run = _keyed(ROWS, choice, family)(tmp_path)()
    assert run.n_entries == 2000
    assert 1e-7 < run.seconds < 1


@pytest.mark.parametrize("choice", CHOICES)
def test_a_run_of_the_peer_takes_some_time_for_all_entries(
    choice: _Choice | None, tmp_path: Path
) -> None:
    run = _unmarked(ROWS, choice)(tmp_path)()
    assert run.n_entries == 2000
    assert 1e-7 < run.seconds < 1


def test_rows_of_another_type_are_drawn_as_they_are(tmp_path: Path) -> None:
    rows = dataclasses.replace(ROWS, make=lambda: normal_rows().bfloat16())
    assert _keyed(rows, None, Family.CHACHA8)(tmp_path)().n_entries == 2000


def test_a_draw_with_wrong_ids_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: Tensor, keys: RowKeys, filters: Filters | None) -> Draws:
        found = draw(logits, keys, filters)
        # One wrong id in one of the batches.
        if keys.states[0, 0] == last_state:
            found.ids[2] += 1
        return found

    last_state = draw_cases._row_keys(Family.CHACHA8, 4)[-1].states[0, 0]
    monkeypatch.setattr(draw_cases, "draw", broken)
    with pytest.raises(GateError, match="row 2 drew id"):
        _keyed(ROWS, None, Family.CHACHA8)(tmp_path)


def test_a_draw_that_leaves_out_the_filters_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: Tensor, keys: RowKeys, _filters: Filters | None) -> Draws:
        return draw(logits, keys)

    monkeypatch.setattr(draw_cases, "draw", broken)
    with pytest.raises(GateError, match="drew id"):
        _keyed(ROWS, _TOP_K_AND_P, Family.CHACHA8)(tmp_path)


def test_a_peer_that_draws_what_is_not_there_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: Tensor, _generator: torch.Generator) -> Tensor:
        return torch.zeros(len(logits), dtype=torch.int64)

    monkeypatch.setattr(draw_cases, "draw_by_division", broken)
    with pytest.raises(GateError, match="than the only one there was"):
        _unmarked(ROWS, None)(tmp_path)


def test_a_peer_that_filters_too_little_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: Tensor, *, top_k: int | None, top_p: float) -> Tensor:
        assert (top_k, top_p) == (None, 0.95)
        return logits

    monkeypatch.setattr(draw_cases, "filter_by_sorting", broken)
    with pytest.raises(GateError, match="sorting left 500 of row 0"):
        _unmarked(ROWS, _TOP_P)(tmp_path)
