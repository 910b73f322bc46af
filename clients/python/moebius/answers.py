# SPDX-License-Identifier: Apache-2.0
"""What a router answers. Names are those of proto/moebius/api/router/v1/router.proto and of
`moebius … --json`; the proto says more about each."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from moebius.errors import ErrorDetail


class FinishReason(str, Enum):
    """Why an answer ended."""

    NONE = "none"  # it goes on
    STOP = "stop"  # an end marker or a stop sequence
    LENGTH = "length"  # max_tokens are there
    ABORT = "abort"  # the caller or an operator ended it


class RequestState(str, Enum):
    """Where a request is."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class RankedToken:
    """A token and its natural log-probability at temperature 1, before penalties and biases."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class PositionLogprobs:
    """The candidates of one position: the one that was taken, and the best, descending."""

    chosen: RankedToken
    top: tuple[RankedToken, ...]


@dataclass(frozen=True)
class EffectiveSampling:
    """The values that a request runs with, defaults filled in."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int  # given or drawn
    max_tokens: int  # given or chosen


@dataclass(frozen=True)
class LayerExpert:
    """One routed expert."""

    layer: int
    expert: int


@dataclass(frozen=True)
class Exactness:
    """Whether an answer is what the model alone would have said."""

    exact: bool
    dropped: int  # assignments that a capacity limit dropped
    rerouted: int  # assignments that it sent to another expert
    missing_experts: tuple[LayerExpert, ...]  # left out: nobody could compute them
    bias_override: bool  # a balancer's bias was in force instead of the checkpoint's
    reasons: tuple[str, ...]  # in words


@dataclass(frozen=True)
class PortTraffic:
    """What the router exchanged with one kind of service, without frame headers."""

    messages: int  # sent; most are answered by one
    bytes_out: int
    bytes_back: int


@dataclass(frozen=True)
class StepFigures:
    """Where the time of steps went, and what they counted."""

    embed_seconds: float
    attention_seconds: float
    norm_seconds: float
    gate_seconds: float
    plan_seconds: float
    expert_seconds: float
    combine_seconds: float
    head_seconds: float
    num_rows: int
    assignments: int
    dropped: int
    dispatched_rows: int
    reply_rows: int
    group_fill_mismatches: int
    stall_seconds: float
    resends: int
    resent_rows: int
    attention_traffic: PortTraffic
    expert_traffic: PortTraffic
    naive_messages: int  # of a protocol that asks each expert of a layer by itself
    naive_bytes: int  # of rows in it, each way
    attention_methods: tuple[str, ...]  # how attention ranks shared prompts; empty with one
    rerouted: int  # assignments that a capacity sent to another expert
    combined: int  # assignments = combined + dropped
    conservation_errors: int  # 0, or the router is at fault


@dataclass(frozen=True)
class GenerateTiming:
    """What a request took, by the router's clock."""

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prefill_steps: int
    decode_steps: int
    figures: StepFigures


@dataclass(frozen=True)
class GenerateChunk:
    """News of a request. The token ids of all chunks together are the answer."""

    request_id: str
    token_ids: tuple[int, ...]  # new ones; may be empty
    logprobs: tuple[PositionLogprobs, ...]  # beside token_ids, where asked for
    prompt_tokens: int
    prefilled_tokens: int  # of the prompt, processed so far
    cached_tokens: int  # of these, from a cache
    completion_tokens: int  # so far, with those of this chunk
    sampling: EffectiveSampling
    finish_reason: FinishReason
    # Of the last chunk; empty or None in the others.
    matched_stop: str  # the stop text, "eos ID" or "token ID"
    exactness: Exactness | None
    timing: GenerateTiming | None
    logits_hash: str
    tokens_hash: str
    config_hash: str


