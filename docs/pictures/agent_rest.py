#!/usr/bin/python3
"""Measures the memory that an agent keeps for processes that have ended.

    agent_rest.py MEMHOOK_RS FOLDER [ROUNDS]

In each round, ten processes start per second, 600 in total. Each is traced, and lives for one and a
half seconds. Then the agent is idle for 75 seconds, in which it returns free memory, and its own
resident memory is measured. The rules match paths in FOLDER, so no other process on the machine is
traced. Needs permission to trace, and g++.
"""

import os
import signal
import subprocess
import sys
import time

COUNT, EACH, REST = 600, 0.1, 75

PROGRAM = r"""
#include <cstdlib>
#include <unistd.h>

int main() {
  for (int turn = 0; turn < 150; turn++) {
    for (int i = 0; i < 20; i++) {
      void* volatile block = malloc(100 + i * 50);
      free(block);
    }
    void* volatile kept = malloc(4000);
    (void)kept;
    usleep(10000);
  }
}
"""

CONFIGURATION = """[agent]
state = "FOLDER/state"
max_targets = 400
max_cpu = "90%"
max_memory = "4G"
[files]
directory = "FOLDER/profiles"
keep = 50
[[rule]]
name = "all"
executable = "FOLDER/bin/*"
send = ["files"]
"""


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def slope(points):
    """Returns the bytes per process by least squares, and their standard error."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    each = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - each * (x - mean_x)) ** 2 for x, y in points)
    return each * 1024, (rest / (count - 2) / spread) ** 0.5 * 1024


def main(program, folder, rounds):
    folder = os.path.realpath(folder)
    for name in ("state", "profiles", "bin"):
        os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
    source, brief = os.path.join(folder, "brief.cc"), os.path.join(folder, "bin", "brief")
    with open(source, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    subprocess.run(["g++", "-O2", "-o", brief, source], check=True)
    configuration, said = os.path.join(folder, "agent.toml"), os.path.join(folder, "agent.log")
    with open(configuration, "w", encoding="utf-8") as file:
        file.write(CONFIGURATION.replace("FOLDER", folder))
    with open(said, "w", encoding="utf-8") as log:
        agent = subprocess.Popen([program, "agent", "--config", configuration], stdout=log, stderr=log)
    points = []
    try:
        time.sleep(2)
        for _ in range(rounds):
            started, begin = [], time.monotonic()
            for number in range(COUNT):
                started.append(subprocess.Popen([brief]))
                time.sleep(max(0.0, begin + (number + 1) * EACH - time.monotonic()))
            failed = sum(child.wait() != 0 for child in started)
            time.sleep(REST)
            with open(said, encoding="utf-8") as log:
                traced = sum(" traced pid=" in line for line in log)
            points.append((traced, resident(agent.pid)))
            load = os.getloadavg()[0]
            print(f"{traced} traced, {points[-1][1]} KiB; {failed} failed; load {load:.0f}", flush=True)
        if len(points) > 2:
            print("%.0f bytes a process (standard error %.0f)" % slope(points))
    finally:
        agent.send_signal(signal.SIGTERM)
        print(f"exit code {agent.wait(timeout=60)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 6)
