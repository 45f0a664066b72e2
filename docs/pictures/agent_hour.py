#!/usr/bin/python3
"""Measures an agent with 200 processes for an hour, during which its store fails twice.

    agent_hour.py run MEMHOOK_RS RECEIVER FOLDER [MINUTES [mixed=100,idle=60,forking=20,spawning=0,redis=20]]
    agent_hour.py fit FOLDER [SVG]

`run` writes FOLDER/samples.csv and FOLDER/threads.csv, one sample every ten seconds. RECEIVER is
the binary of fleet/demo/receiver. The rules match paths in FOLDER, so no other process on the
machine is traced. `fit` summarizes both files and draws the plot. Needs permission to trace, g++
and redis-server; uses only 127.0.0.1.
"""

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

COUNTS = "mixed=100,idle=60,forking=20,redis=20"
EACH = 10
# Minutes during which the store is down.
AWAY = [(11, 13), (15, 18)]
# Minutes that the agent takes to attach and to read names.
SETTLED = 10

# Program with four kinds of work: mixed work (maps, strings, vectors, and computation in between),
# only a few allocations a minute, forking children that live for eight seconds, or starting five
# programs a second that live for one and a half seconds.
PROGRAM = r"""
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

static unsigned long long random_state;
static unsigned next() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<unsigned>(random_state >> 20);
}

static std::map<unsigned, std::string> kept;

[[gnu::noinline]] void request() {
  std::vector<std::string> words;
  for (int i = 0; i < 20; i++) words.emplace_back(16 + next() % 400, 'x');
  auto buffer = std::make_unique<char[]>(1 + next() % 60000);
  unsigned sum = 0;
  for (int i = 0; i < 20000; i++) sum = sum * 31 + static_cast<unsigned char>(buffer[0]) + i;
  kept[(next() + (sum & 1)) % 500] = words[next() % words.size()];
}

[[gnu::noinline]] void requests(int times) {
  for (int i = 0; i < times; i++) {
    request();
    usleep(100000);
  }
}

int main(int, char** argv) {
  // No process stays behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  random_state = 88172645463325252ull + static_cast<unsigned long long>(atoi(argv[2])) * 2654435761u;
  usleep(next() % 100000);
  if (!strcmp(argv[1], "mixed")) for (;;) requests(1000);
  if (!strcmp(argv[1], "brief")) return requests(15), 0;
  if (!strcmp(argv[1], "spawning"))
    for (unsigned number = 0;; number++) {
      std::string text = std::to_string(1000 + number);
      char brief[] = "brief";
      char* arguments[] = {argv[0], brief, text.data(), nullptr};
      pid_t child;
      posix_spawn(&child, argv[0], nullptr, nullptr, arguments, environ);
      usleep(200000);
      while (waitpid(-1, nullptr, WNOHANG) > 0) {}
    }
  if (!strcmp(argv[1], "idle")) for (;;) { request(); sleep(20); }
  for (;;) {
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      requests(80);
      _exit(0);
    }
    sleep(10);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {}
  }
}
"""

CONFIGURATION = """[agent]
state = "FOLDER/state"
max_targets = 400
max_cpu = "50%"
max_memory = "2G"
[http]
listen = "LISTEN"
per_process = false
[pyroscope]
url = "http://STORE"
[[rule]]
name = "all"
executable = "FOLDER/bin/*"
interval = "10s"
send = ["pyroscope"]
"""


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


LISTEN, STORE = free_address(), free_address()