@dataclass(frozen=True)
class Answer:
    """A whole answer: the last chunk, with the tokens of all."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    sampling: EffectiveSampling
    finish_reason: FinishReason
    matched_stop: str
    exactness: Exactness
    timing: GenerateTiming
    logits_hash: str
    tokens_hash: str
    config_hash: str

    @property
    def seed(self) -> int:
        """Asked for again, with the same request, it gives this answer."""
        return self.sampling.seed


@dataclass(frozen=True, eq=False)
class ForwardAnswer:
    """What the experts of a layer make of rows."""

    num_rows: int
    hidden_size: int
    exactness: Exactness
    assignments: int
    rows: npt.NDArray[np.uint16]  # [num_rows, hidden_size] bf16 bits: what the residual gains


@dataclass(frozen=True)
class RoutedService:
    """What one expert service gets and answers."""

    name: str
    experts: tuple[int, ...]
    rows_sent: int
    reply_rows: int


@dataclass(frozen=True)
class ClosestTie:
    """Where the last expert that was chosen and the first that was not were nearest."""

    token_index: int
    chosen_expert: int
    next_expert: int
    gap: float


@dataclass(frozen=True, eq=False)
class RouteAnswer:
    """Assignments and dispatch of T tokens, k experts each, E experts in the layer."""

    layer: int
    num_experts: int  # E
    top_k: int  # k
    num_groups: int
    num_kept_groups: int
    token_ids: npt.NDArray[np.int64]  # [T]
    expert_ids: npt.NDArray[np.int32]  # [T, k], strongest first
    weights: npt.NDArray[np.float32]  # [T, k]
    services: tuple[RoutedService, ...]
    row_bytes: int
    shared_rows_sent: int
    shared_reply_rows: int
    load: npt.NDArray[np.int64]  # [E]: how many tokens chose it
    dropped: npt.NDArray[np.int64]  # [E]
    rerouted: npt.NDArray[np.int64]  # [E]
    group_fill_mismatches: int
    closest_tie: ClosestTie | None  # None where every expert is chosen


@dataclass(frozen=True, eq=False)
class ExpertLoad:
    """Assignments since the router began. Never sum over layers: expert 9 of two layers are two
    networks."""

    layer_ids: tuple[int, ...]  # L of them, ascending
    num_experts: int  # E
    demand: npt.NDArray[np.int64]  # [L, E]: tokens that chose the expert
    dropped: npt.NDArray[np.int64]  # [L, E]: of these, dropped by capacity
    active: tuple[int, ...]  # [L]: experts that had rows in the last step
    has_capacity: bool  # without one nothing is ever dropped


@dataclass(frozen=True)
class ModelInfo:
    """The model that is served."""

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    moe_layers: tuple[int, ...]
    max_positions: int
    num_experts: int
    top_k: int
    num_shared_experts: int
    num_groups: int
    num_kept_groups: int
    score_function: str
    has_correction_bias: bool
    routed_scaling_factor: float
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer: str  # "bytes": ids 0 to 255 are bytes; empty: none at the router
    config_hash: str
    model_hash: str
    numeric_class: str  # processes of one class give the same bits
    dtype: str
    default_sampling: EffectiveSampling

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, the one that begins a text first. ValueError without tokenizer."""
        self._check_tokenizer()
        begin = [] if self.bos_token_id is None else [self.bos_token_id]
        return begin + list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer; markers give none. ValueError without tokenizer."""
        self._check_tokenizer()
        return bytes(token for token in token_ids if 0 <= token < 256).decode("utf-8", "replace")

    def _check_tokenizer(self) -> None:
        if self.tokenizer != "bytes":
            raise ValueError(f"'{self.name}' has no tokenizer that this client knows: "
                             "give token ids")


@dataclass(frozen=True)
class ServiceState:
    """One process as the router sees it."""

    name: str  # "expert-0"
    role: str  # "router", "expert" or "attention"
    state: str  # "joining", "loading", "canary", "usable", "suspect" or "dead"
    address: str
    detail: str  # more of it in words
    http_address: str  # HOST:PORT of its /metrics and probes; empty where it has none


@dataclass(frozen=True)
class Limit:
    """A bound on what callers may ask, and what they get beyond it."""

    name: str
    value: int  # inclusive
    code: str
    description: str


@dataclass(frozen=True)
class ServerInfo:
    """A router and the services that it knows."""

    version: str
    uptime_seconds: float
    topology: str  # "embedded", "split" or "co-located"
    ready: bool
    missing: tuple[str, ...]  # what keeps it from being ready, in words
    epoch: int
    tier: str
    threads: int
    services: tuple[ServiceState, ...]
    limits: tuple[Limit, ...]
    queued_requests: int
    running_requests: int
    kv_capacity_tokens: int
    kv_reserved_tokens: int
    requests_total: int
    rejected_total: int
    failed_total: int
    cancelled_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    figures: StepFigures
    capacity: str  # of experts, in words; empty: dropless
    warnings: tuple[str, ...]  # what had better be otherwise, with what to do


@dataclass(frozen=True)
class LayerBias:
    """The biases of one layer's gate, of E experts."""

    layer: int
    base: tuple[float, ...]  # [E], the checkpoint's; zeros where it has none
    bias: tuple[float, ...]  # [E], the balancer's
    max_violation: float  # of the last window: the hottest expert over the mean, less 1
    max_delta: float  # the largest |bias - base|
    changed_ratio: float  # in mode shadow: share of tokens whose experts the biases would change


@dataclass(frozen=True)
class Bias:
    """What a router's balancer does with the biases of its gates."""

    mode: str  # "off", "shadow" or "on"
    version: int  # rises by one with every change
    gamma: float
    limit: float
    window: int  # assignments per expert; 0: traffic moves nothing
    observed: int  # of these, in the window at hand
    file: str  # where they are kept; empty: nowhere
    model_hash: str
    layers: tuple[LayerBias, ...]


@dataclass(frozen=True)
class PlacedService:
    """What one expert service holds."""

    name: str
    state: str
    num_held: int  # sets of weights
    num_experts_held: int  # of these, routed experts
    held_bytes: int


@dataclass(frozen=True)
class Replicas:
    """Who holds one set of weights, and who of them did its work."""

    services: tuple[int, ...]  # by index, the preferred one first
    served: tuple[int, ...]  # beside services: rows since the router began; empty: not told


@dataclass(frozen=True)
class PlacedLayer:
    """One layer's routed experts, and from there on its slices."""

    layer: int
    has_experts: bool
    ids: tuple[Replicas, ...]  # by id; without experts the slices alone


@dataclass(frozen=True)
class Placement:
    """Which expert service holds what."""

    epoch: int
    num_experts: int
    expert_bytes: int  # of one routed expert, as bf16
    services: tuple[PlacedService, ...]
    layers: tuple[PlacedLayer, ...]


@dataclass(frozen=True)
class Explanation:
    """How a request stands or went."""

    request_id: str
    state: RequestState
    age_seconds: float
    failure: ErrorDetail | None  # why it failed
    last: GenerateChunk | None  # its last chunk, without tokens and logarithms
