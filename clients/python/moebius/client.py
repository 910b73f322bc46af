# SPDX-License-Identifier: Apache-2.0
"""The calls on a router."""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from moebius import wire
from moebius.answers import (Answer, Bias, ExpertLoad, Explanation, ForwardAnswer, ModelInfo,
                             Placement, RouteAnswer, ServerInfo)
from moebius.bf16 import to_bf16
from moebius.errors import DeadlineExceededError, ErrorDetail, UnavailableError, from_rpc
from moebius.reading import read, read_expert_load, read_forward, read_route
from moebius.requests import GenerateRequest
from moebius.stream import GenerateStream

_MAX_MESSAGE_BYTES = 256 << 20  # a router's largest
_DEADLINE_GRACE_SECONDS = 1.0  # that the router's own word on a deadline is waited for
_RETRY_SECONDS = 0.1  # between attempts to watch a router that ends its watches
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # Room for the longest ErrorDetail, as text, beside its message.
    ("grpc.max_metadata_size", 32 << 10),
    # A dead connection ends its calls; the router permits a ping every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # An idle one is closed before a balancer forgets it, else the next call would wait for that.
    ("grpc.client_idle_timeout_ms", 60_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True)
class Tls:
    """PEM files. With `cert_file` and `key_file` the client proves who it is (mutual TLS)."""

    ca_file: str = ""  # who may sign the router's certificate; empty: gRPC's own list
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""  # the name in the router's certificate; empty: the target's

    def to_credentials(self) -> grpc.ChannelCredentials:
        """OSError or ValueError for files that cannot be used."""
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("a certificate and its key are given together or not at all")
        return grpc.ssl_channel_credentials(root_certificates=_read_pem(self.ca_file),
                                            private_key=_read_pem(self.key_file),
                                            certificate_chain=_read_pem(self.cert_file))


@dataclass(frozen=True)
class ClientOptions:
    """What holds for all calls of a client."""

    tls: Tls | None = None  # None: plain text
    api_key: str = ""  # what a router with --api-keys wants; empty: none
    timeout_seconds: float = 30.0  # of a call; of Generate it is the request's deadline instead


