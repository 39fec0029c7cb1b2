"""Which turn a row of `chunks.csv` belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, slots=True)
class TurnKeys:
    """What the pass needs to know of each turn: only rows with `group >= 0` are counted.

    `output_tokens` (NaN = unknown) tells whether every chunk of a turn was one token, `has_chunks`
    whether it had any.
    """

    request_id: pd.Series
    has_chunks: np.ndarray
    group: np.ndarray
    output_tokens: np.ndarray


class Places:
    """Finds the turn of each row of gaps.

    Attempts of a turn can share a request id: the k-th row of an id belongs to the k-th of its
    turns that had chunks.
    """

    def __init__(self, turns: TurnKeys) -> None:
        ids = turns.request_id.cat
        self._known = ids.categories
        self._counted = turns.group >= 0
        codes = ids.codes.to_numpy().astype(np.int64)
        streamed = np.flatnonzero(turns.has_chunks)
        self._turns = streamed[np.argsort(codes[streamed], kind="stable")]
        # One entry more than ids: an unknown one has the code -1.
        self._count = np.bincount(codes[streamed], minlength=len(self._known) + 1)
        self._first = np.cumsum(self._count) - self._count
        self._seen = np.zeros(len(self._known) + 1, dtype=np.int64)

    def find(self, request_ids: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Positions in the turns, -1 for one not counted or not known; which rows are one too many.

        Of one id each call goes on where the last one ended.
        """
        codes = self._known.get_indexer(pd.Index(request_ids))
        known = codes >= 0
        nth = pd.Series(codes).groupby(codes).cumcount().to_numpy() + self._seen[codes]
        np.add.at(self._seen, codes[known], 1)
        surplus = known & (nth >= np.maximum(self._count[codes], 1))
        place = np.full(len(codes), -1, dtype=np.int64)
        found = known & (nth < self._count[codes])
        place[found] = self._turns[self._first[codes[found]] + nth[found]]
        place[found] = np.where(self._counted[place[found]], place[found], -1)
        return place, surplus
