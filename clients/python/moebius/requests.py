# SPDX-License-Identifier: Apache-2.0
"""What a caller asks for."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moebius import wire

_GenerateRequest = wire.methods(wire.ROUTER)["Generate"].request
_OPTIONAL = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
             "presence_penalty", "frequency_penalty", "seed", "logprobs")


@dataclass(frozen=True)
class GenerateRequest:
    """A prompt in token ids, and how to go on with it.

    None takes the model's default (generation_config.json), then the server's; zero is taken
    literally. The router checks every value and names the one that it refuses.
    """

    token_ids: Sequence[int]  # at least one; no id is added
    max_tokens: int | None = None  # None: 256, or what fits behind the prompt
    temperature: float | None = None  # 0: the most probable token, the lowest id among equals
    top_k: int | None = None  # 0: off
    top_p: float | None = None  # 1: off, 0: the best candidate alone
    min_p: float | None = None  # 0: off
    repetition_penalty: float | None = None  # 1: off; counts prompt and answer
    presence_penalty: float | None = None  # 0: off; counts the answer
    frequency_penalty: float | None = None  # 0: off; counts the answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token ▸ [-100, 100]
    seed: int | None = None  # same seed, same answer; None: drawn, and told
    stop_token_ids: Sequence[int] = ()  # the answer ends before these
    stop: Sequence[str] = ()  # and before these texts; needs a tokenizer at the router
    logprobs: int | None = None  # best candidates reported per token; None: no logarithms
    ignore_eos: bool = False  # goes on after the model's end markers
    priority: int = 0  # higher first
    deadline_seconds: float | None = None  # from now; None: the router's allowance
    request_id: str = ""  # so that a repeated call cannot run twice; empty: drawn
    config_hash: str = ""  # the configuration that is meant; empty: any

    def to_message(self) -> Any:
        """As moebius.api.router.v1.GenerateRequest. ValueError for what it cannot say."""
        message = _GenerateRequest(
            request_id=self.request_id, token_ids=self.token_ids,
            stop_token_ids=self.stop_token_ids, stop=self.stop, ignore_eos=self.ignore_eos,
            priority=self.priority, config_hash=self.config_hash)
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                setattr(message, name, value)
        for token_id, bias in self.logit_bias.items():
            message.logit_bias.add(token_id=token_id, bias=bias)
        if self.deadline_seconds is not None:
            message.deadline_ms = max(1, math.ceil(self.deadline_seconds * 1000))
        return message
