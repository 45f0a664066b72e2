#!/usr/bin/env python3
"""The longest pauses that a client of redis-server sees while memhook-rs attaches and detaches.

pauses.py BINARY [BINARY...] [--cycles N] [--port P]

Starts a redis-server and sends it PING after PING over one connection, each after the answer to the one before. In turn,
nothing happens, or one of the binaries attaches for 50 ms and detaches. For each attach the slowest answer is kept;
what is printed is the distribution of these, and beside it that of stretches of the same length without an attach.
"""
import argparse
import math
import socket
import subprocess
import threading
import time


class Client(threading.Thread):
    """Sends PINGs without end, and keeps the time that each answer took."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.worst = 0.0
        self.lock = threading.Lock()

    def run(self):
        while True:
            begin = time.perf_counter()
            try:
                self.socket.sendall(b"*1\r\n$4\r\nPING\r\n")
                if not self.socket.recv(64):
                    return
            except OSError:
                return  # the server was stopped
            took = time.perf_counter() - begin
            with self.lock:
                self.worst = max(self.worst, took)
            time.sleep(0.0002)

    def take_worst(self):
        with self.lock:
            worst, self.worst = self.worst, 0.0
        return worst


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[math.ceil(len(values) * share) - 1] * 1e3
    return f"p50 {at(0.5):7.2f}  p99 {at(0.99):7.2f}  max {values[-1] * 1e3:7.2f} ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--port", type=int, default=7398)
    options = parser.parse_args()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(["redis-server", "--port", str(options.port), "--save", ""], **quiet)
    try:
        time.sleep(1)
        client = Client(options.port)
        client.start()
        lengths, pauses = [], {name: [] for name in ["none", *options.binaries]}
        for _ in range(options.cycles):
            for binary in options.binaries:
                client.take_worst()
                begin = time.perf_counter()
                command = [binary, "attach", str(server.pid), "--duration", "0.05s"]
                subprocess.run(command, check=True, **quiet)
                lengths.append(time.perf_counter() - begin)
                pauses[binary].append(client.take_worst())
            client.take_worst()
            time.sleep(lengths[-1])
            pauses["none"].append(client.take_worst())
        for name, found in pauses.items():
            print(f"{percentiles(found)}  {name}")
    except subprocess.CalledProcessError as failed:
        raise SystemExit(f"{failed}; see what `{' '.join(failed.cmd)}` says while a redis-server runs")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
