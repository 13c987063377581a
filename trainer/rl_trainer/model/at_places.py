"""What a model gives at places of a batch: all of it, or, of a sequence that processes share, this one's part."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn


class AtPlaces(nn.Module):
    """A model that is asked for some places of a batch.

    Arguments of all methods: `input_ids` int [B, T]; `attention_mask` [B, T], 1 for tokens and 0 for padding, which must
    follow them, and at which nothing has a meaning; `places` int64 [M] of the flattened [B * T]; `shared`: with which tokens
    a row begins as another one does, see `Packing.of`.
    """

    @abstractmethod
    def own_hidden_at(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, shared: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What log-probs are made of, [m, H or V], and of which `places` it is, bool [M]; None: of all, m = M."""

    @abstractmethod
    def own_states_at(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, shared: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What a value head reads, [m, H], and of which `places` it is, likewise."""

    def hidden_at(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """`own_hidden_at`, of a model whose sequences no other process shares."""
        return self.own_hidden_at(input_ids, attention_mask, places, shared)[0]

    def states_at(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """`own_states_at`, likewise."""
        return self.own_states_at(input_ids, attention_mask, places, shared)[0]