def start_targets(folder, counts):
    folder_of_programs = os.path.join(folder, "bin")
    os.makedirs(folder_of_programs, exist_ok=True)
    source = os.path.join(folder, "service.cc")
    with open(source, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    program = os.path.join(folder_of_programs, "service")
    subprocess.run(["g++", "-O2", "-g", "-o", program, source], check=True)
    redis = os.path.join(folder_of_programs, "redis-server")
    shutil.copy(shutil.which("redis-server"), redis)
    targets = []
    for kind in ("mixed", "idle", "forking", "spawning"):
        for _ in range(counts.get(kind, 0)):
            targets.append(subprocess.Popen([program, kind, str(len(targets) + 1)]))
    for number in range(counts.get("redis", 0)):
        path = os.path.join(folder, f"redis-{number}.socket")
        targets.append(
            subprocess.Popen(
                [redis, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"],
                stdout=subprocess.DEVNULL,
            )
        )
    return targets


class Load:
    """Sends a few commands a second to each redis-server, from the sampling loop."""

    def __init__(self, folder, servers):
        self.folder = folder
        # The PID of each server, and the connection to it.
        self.servers = [(server.pid, self.connect(number)) for number, server in enumerate(servers)]
        self.count = 0
        self.slowest = 0.0

    def connect(self, number):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(os.path.join(self.folder, f"redis-{number}.socket"))
        return connection

    def step(self):
        for number, (pid, connection) in enumerate(self.servers):
            try:
                for _ in range(10):
                    self.count += 1
                    key, value = f"key:{self.count % 2000}", "v" * (1 + self.count * 37 % 900)
                    before = time.monotonic()
                    connection.sendall(f"SET {key} {value}\r\n".encode())
                    connection.recv(64)
                    self.slowest = max(self.slowest, time.monotonic() - before)
            except OSError as error:
                self.slowest = max(self.slowest, 5.0)
                self.write_down(pid, error)
                connection.close()
                try:
                    self.servers[number] = (pid, self.connect(number))
                except OSError:
                    # Try again next time.
                    pass

    def write_down(self, pid, error):
        """Logs the state of a server that does not answer."""
        with open(os.path.join(self.folder, "slow.log"), "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} process {pid}: {error}; load {os.getloadavg()[0]:.0f}\n")
            for _ in range(2):
                for name in ("stat", "wchan", "schedstat", "stack", "syscall"):
                    try:
                        with open(f"/proc/{pid}/{name}", encoding="utf-8") as found:
                            file.write(f"  {name}: {found.read().strip()}\n")
                    except OSError as why:
                        file.write(f"  {name}: {why}\n")
                time.sleep(0.2)


def metrics():
    """Returns the agent's metrics, each summed over all of its series."""
    try:
        with urllib.request.urlopen(f"http://{LISTEN}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    sums = {}
    for line in text.splitlines():
        if not line.startswith("#") and " " in line:
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def status(pid):
    numbers = {}
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            name, rest = line.split(":", 1)
            if name in ("RssAnon", "RssFile", "RssShmem", "VmRSS", "Threads"):
                numbers[name] = int(rest.split()[0])
    return numbers


def threads(pid):
    """Returns the name and processor time (ns) of each thread."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
                name = file.read().strip()
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as file:
                found[thread] = (name, int(file.read().split()[0]))
        except OSError:
            # The thread has exited.
            pass
    return found


def ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bytes_below(folder):
    total = 0
    for directory, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(directory, file)).st_size
            except OSError:
                pass
    return total


def run(program, receiver, folder, minutes, counts):
    folder = os.path.realpath(folder)
    os.makedirs(os.path.join(folder, "state"), mode=0o700, exist_ok=True)
    targets = start_targets(folder, counts)
    agent = store = None
    out = open(os.path.join(folder, "samples.csv"), "w", encoding="utf-8", newline="")
    by_thread = open(os.path.join(folder, "threads.csv"), "w", encoding="utf-8", newline="")
    samples, thread_samples = csv.writer(out), csv.writer(by_thread)
    names = None

    def start_store():
        log = open(os.path.join(folder, "receiver.log"), "a", encoding="utf-8")
        # The received profiles are discarded: an hour of them takes gigabytes.
        return subprocess.Popen([receiver, "-listen", STORE, "-out", "/dev/null"], stdout=log, stderr=log)

    try:
        time.sleep(2)
        load = Load(folder, targets[len(targets) - counts.get("redis", 0) :])
        store = start_store()
        configuration = os.path.join(folder, "agent.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.replace("FOLDER", folder).replace("LISTEN", LISTEN).replace("STORE", STORE))
        log = open(os.path.join(folder, "agent.log"), "w", encoding="utf-8")
        agent = subprocess.Popen([program, "agent", "--config", configuration], stdout=log, stderr=log)
        with open(os.path.join(folder, "pids"), "w", encoding="utf-8") as file:
            file.write(f"script {os.getpid()}\nagent {agent.pid}\n")
        begin = time.monotonic()
        due = begin
        while agent.poll() is None:
            now = time.monotonic() - begin
            if now >= minutes * 60:
                break
            away = any(first <= now / 60 < last for first, last in AWAY)
            if away and store:
                store.kill()
                store.wait()
                store = None
            elif not away and not store:
                store = start_store()
            load.step()
            if time.monotonic() < due:
                time.sleep(0.5)
                continue
            due += EACH
            said = metrics()
            row = {"seconds": round(now, 1), "away": int(away), "processor": ticks(agent.pid)}
            row.update(status(agent.pid))
            row["descriptors"] = len(os.listdir(f"/proc/{agent.pid}/fd"))
            row["queue"] = bytes_below(os.path.join(folder, "state"))
            row["targets_alive"] = sum(target.poll() is None for target in targets)
            # In seconds, since the previous sample.
            row["slowest_answer"], load.slowest = round(load.slowest, 3), 0.0
            row["load"] = os.getloadavg()[0]
            if names is None and said:
                names = list(row) + sorted(name for name in said if not name.endswith("_bucket"))
                samples.writerow(names)
            if names:
                samples.writerow([row.get(name, said.get(name, "")) for name in names])
                out.flush()
            for thread, (name, nanoseconds) in threads(agent.pid).items():
                thread_samples.writerow([round(now, 1), thread, name, nanoseconds])
            by_thread.flush()
        print("the agent ended by itself:" if agent.poll() is not None else "agent:", end=" ")
        before = time.monotonic()
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
        code = agent.wait(timeout=120)
        alive = sum(target.poll() is None for target in targets)
        print(f"exit code {code} after {time.monotonic() - before:.1f} s; {alive} of {len(targets)} targets go on")
    finally:
        for process in [agent, store] + targets:
            if process and process.poll() is None:
                process.kill()
                process.wait()


def read_samples(folder):
    with open(os.path.join(folder, "samples.csv"), encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [{name: float(value) for name, value in row.items() if value} for row in rows]


# Names of the agent's threads, and their purpose.
KINDS = {"target": "targets", "memhook-rs": "supervisor", "lookout": "lookout", "encoder": "encoder", "sender": "sender"}


def read_threads(folder):
    """Returns the share of a processor in each interval, by kind: [(seconds, {kind: share})]."""
    moments = {}
    with open(os.path.join(folder, "threads.csv"), encoding="utf-8") as file:
        for seconds, thread, name, nanoseconds in csv.reader(file):
            moments.setdefault(float(seconds), {})[thread] = (KINDS.get(name, "others"), int(nanoseconds))
    shares, times = [], sorted(moments)
    for before, after in zip(times, times[1:]):
        sums = {}
        for thread, (kind, used) in moments[after].items():
            # A reused thread id belongs to a thread that has started in the meantime.
            since = moments[before].get(thread, (kind, 0))[1]
            sums[kind] = sums.get(kind, 0) + (used - since if used >= since else used)
        shares.append((after, {kind: used / 1e9 / (after - before) for kind, used in sums.items()}))
    return shares


def processor(rows):
    spans = zip(rows, rows[1:])
    return [(b["seconds"], (b["processor"] - a["processor"]) / (b["seconds"] - a["seconds"])) for a, b in spans]


def slope(points):
    """Returns the slope per hour by least squares, and its error if errors are independent."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    per_second = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - per_second * (x - mean_x)) ** 2 for x, y in points)
    return per_second * 3600, (rest / (count - 2) / spread) ** 0.5 * 3600


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def fit(folder, picture):
    rows, by_thread = read_samples(folder), read_threads(folder)
    settled = SETTLED * 60
    after = [row for row in rows if row["seconds"] >= settled]
    print(f"{len(rows)} samples, {rows[-1]['seconds'] / 60:.1f} minutes; load {min(r['load'] for r in rows):.0f} to "
          f"{max(r['load'] for r in rows):.0f}")
    print(f"targets alive at least {min(r['targets_alive'] for r in rows):.0f}, traced "
          f"{median([r['memhook_agent_targets'] for r in after if 'memhook_agent_targets' in r] or [0]):.0f}")
    for name in ("VmRSS", "RssAnon", "RssShmem", "RssFile"):
        rises, error = slope([(row["seconds"], row[name] / 1024) for row in after])
        values = [row[name] / 1024 for row in after]
        print(f"{name}: {values[0]:.1f} MiB at minute {SETTLED}, {values[-1]:.1f} at the end, {min(values):.1f} to "
              f"{max(values):.1f}; {rises:+.2f} MiB an hour (standard error {error:.2f})")
    for name in ("Threads", "descriptors", "queue"):
        values = [row[name] for row in after]
        print(f"{name}: {values[0]:.0f} at minute {SETTLED}, {values[-1]:.0f} at the end, {min(values):.0f} to {max(values):.0f}")
    shares = [share for at, share in processor(rows) if at >= settled]
    print(f"processor: median {100 * median(shares):.1f} % of one, {100 * min(shares):.1f} to {100 * max(shares):.1f}")
    for minute in range(0, int(rows[-1]["seconds"] // 60), 5):
        within = [share for at, share in processor(rows) if minute <= at / 60 < minute + 5]
        kinds = {}
        spans = [shares for at, shares in by_thread if minute <= at / 60 < minute + 5]
        for kind in list(KINDS.values()) + ["others"]:
            kinds[kind] = sum(span.get(kind, 0) for span in spans) / len(spans)
        away = any(first < minute + 5 and minute < last for first, last in AWAY)
        print(f"  minutes {minute} to {minute + 5}: {100 * sum(within) / len(within):.1f} %, of it "
              + ", ".join(f"{kind} {100 * share:.1f}" for kind, share in kinds.items()) + (" (store away)" if away else ""))
    first = next(row for row in rows if row["seconds"] >= settled)
    for name in sorted(rows[-1]):
        if name.startswith("memhook_") and rows[-1][name] != first.get(name):
            print(f"  {name}: {first.get(name)} at minute {SETTLED}, {rows[-1][name]} at the end")
    if picture:
        draw(rows, by_thread, picture)


WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 860, 62, 150, 34, 190, 48


def draw(rows, by_thread, picture):
    minutes = max(10.0, rows[-1]["seconds"] / 60)
    of_x = lambda seconds: LEFT + (WIDTH - LEFT - RIGHT) * seconds / 60 / minutes
    memory = [("resident", "#1f5fa8", [(r["seconds"], r["VmRSS"] / 1024) for r in rows]),
              ("its own", "#7a3fa0", [(r["seconds"], r["RssAnon"] / 1024) for r in rows]),
              ("with targets", "#2c8a4b", [(r["seconds"], r["RssShmem"] / 1024) for r in rows])]
    colours = {"targets": "#2c8a4b", "supervisor": "#c2571a", "lookout": "#7a3fa0", "encoder": "#b08a00"}
    work = [("all threads", "#1f5fa8", [(at, 100 * share) for at, share in processor(rows)])]
    for kind, colour in colours.items():
        work.append((kind, colour, [(at, 100 * shares.get(kind, 0)) for at, shares in by_thread]))
    height = TOP + 2 * PANEL + GAP + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']

    def panel(top, title, lines, most, step):
        bottom = top + PANEL
        of_y = lambda value: bottom - PANEL * min(value, most) / most
        for first, last in AWAY:
            if last <= minutes:
                out.append(f'<rect x="{of_x(first * 60):.1f}" y="{top}" width="{of_x(last * 60) - of_x(first * 60):.1f}" '
                           f'height="{PANEL}" fill="#f3e3d3"/>')
        out.append(f'<text x="{LEFT}" y="{top - 10}" font-weight="bold" fill="#222222">{title}</text>')
        for number in range(int(most / step) + 1):
            y = of_y(number * step)
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
                       f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{number * step:g}</text>')
        labels = []
        for name, colour, points in lines:
            path = " ".join(f"{of_x(x):.1f},{of_y(y):.1f}" for x, y in points)
            out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
            labels.append([of_y(median([y for _, y in points[-12:]])), name, colour])
        labels.sort()
        for number, (y, name, colour) in enumerate(labels):
            if number:
                y = labels[number][0] = max(y, labels[number - 1][0] + 14)
            out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}" fill="{colour}">{name}</text>')
        every = 10 if minutes > 30 else 5
        for minute in range(0, int(minutes) + 1, every):
            out.append(f'<text x="{of_x(minute * 60):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444444">{minute}</text>')

    def round_up(value, step):
        return step * (int(value / step) + 1)

    panel(TOP, "Resident memory of the agent, MiB (shaded: no store)", memory, round_up(max(y for _, y in memory[0][2]), 50), 50)
    settled = [y for x, y in work[0][2] if x >= 60]
    panel(TOP + PANEL + GAP, "Processor time, % of one core", work, round_up(max(settled), 10), 10)
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle" fill="#444444">minutes</text></svg>')
    with open(picture, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    if len(sys.argv) >= 5 and sys.argv[1] == "run":
        pairs = [pair.split("=") for pair in (sys.argv[6] if len(sys.argv) > 6 else COUNTS).split(",")]
        wanted = {kind: int(count) for kind, count in pairs}
        run(sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]) if len(sys.argv) > 5 else 60, wanted)
    elif len(sys.argv) >= 3 and sys.argv[1] == "fit":
        fit(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        sys.exit(__doc__)
