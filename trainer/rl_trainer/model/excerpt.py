"""Work of the same kind as a learner's or a sampler's that takes a moment: to be done by several processes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_trainer.model.config import DecoderConfig

# Operations of one pass at most: those of a fraction of a second on one core.
MOST_OPERATIONS = 4e10
# Parameters at most: every process makes them, beside the model that it has; 4 bytes each, and as many of gradients.
MOST_PARAMETERS = 5e7
# Tokens that the head knows, at most: of a large vocabulary alone the whole moment would go into it.
_MOST_VOCABULARY = 4096


@dataclass(frozen=True)
class Excerpt:
    """Passes of `rows` sequences of `length` tokens through a model with random weights.

    Attributes:
        config: of the model.
        rows, length: of a pass; a sampler's decode step has one token in a row.
        learns: whether a backward pass follows.
        threads: that a process computes with.
    """

    config: DecoderConfig
    rows: int
    length: int
    learns: bool
    threads: int

    @property
    def operations(self) -> float:
        """Of a pass: 2 for each parameter and token, and twice as many backward (Kaplan et al. 2020, arXiv 2001.08361)."""
        return (6.0 if self.learns else 2.0) * self.parameters * self.rows * self.length

    @property
    def parameters(self) -> int:
        """Of the model, whose head is its embedding."""
        config = self.config
        projections = 2 * config.hidden_size * config.head_dim * (config.heads + config.kv_heads)
        layer = projections + 3 * config.hidden_size * config.intermediate_size
        return config.layers * layer + config.vocab_size * config.hidden_size

    def short(self) -> Excerpt | None:
        """The same with as many layers, and then rows, as are done in a moment: widths stay, which decide what a token needs
        of the memory. None: a single layer has more than MOST_PARAMETERS."""
        found = replace(
            self, config=replace(self.config, vocab_size=min(self.config.vocab_size, _MOST_VOCABULARY))
        )
        while found._large and found.config.layers > 1:
            found = replace(found, config=replace(found.config, layers=found.config.layers // 2))
        while found.operations > MOST_OPERATIONS and found.rows > 1:
            found = replace(found, rows=found.rows // 2)
        return found if found.parameters <= MOST_PARAMETERS else None

    @property
    def _large(self) -> bool:
        return self.operations > MOST_OPERATIONS or self.parameters > MOST_PARAMETERS

    def __call__(self) -> Callable[..., None]:
        """The model is there; returns what makes one pass, of the first so many rows only where it is given a number. In the
        process that makes it, which has torch."""
        import torch
        from torch.nn import functional

        from rl_trainer.model.decoder import Decoder

        torch.set_num_threads(self.threads)  # which is each thread's own
        model = Decoder(self.config)
        model.initialize(0.02, 0)
        model.requires_grad_(self.learns)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.config.vocab_size, (self.rows, self.length), generator=generator)

        def learn(most: int | None = None) -> None:
            part = ids[:most]
            logits = model(part)
            functional.cross_entropy(logits.flatten(0, 1), part.flatten()).backward()  # type: ignore[no-untyped-call]

        def decode(most: int | None = None) -> None:
            with torch.inference_mode():
                model(ids[:most])

        return learn if self.learns else decode
