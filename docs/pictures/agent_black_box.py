#!/usr/bin/env python3
"""Measures what `blackbox = true` costs an idle agent.

    agent_black_box.py MEMHOOK_RS FOLDER [SECONDS [ROUNDS [TARGETS]]]

Starts TARGETS (60) idle services in one memory control group. In each of ROUNDS (3) rounds, traces
them with an agent without black boxes and then with one that has them. Prints the processor time
that each agent takes in SECONDS (30) once all services are traced.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

from agent_hour import free_address, start_targets
from agent_names import processor

CONFIGURATION = """[agent]
state = "FOLDER/state"
max_targets = 400
max_cpu = "100%"
max_memory = "2G"
[http]
listen = "LISTEN"
[[rule]]
name = "all"
executable = "FOLDER/bin/*"
blackbox = BLACKBOX
"""
LIMIT = 4 << 30
# Seconds for the work that follows the attach: names, the first rounds.
SETTLED = 6


def make_group():
    for top, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = f"{top}/memhook-black-box-{os.getpid()}"
        try:
            os.mkdir(group)
            with open(f"{group}/{limit}", "w", encoding="ascii") as file:
                file.write(str(LIMIT))
            return group
        except OSError:
            if os.path.isdir(group):
                os.rmdir(group)
    sys.exit("no memory control group can be made here")


def traced(listen):
    try:
        with urllib.request.urlopen(f"http://{listen}/targets", timeout=5) as answer:
            targets = json.load(answer)["targets"]
    except OSError:
        return 0
    return sum(target["phase"] == "traced" for target in targets)


def measure(program, folder, has_boxes, count, seconds):
    listen = free_address()
    text = CONFIGURATION.replace("FOLDER", folder).replace("LISTEN", listen)
    path = os.path.join(folder, "agent.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("BLACKBOX", str(has_boxes).lower()))
    with open(os.path.join(folder, "agent.log"), "wb") as log:
        agent = subprocess.Popen([program, "agent", "--config", path], stderr=log)
    while traced(listen) < count:
        if agent.poll() is not None:
            sys.exit(f"the agent has ended: {folder}/agent.log")
        time.sleep(0.5)
    time.sleep(SETTLED)
    before = processor(agent.pid)
    time.sleep(seconds)
    used = processor(agent.pid) - before
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    load = os.getloadavg()[0]
    print(f"blackbox = {has_boxes}: {used:.2f} s of a processor; load {load:.1f}", flush=True)


def main():
    program, folder = sys.argv[1], os.path.realpath(sys.argv[2])
    seconds, rounds, count = (
        int(sys.argv[at]) if len(sys.argv) > at else default
        for at, default in ((3, 30), (4, 3), (5, 60))
    )
    group = make_group()
    targets = start_targets(folder, {"idle": count})
    try:
        for target in targets:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(target.pid))
        for turn in range(rounds):
            for has_boxes in ((False, True), (True, False))[turn % 2]:
                measure(program, folder, has_boxes, count, seconds)
    finally:
        for target in targets:
            target.kill()
            target.wait()
        os.rmdir(group)


if __name__ == "__main__":
    main()
