/* Reads and writes that no compiler tells memhook-rs of: those of assembly, of devices, of code that was built
 * without the callbacks. Call these before or after them; they cost one predictable branch while memhook-rs does
 * not trace the process. Link with memhook_access.o. */
#ifndef MEMHOOK_ACCESS_H
#define MEMHOOK_ACCESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* These bytes of one heap block are read. */
void memhook_reads(const void *address, size_t bytes);
/* These bytes of one heap block are written. */
void memhook_writes(const void *address, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
