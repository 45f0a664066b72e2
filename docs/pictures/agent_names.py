#!/usr/bin/env python3
"""Measures what an agent saves with `names = "store"`.

    agent_names.py MEMHOOK_RS FOLDER [SECONDS [PAIRS]]

Starts ten services and ten redis-servers. In each of PAIRS (2) pairs, traces them for SECONDS (90)
with an agent that looks up names, and for as long with one that does not. Prints a line for each
agent: its processor time, its memory (largest and at the end), and the size of its profiles.
"""

import glob
import os
import signal
import subprocess
import sys
import time

from agent_hour import Load, start_targets

CONFIGURATION = """[agent]
state = "FOLDER/state-NAME"
max_cpu = "50%"
max_memory = "2G"
[symbols]
names = "NAMES"
[files]
directory = "FOLDER/profiles-NAME"
[[rule]]
name = "all"
executable = "FOLDER/bin/*"
interval = "10s"
send = ["files"]
"""


def number(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) / 1024


def processor(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(program, folder, names, turn, seconds, load):
    name = f"{names}-{turn}"
    text = CONFIGURATION.replace("FOLDER", folder).replace("NAMES", names).replace("NAME", name)
    path = os.path.join(folder, f"{name}.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    log = open(os.path.join(folder, f"{name}.log"), "wb")
    agent = subprocess.Popen([program, "agent", "--config", path], stderr=log)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load.step()
        time.sleep(0.5)
    used, most, now = processor(agent.pid), number(agent.pid, "VmHWM"), number(agent.pid, "VmRSS")
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    sizes = [os.path.getsize(path) for path in glob.glob(f"{folder}/profiles-{name}/*.pb.gz")]
    mean = sum(sizes) / max(len(sizes), 1)
    print(
        f"{names} {turn}: {used:.2f} s of a processor, at most {most:.0f} MiB, {now:.0f} MiB at the end, "
        f"{len(sizes)} profiles of {mean:.0f} bytes; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main():
    program, folder = sys.argv[1], os.path.realpath(sys.argv[2])
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 90
    pairs = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    targets = start_targets(folder, {"mixed": 10, "redis": 10})
    try:
        time.sleep(2)
        load = Load(folder, targets[10:])
        for turn in range(pairs):
            # The second agent of a pair finds targets that already have the hook.
            for names in (("agent", "store"), ("store", "agent"))[turn % 2]:
                measure(program, folder, names, turn, seconds, load)
    finally:
        for target in targets:
            target.kill()


if __name__ == "__main__":
    main()
