# SPDX-License-Identifier: Apache-2.0
"""What a failed call raises: one class per status code, with what the router says about it."""
from __future__ import annotations

import re
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from moebius import wire

_DETAIL_KEY = "grpc-status-details-bin"
_MAX_DETAIL_BYTES = 16 << 10
_RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED")
# All but newline and tab: texts of others reach terminals.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ErrorDetail = wire.message_class(wire.ERROR_DETAIL)


@dataclass(frozen=True)
class ErrorDetail:
    """Why something failed and what to do about it."""

    code: str  # "INVALID_ARGUMENT"
    message: str
    hint: str = ""  # what to do; empty when nothing is known
    retryable: bool = False  # whether the same call may succeed later, unchanged
    epoch_seen: int | None = None  # of the placement that was used
    epoch_needed: int | None = None  # the oldest placement that would do
    missing_experts: tuple[int, ...] = ()  # that nobody, or not the callee, could compute
    host: str = ""  # the process that failed; empty: the callee itself


class MoebiusError(Exception):
    """A call that failed. `except moebius.UnavailableError` and so on tell the codes apart."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = detail.code
        self.message = detail.message
        self.hint = detail.hint
        self.retryable = detail.retryable
        self.epoch_seen = detail.epoch_seen
        self.epoch_needed = detail.epoch_needed
        self.missing_experts = detail.missing_experts
        self.host = detail.host

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


class CancelledError(MoebiusError):
    """The caller or an operator ended it."""


class UnknownError(MoebiusError):
    """Nobody can say."""


class InvalidArgumentError(MoebiusError):
    """The request can never succeed."""


class DeadlineExceededError(MoebiusError):
    """It took too long."""


class NotFoundError(MoebiusError):
    """There is no such thing, or no longer."""


class AlreadyExistsError(MoebiusError):
    """The request id is running, or has ended a short while ago."""


class PermissionDeniedError(MoebiusError):
    """Not for this caller."""


class ResourceExhaustedError(MoebiusError):
    """A limit has been reached."""


class FailedPreconditionError(MoebiusError):
    """The two sides do not fit: another configuration, an older placement."""


class AbortedError(MoebiusError):
    """Something else came between."""


class OutOfRangeError(MoebiusError):
    """Beyond the end."""


class UnimplementedError(MoebiusError):
    """The router has no such call."""


class InternalError(MoebiusError):
    """A fault of the router, or a response that cannot be right."""


class UnavailableError(MoebiusError):
    """The router cannot be reached, is draining, or lacks experts at the moment."""


class DataLossError(MoebiusError):
    """Data are damaged."""


class UnauthenticatedError(MoebiusError):
    """The caller has not proved who it is."""


_CLASSES: dict[str, type[MoebiusError]] = {
    "CANCELLED": CancelledError,
    "UNKNOWN": UnknownError,
    "INVALID_ARGUMENT": InvalidArgumentError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "FAILED_PRECONDITION": FailedPreconditionError,
    "ABORTED": AbortedError,
    "OUT_OF_RANGE": OutOfRangeError,
    "UNIMPLEMENTED": UnimplementedError,
    "INTERNAL": InternalError,
    "UNAVAILABLE": UnavailableError,
    "DATA_LOSS": DataLossError,
    "UNAUTHENTICATED": UnauthenticatedError,
}
# The numbers of the canonical codes, as in ErrorDetail.code.
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def detail_from(message: object) -> ErrorDetail:
    """The detail of a moebius.api.error.v1.ErrorDetail."""
    assert isinstance(message, _ErrorDetail)
    code = _NAMES.get(message.code, "UNKNOWN")
    return ErrorDetail(
        code=code if code in _CLASSES else "UNKNOWN", message=_printable(message.message),
        hint=_printable(message.hint), retryable=message.retryable,
        epoch_seen=message.epoch_seen if message.HasField("epoch_seen") else None,
        epoch_needed=message.epoch_needed if message.HasField("epoch_needed") else None,
        missing_experts=tuple(message.missing_experts), host=_printable(message.host))


def error_of(detail: ErrorDetail) -> MoebiusError:
    """The exception of the detail's code."""
    return _CLASSES.get(detail.code, UnknownError)(detail)


def bad_response(message: str) -> InternalError:
    """For a response that cannot be right."""
    return InternalError(ErrorDetail("INTERNAL", f"the router's response is wrong: {message}"))


def _sent_detail(call: grpc.Call, code: str) -> ErrorDetail | None:
    """What the router says; None when it is gRPC, or a proxy, that failed the call."""
    for key, value in call.trailing_metadata() or ():
        if key != _DETAIL_KEY or len(value) > _MAX_DETAIL_BYTES:
            continue
        try:
            detail = detail_from(_ErrorDetail.FromString(value))
        except DecodeError:
            return None
        return detail if detail.code == code else None
    return None


def from_rpc(failure: grpc.RpcError, target: str, *, begun: bool = False) -> MoebiusError:
    """The exception for a call to `target` that gRPC ended with a failure.

    `begun`: a part of the answer had come.
    """
    if not isinstance(failure, grpc.Call):
        return UnknownError(ErrorDetail("UNKNOWN", str(failure)))
    code = failure.code().name
    sent = _sent_detail(failure, code)
    if sent is not None:
        return error_of(sent)
    message, hint = _printable(failure.details() or ""), ""
    if code == "UNAVAILABLE" and begun:
        message = f"lost the router at {target} in the middle of an answer: {message}"
        hint = "ask again once it is back: the same seed gives the same answer"
    elif code == "UNAVAILABLE":
        message = f"cannot reach a router at {target}: {message}"
        hint = "check the address and that the router runs, and the files of Tls where it needs them"
    elif code == "DEADLINE_EXCEEDED":
        message = f"no answer from {target} within the call's time: {message}"
    return error_of(ErrorDetail(code, message, hint, retryable=code in _RETRYABLE_CODES))
