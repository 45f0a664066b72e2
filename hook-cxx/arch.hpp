// All processor-specific code is under arch/.
#pragma once

#if defined(__x86_64__)
#include "arch/x86_64/call_via.hpp"
#include "arch/x86_64/cpu.hpp"
#include "arch/x86_64/otel_memory.hpp"
#include "arch/x86_64/syscall.hpp"
#else
#error \
    "The hook knows x86-64 only. A port writes a directory beside arch/x86_64 with the same headers: \
raw system calls, the thread pointer, time stamp counter and pause, a call through a return instruction \
of the caller's module, and one that unwinders see through, the layout of a signal frame, and the probes that listeners find. It must also look at every relaxed atomic store \
(folding.hpp, ring.hpp): x86-64 keeps their order, others do not."
#endif
