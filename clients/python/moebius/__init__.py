# SPDX-License-Identifier: Apache-2.0
"""Client of a Moebius router: answers token by token, experts as a service, and what it knows."""
from moebius.answers import (Answer, Bias, ClosestTie, EffectiveSampling, Exactness, ExpertLoad,
                             Explanation, FinishReason, ForwardAnswer, GenerateChunk,
                             GenerateTiming, LayerBias, LayerExpert, Limit, ModelInfo, PlacedLayer,
                             PlacedService, Placement, PortTraffic, PositionLogprobs, RankedToken,
                             Replicas, RequestState, RoutedService, RouteAnswer, ServerInfo,
                             ServiceState, StepFigures)
from moebius.bf16 import from_bf16, to_bf16
from moebius.client import Client, ClientOptions, Tls
from moebius.errors import (AbortedError, AlreadyExistsError, CancelledError, DataLossError,
                            DeadlineExceededError, ErrorDetail, FailedPreconditionError,
                            InternalError, InvalidArgumentError, MoebiusError, NotFoundError,
                            OutOfRangeError, PermissionDeniedError, ResourceExhaustedError,
                            UnauthenticatedError, UnavailableError, UnimplementedError,
                            UnknownError)
from moebius.requests import GenerateRequest
from moebius.stream import GenerateStream

__version__ = "0.1.0"

__all__ = [
    "AbortedError", "AlreadyExistsError", "Answer", "Bias", "CancelledError", "Client", "ClientOptions",
    "ClosestTie", "DataLossError", "DeadlineExceededError", "EffectiveSampling", "ErrorDetail",
    "Exactness", "ExpertLoad", "Explanation", "FailedPreconditionError", "FinishReason",
    "ForwardAnswer", "GenerateChunk", "GenerateRequest", "GenerateStream", "GenerateTiming",
    "InternalError", "InvalidArgumentError", "LayerBias", "LayerExpert", "Limit", "ModelInfo",
    "MoebiusError", "NotFoundError", "OutOfRangeError", "PermissionDeniedError", "PlacedLayer",
    "PlacedService", "Placement", "PortTraffic", "PositionLogprobs", "RankedToken", "Replicas",
    "RequestState", "ResourceExhaustedError", "RouteAnswer", "RoutedService", "ServerInfo",
    "ServiceState", "StepFigures", "Tls", "UnauthenticatedError", "UnavailableError",
    "UnimplementedError", "UnknownError", "from_bf16", "to_bf16",
]