class Client:
    """A router at "HOST:PORT". Thread-safe. Connects when first used; retries nothing by itself.

    A failed call raises a MoebiusError, whose `retryable` says whether to try again.
    """

    def __init__(self, target: str, options: ClientOptions = ClientOptions()) -> None:
        self._target = target
        self._options = options
        channel_options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
        if options.tls is None:
            self._channel = grpc.insecure_channel(target, channel_options)
        else:
            if options.tls.server_name:
                channel_options.append(("grpc.ssl_target_name_override", options.tls.server_name))
            self._channel = grpc.secure_channel(target, options.tls.to_credentials(),
                                                channel_options)
        self._methods = {**wire.methods(wire.ROUTER), **wire.methods(wire.HEALTH)}

    def close(self) -> None:
        """Ends what is under way. The client takes no further calls."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def generate(self, request: GenerateRequest, *, traceparent: str = "") -> Answer:
        """Waits for the whole answer. Ctrl-C ends the request.

        `traceparent` is the W3C Trace Context of the caller's span; empty: none.
        """
        with self.generate_stream(request, traceparent=traceparent) as stream:
            return stream.answer()

    def generate_stream(self, request: GenerateRequest, *,
                        traceparent: str = "") -> GenerateStream:
        """The answer while it comes: `with client.generate_stream(…) as stream: for chunk in …`."""
        # The router ends a request at its deadline and says how far it came; its word is waited for.
        limit = request.deadline_seconds
        call = self._start("Generate", request.to_message(),
                           None if limit is None else limit + _DEADLINE_GRACE_SECONDS,
                           traceparent=traceparent)
        return GenerateStream(call, self._target)

    def forward(self, layer: int, rows: npt.NDArray[Any], *, config_hash: str = "",
                timeout_seconds: float | None = None, traceparent: str = "") -> ForwardAnswer:
        """Takes [num_rows, hidden_size] rows through the experts of a MoE layer.

        uint16 rows are bf16 bits; float rows are rounded to bf16. TypeError or ValueError for
        others.
        """
        if rows.ndim != 2:
            raise ValueError(f"rows are [num_rows, hidden_size], not {rows.ndim}-dimensional")
        if rows.dtype != np.uint16 and not np.issubdtype(rows.dtype, np.floating):
            raise TypeError(f"rows are uint16 (bf16 bits) or floats, not {rows.dtype}")
        bits = rows if rows.dtype == np.uint16 else to_bf16(rows)
        num_rows, hidden_size = rows.shape
        response = self._call("Forward", {
            "layer": layer, "num_rows": num_rows, "hidden_size": hidden_size,
            "config_hash": config_hash, "rows": bits.astype("<u2", copy=False).tobytes(),
        }, timeout_seconds, traceparent)
        return read_forward(response, num_rows, hidden_size)

    def route(self, token_ids: Sequence[int], layer: int, *, num_services: int | None = None,
              timeout_seconds: float | None = None) -> RouteAnswer:
        """Which experts a prompt would meet in a MoE layer, and who would send what to whom.

        `num_services` plans for so many expert services instead of those that are there.
        """
        return read_route(self._call("Route", {
            "token_ids": token_ids, "layer": layer, "num_services": num_services,
        }, timeout_seconds))

    def model_info(self) -> ModelInfo:
        """What the router serves."""
        return read(ModelInfo, self._call("GetModelInfo", {}))

    def server_info(self) -> ServerInfo:
        """Version, limits, services and their states."""
        return read(ServerInfo, self._call("GetServerInfo", {}))

    def expert_load(self) -> ExpertLoad:
        """The load of every routed expert since the router began."""
        return read_expert_load(self._call("GetExpertLoad", {}))

    def bias(self) -> Bias:
        """The biases of the gates, and what the balancer does with them."""
        return read(Bias, self._call("GetBias", {}))

    def placement(self) -> Placement:
        """Which expert service holds what."""
        return read(Placement, self._call("GetPlacement", {}))

    def explain(self, request_id: str) -> Explanation:
        """How a running request stands, or how one of the last ones went."""
        return read(Explanation, self._call("Explain", {"request_id": request_id}))

    def health(self, name: str = "") -> bool:
        """Whether grpc.health.v1 says SERVING of "", "liveness", "readiness" or "startup"."""
        return _is_serving(self._call("Check", {"service": name}))

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Returns when the router takes requests. DeadlineExceededError when it does not in time.
        Waits for a router that is not there yet, or that restarts."""
        deadline = time.monotonic() + timeout_seconds
        reason = "it is not ready"
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self._watch_until_serving(left):
                    return
            except UnavailableError as error:
                reason = error.message
            except DeadlineExceededError:
                break
            time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
        raise DeadlineExceededError(ErrorDetail(
            "DEADLINE_EXCEEDED",
            f"the router at {self._target} was not ready within {timeout_seconds:g} s: {reason}"))

    def _watch_until_serving(self, timeout_seconds: float) -> bool:
        """False when the router ended the watch before."""
        watch = self._start("Watch", self._methods["Watch"].request(), timeout_seconds,
                            wait_for_ready=True)
        try:
            return any(_is_serving(response) for response in watch)
        except grpc.RpcError as failure:
            raise from_rpc(failure, self._target) from None
        finally:
            watch.cancel()

    def _call(self, name: str, fields: dict[str, Any], timeout_seconds: float | None = None,
              traceparent: str = "") -> Any:
        """One unary call. A field that is None is absent."""
        method = self._methods[name]
        if timeout_seconds is None:
            timeout_seconds = self._options.timeout_seconds
        invoke = self._channel.unary_unary(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        try:
            return invoke(method.request(**fields), timeout=timeout_seconds,
                          metadata=self._metadata(traceparent))
        except grpc.RpcError as failure:
            raise from_rpc(failure, self._target) from None

    def _start(self, name: str, message: Any, timeout_seconds: float | None,
               wait_for_ready: bool = False, traceparent: str = "") -> Any:
        """A call that is answered by a stream."""
        method = self._methods[name]
        invoke = self._channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        return invoke(message, timeout=timeout_seconds, wait_for_ready=wait_for_ready,
                      metadata=self._metadata(traceparent))

    def _metadata(self, traceparent: str) -> tuple[tuple[str, str | bytes], ...]:
        key = self._options.api_key
        caller = (("authorization", f"Bearer {key}"),) if key else ()
        return caller + ((("traceparent", traceparent),) if traceparent else ())


def _is_serving(response: Any) -> bool:
    return bool(response.status == response.SERVING)


def _read_pem(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        data = file.read()
    if b"-----BEGIN " not in data:
        raise ValueError(f"{path} is no PEM file")
    return data
