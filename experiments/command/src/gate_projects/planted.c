/* A leak for programs that have none: with MEMHOOK_PLANTED="BLOCKS BYTES" in the environment, so many blocks of so
 * many bytes are lost, and of each a string that only it points to. */
#include <stdlib.h>
#include <string.h>

struct node {
    char *text;
};

/* Called through a pointer that nobody can look through: the loss is the function's, not inlined into its caller. */
static void *volatile last;

__attribute__((noinline)) static void planted_leak(size_t bytes) {
    struct node *node = malloc(bytes);
    node->text = strdup("planted");
    last = node;
}

__attribute__((constructor)) static void plant(void) {
    const char *words = getenv("MEMHOOK_PLANTED");
    char *end;
    if (words == NULL)
        return;
    long blocks = strtol(words, &end, 10);
    long bytes = strtol(end, NULL, 10);
    /* Neither another copy in this process nor its children plant it again. */
    unsetenv("MEMHOOK_PLANTED");
    for (long i = 0; i < blocks; i++)
        planted_leak((size_t)bytes);
    /* The last one's address goes. */
    last = NULL;
}
