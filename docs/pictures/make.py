#!/usr/bin/python3
"""Makes the README's pictures: python3 docs/pictures/make.py MEMHOOK_RS

They show the service that `demo` starts: `top` in a real terminal (tmux), and the page of `view` in
a real browser (Chromium). Needs permission to trace a child, tmux and chromium. Only the fonts and
colours of the terminal are chosen here; every character on it is what the command printed.
"""

import collections
import glob
import html
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

COLUMNS, ROWS = 104, 20
CELL, LINE, MARGIN = 8.4, 18, 12
DARK, LIGHT = "#1e2227", "#d7dae0"
BASIC = ["#3f4451", "#e05561", "#8cc265", "#d18f52", "#4aa5f0", "#c162de", "#42b3c2", "#d7dae0"]
BRIGHT = ["#4f5666", "#ff616e", "#a5e075", "#f0a45d", "#4dc4ff", "#de73ff", "#4cd1e0", "#e6e6e6"]


def service(program, folder):
    """Copies the demo's service, which `demo` keeps in its own directory while it runs."""
    demo = subprocess.Popen([program, "demo", "-d", "2s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    copy = os.path.join(folder, "demo-service")
    for _ in range(200):
        found = glob.glob(f"{tempfile.gettempdir()}/memhook-demo-{demo.pid}/demo-service")
        if found:
            # `demo` writes the file with a single write, and starts it immediately.
            time.sleep(0.5)
            shutil.copy(found[0], copy)
            break
        time.sleep(0.02)
    demo.wait(timeout=60)
    return copy


def colour(codes):
    """Returns the colour that the rest of a `38;...` or `48;...` sequence selects."""
    if codes[0] == 2:
        red, green, blue = codes[1:4]
        return f"#{red:02x}{green:02x}{blue:02x}", codes[4:]
    number = codes[1]
    if number < 16:
        return (BASIC + BRIGHT)[number], codes[2:]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}", codes[2:]
    number -= 16
    steps = [0, 95, 135, 175, 215, 255]
    parts = steps[number // 36], steps[number // 6 % 6], steps[number % 6]
    return "#{:02x}{:02x}{:02x}".format(*parts), codes[2:]


def runs(line, style):
    """(column, text, style) of a line with escape sequences; `style` goes on from line to line."""
    column = 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b"):
            if part:
                yield column, part, dict(style)
            column += len(part)
            continue
        codes = [int(code or 0) for code in part[2:-1].split(";")]
        while codes:
            code, codes = codes[0], codes[1:]
            if code == 0:
                style.clear()
            elif code in (1, 2, 4, 7):
                style[{1: "bold", 2: "dim", 4: "underline", 7: "reverse"}[code]] = True
            elif code in (22, 24, 27):
                for name in {22: ("bold", "dim"), 24: ("underline",), 27: ("reverse",)}[code]:
                    style.pop(name, None)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                style["front"] = (BASIC + BRIGHT)[code - 30 if code < 90 else code - 82]
            elif 40 <= code <= 47 or 100 <= code <= 107:
                style["back"] = (BASIC + BRIGHT)[code - 40 if code < 100 else code - 92]
            elif code in (38, 48):
                name = "front" if code == 38 else "back"
                style[name], codes = colour(codes)
            elif code in (39, 49):
                style.pop("front" if code == 39 else "back", None)


def svg(screen):
    """Draws the contents of a terminal as SVG."""
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-size="14" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace">',
        f'<rect width="100%" height="100%" rx="8" fill="{DARK}"/>',
    ]
    state = {}
    for row, line in enumerate(screen.split("\n")[:ROWS]):
        y = MARGIN + row * LINE
        for column, text, style in runs(line, state):
            front, back = style.get("front", LIGHT), style.get("back")
            if style.get("reverse"):
                front, back = back or DARK, front
            x, long = MARGIN + column * CELL, len(text) * CELL
            if back:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{LINE}" fill="{back}"/>')
            if not text.strip():
                continue
            lead = len(text) - len(text.lstrip())
            text = text.strip()
            more = ' font-weight="bold"' if style.get("bold") else ""
            more += ' opacity="0.6"' if style.get("dim") else ""
            out.append(
                f'<text x="{x + lead * CELL:.1f}" y="{y + 13}" textLength="{len(text) * CELL:.1f}" '
                f'fill="{front}" xml:space="preserve"{more}>{html.escape(text)}</text>'
            )
    return "\n".join(out + ["</svg>", ""])


def top(program, pid, into):
    name = f"memhook-pictures-{os.getpid()}"
    tmux = ["tmux", "-L", name]
    terminal = ["new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"exec '{program}' top {pid} -i 500ms"]
    subprocess.run([*tmux, "-f", "/dev/null", *terminal], check=True, env={**os.environ, "TERM": "xterm-256color"})
    try:
        time.sleep(10)
        screen = subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True)
        assert "export_history" in screen.stdout, screen.stdout
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        time.sleep(2)
    finally:
        subprocess.run([*tmux, "kill-server"], stderr=subprocess.DEVNULL)
    with open(into, "w", encoding="utf-8") as file:
        file.write(svg(screen.stdout))


def page(program, pid, folder, root, into):
    run, made, shot = (os.path.join(folder, name) for name in ("run.mhk", "run.html", "page.png"))
    subprocess.run([program, "attach", str(pid), "-q", "-d", "8s", "-o", run], check=False)
    subprocess.run([program, "view", run, "-o", made, "--source-dir", f"{root}/crates/cli/demo"], check=True)
    with open(made, "a", encoding="utf-8") as file:
        file.write(CLICK)
    browser = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    browser += [f"--user-data-dir={folder}/profile", "--window-size=1280,860", "--virtual-time-budget=8000"]
    subprocess.run([*browser, f"--screenshot={shot}", f"file://{made}"], check=True, timeout=120, stderr=subprocess.DEVNULL)
    shrink(shot, into)


def shrink(shot, into):
    """Writes a screenshot with a palette of its most frequent colours, enough for a page."""
    with open(shot, "rb") as file:
        data = file.read()
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[0][1][:10])
    size = {(8, 2): 3, (8, 6): 4}[depth, kind]
    raw, stride = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT")), width * size
    rows, above = [], bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        method, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for i in range(stride):
            left = row[i - size] if i >= size else 0
            up, corner = above[i], above[i - size] if i >= size else 0
            if method == 1:
                row[i] = row[i] + left & 255
            elif method == 2:
                row[i] = row[i] + up & 255
            elif method == 3:
                row[i] = row[i] + (left + up) // 2 & 255
            elif method == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))
                row[i] = row[i] + near[2] & 255
        above = row
        rows.append([bytes(row[x : x + 3]) for x in range(0, stride, size)])
    counts = collections.Counter(pixel for row in rows for pixel in row)
    palette = [pixel for pixel, _ in counts.most_common(255)]
    nearest = {pixel: number for number, pixel in enumerate(palette)}
    for pixel in counts.keys() - nearest.keys():
        distance = [sum((a - b) ** 2 for a, b in zip(pixel, other)) for other in palette]
        nearest[pixel] = distance.index(min(distance))
    lines = b"".join(b"\0" + bytes(nearest[pixel] for pixel in row) for row in rows)
    with open(into, "wb") as file:
        file.write(data[:8])
        for name, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", b"".join(palette)),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        ):
            file.write(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))


# Selects the first site of the list, as a user would.
CLICK = """<script>
setTimeout(() => document.querySelector(".row [title='export_history']").click(), 3000)
</script>"""


def main():
    program = os.path.abspath(sys.argv[1])
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen([service(program, folder), str(os.getpid())], stdout=subprocess.DEVNULL)
        try:
            time.sleep(1)
            top(program, child.pid, os.path.join(here, "top.svg"))
            page(program, child.pid, folder, root, os.path.join(here, "page.png"))
        finally:
            child.kill()
            child.wait()


main()
