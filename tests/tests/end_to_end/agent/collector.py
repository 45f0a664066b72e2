"""A collector for profiles by gRPC, on gRPC's own library. It reacts by its arguments, then takes everything.

collector.py DIRECTORY [--tls KEY CERTIFICATE] [REACTION...]

A reaction is a status code, or "wait:SECONDS", which asks for a pause. Each message goes into a file of DIRECTORY, named
by a number, and "taken" or "refused"; the metadata of each call into "metadata".
"""

import json
import pathlib
import sys
import threading
import time
from concurrent import futures

import grpc

METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
directory = pathlib.Path(sys.argv[1])
words = sys.argv[2:]
credentials = None
if words[:1] == ["--tls"]:
    pair = [pathlib.Path(word).read_bytes() for word in words[1:3]]
    credentials = grpc.ssl_server_credentials([tuple(pair)])
    words = words[3:]
lock = threading.Lock()
count = 0


def put(name, content):
    beside = directory / "part"
    beside.write_bytes(content)
    beside.rename(directory / name)


def retry_info(seconds):
    """google.rpc.Status with a RetryInfo of so many seconds (below 128)."""
    delay = bytes([8, seconds])
    info = bytes([10, len(delay)]) + delay
    url = b"type.googleapis.com/google.rpc.RetryInfo"
    detail = bytes([10, len(url)]) + url + bytes([18, len(info)]) + info
    return bytes([8, 8, 26, len(detail)]) + detail


def export(message, context):
    global count
    with lock:
        reaction = words.pop(0) if words else None
        number = count
        count += 1
    metadata = {name: str(value) for name, value in context.invocation_metadata()}
    put("metadata", json.dumps(metadata).encode())
    put(f"{number:04}.{'refused' if reaction else 'taken'}", message)
    if reaction is None:
        # A trailer that is longer than a frame's first bytes, so that its name and value are packed.
        context.set_trailing_metadata((("x-explained", "a word " * 40),))
        return b""
    if reaction.startswith("wait:"):
        context.set_trailing_metadata((("grpc-status-details-bin", retry_info(int(reaction[5:]))),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")
    if reaction == "silence":
        time.sleep(3)
        return b""
    code = next(code for code in grpc.StatusCode if code.value[0] == int(reaction))
    context.abort(code, "not today")


class Methods(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(export)


server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Methods()])
if credentials:
    port = server.add_secure_port("127.0.0.1:0", credentials)
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
put("port", str(port).encode())
server.wait_for_termination()
