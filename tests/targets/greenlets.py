# Greenlets that swap the C stack constantly until the end of the input. Answers each 'u' of the input with "usable"
# after using the locks of the C library, as usable.hpp does.
import ctypes
import os
import pwd
import select
import sys
import threading

import greenlet


def body(hub, depth):
    # Through C and back: each level adds an evaluation to the C stack.
    if depth:
        return sorted([depth - 1], key=lambda deeper: body(hub, deeper))
    for _ in range(6):
        held = bytearray(700)
        hub.switch()
        assert len(held) == 700


def switch_around():
    hub = greenlet.getcurrent()
    running = [greenlet.greenlet(lambda depth=n: body(hub, depth)) for n in range(8)]
    while running:
        for each in running:
            each.switch()
        running = [each for each in running if not each.dead]


def use_everything():
    ctypes.CDLL("libutil.so.1")
    assert pwd.getpwnam("root").pw_uid == 0
    thread = threading.Thread(target=bytearray, args=(1000,))
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


print("ready", flush=True)
while True:
    switch_around()
    if select.select([0], [], [], 0)[0]:
        if os.read(0, 1) != b"u":
            break
        use_everything()
        print("usable", flush=True)
