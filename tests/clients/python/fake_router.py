# SPDX-License-Identifier: Apache-2.0
"""A gRPC server in the process of a test, whose answers the test writes."""
import concurrent.futures
import unittest

import grpc
import moebius
from moebius import wire

DETAIL_KEY = "grpc-status-details-bin"
Detail = wire.message_class(wire.ERROR_DETAIL)
MAX_MESSAGE_BYTES = 256 << 20


def message(method, **fields):
    """A response of a method of the router."""
    return wire.methods(wire.ROUTER)[method].response(**fields)


def health(status):
    """A response of the health service, by number."""
    return wire.methods(wire.HEALTH)["Check"].response(status=status)


def fail(context, code, text="", detail=b""):
    """Ends a call as the router does: a code, a message, and bytes for the details."""
    context.set_trailing_metadata(((DETAIL_KEY, detail),) if detail else ())
    context.abort(code, text)


class FakeRouter:
    """Serves on a port of its own: {method: function(request, context)} of both services."""

    def __init__(self, functions, credentials=None, address="127.0.0.1:0"):
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                     ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                     ("grpc.so_reuseport", 0)])
        for service in (wire.ROUTER, wire.HEALTH):
            handlers = {name: self._handler(method, functions[name])
                        for name, method in wire.methods(service).items() if name in functions}
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),))
        port = (self._server.add_insecure_port(address) if credentials is None
                else self._server.add_secure_port(address, credentials))
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    @staticmethod
    def _handler(method, function):
        make = (grpc.unary_stream_rpc_method_handler if method.is_stream
                else grpc.unary_unary_rpc_method_handler)
        return make(function, request_deserializer=method.request.FromString,
                    response_serializer=method.response.SerializeToString)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stop(grace=None).wait()


class CallTest(unittest.TestCase):
    def router(self, credentials=None, options=moebius.ClientOptions(), **functions):
        """A client of a router with these functions."""
        server = self.enterContext(FakeRouter(functions, credentials))
        return self.enterContext(moebius.Client(server.target, options))
