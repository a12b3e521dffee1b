"""A decoder, as language models are, whose settings say how large it is; with AdamW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.text import Perplexity

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload

NUM_SAMPLES = 2**20
_DISTINCT = 64


class DecoderSettings(Settings):
    """The size. By default it has 355 million parameters, as GPT-2 medium has."""

    num_blocks: int = 24
    width: int = 1024
    num_heads: int = 16
    context: int = 1024
    """Tokens of a sample."""
    vocabulary: int = 50304


class Block(nn.Module):
    """Causal attention and a feed-forward part, each beside its shortcut."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, context, width)."""
        together = self.query_key_value(self.attention_norm(features))
        # (3, N, heads, context, width of a head)
        heads = together.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        features = features + self.attended(found.transpose(1, 2).flatten(2))
        output: Tensor = features + self.down(functional.gelu(self.up(self.norm(features))))
        return output


class Decoder(nn.Module):
    """Blocks between an embedding and the logits, which share their weights."""

    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        self.tokens = nn.Embedding(settings.vocabulary, settings.width)
        self.positions = nn.Parameter(torch.empty(settings.context, settings.width))
        self.blocks = nn.Sequential(
            *(Block(settings.width, settings.num_heads) for _ in range(settings.num_blocks))
        )
        self.norm = nn.LayerNorm(settings.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, context, vocabulary) of tokens (N, context)."""
        features = self.blocks(self.tokens(tokens) + self.positions)
        return functional.linear(self.norm(features), self.tokens.weight)


class ManySamples:
    """Few distinct samples under many indices, so that no epoch ends and little memory is used."""

    def __init__(self, settings: DecoderSettings) -> None:
        rng = np.random.default_rng(0)
        size = (_DISTINCT, settings.context + 1)
        self.rows = rng.integers(0, settings.vocabulary, size)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Columns:
        return {"tokens": self.rows[index % _DISTINCT]}

    def __getitems__(self, indices: Sequence[int]) -> Columns:
        return {"tokens": self.rows[np.asarray(indices) % _DISTINCT]}


class RandomText(Workload[DecoderSettings]):
    """Learns the next token of random text by heart."""

    Settings = DecoderSettings
    target_columns = ()

    def model(self) -> Decoder:
        """The decoder."""
        return Decoder(self.settings)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Fused AdamW over all parameters."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def dataset(self, split: Split) -> Any:
        """Random tokens."""
        many = ManySamples(self.settings)
        return many if split == "train" else ArrayDataset(tokens=many.rows[:2])

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The tokens, and for each of them the one that follows."""
        tokens = torch.from_numpy(columns["tokens"])
        return {
            "inputs": tokens[:, :-1].contiguous(),
            "targets": tokens[:, 1:].contiguous(),
        }

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(outputs.flatten(0, 1).float(), batch["targets"].flatten())

    def metrics(self) -> Mapping[str, Metric]:
        """The perplexity."""
        return {"perplexity": Perplexity()}

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """The likeliest last token."""
        return {"prediction": outputs[:, -1].argmax(-1)}
